//! A program's use of a server, without an engine: the calls of one client, on any of its threads.
//!
//! Calls go side by side, each over a lane of its own and over idle ones if that pays. No more than a given number of calls have lanes at
//! a time; the others wait in line, and get their lanes in the order in which they came. A scan and a stream have lanes for
//! themselves as long as they last, and do not stand in line: who reads one may call functions meanwhile.

use crate::any::AnyZygote;
use crate::client::{Remote, RemoteZygote};
use crate::lane::LaneOptions;
use crosslane::batch::{self, Encode, Frame};
use crosslane::call::{
    Asked, CallGroup, Caller, Input, LARGEST_PARTITIONS, Map, MapOptions, Output, Results, Row, Scan, call,
};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::states::aggregate;
use crosslane::stats::now;
use crosslane::{ColumnBuilder, DataType, Error, Function, Library, Settings};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often who waits in line looks whether the wait should end.
const TICK: Duration = Duration::from_millis(10);

/// What a client calls.
#[derive(Debug)]
pub struct Session {
    library: Arc<Library<AnyZygote>>,
    /// What all calls share.
    group: CallGroup,
    /// How many calls have lanes at a time.
    lanes: usize,
    line: Line,
    /// Whether the client was closed.
    closed: Arc<AtomicBool>,
}

impl Session {
    /// Connects to a server.
    ///
    /// # Errors
    /// [`Error::Load`] if it cannot be reached, or refuses; [`Error::Boot`] if there is no thread for it.
    pub fn connect(remote: Remote, lanes: usize) -> Result<Self, Error> {
        let settings = Settings::default();
        let (name, lanes) = (remote.to_string(), lanes.max(1));
        let options = LaneOptions { largest: settings.largest_batch, stuck: settings.stuck() };
        let warm = PoolOptions { warm: lanes, idle_timeout: settings.idle_timeout };
        let (pool, functions) = Pool::start(warm, move |stop| {
            let (zygote, functions) = RemoteZygote::attach(remote, options, stop)?;
            Ok((AnyZygote::Remote(Box::new(zygote)), functions))
        })?;
        let library = Library { name, version: 1, functions, pool };
        let (library, line) = (Arc::new(library), Line::new(lanes));
        Ok(Self { library, group: CallGroup::default(), lanes, line, closed: Arc::default() })
    }

    /// The server's functions.
    pub fn functions(&self) -> &[Arc<Function>] {
        &self.library.functions
    }

    /// How many calls have lanes at a time.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Set when the client was closed.
    pub fn closed(&self) -> &Arc<AtomicBool> {
        &self.closed
    }

    /// Ends what is under way, with [`Error::Cancelled`], and lets nothing begin. Its lanes end when nobody has the session.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.line.moved.notify_all();
    }

    /// The group of a use of a function, which ends with the client, or when `stop` says so.
    pub fn group(&self, stop: impl Fn() -> bool + Send + Sync + 'static) -> CallGroup {
        let closed = Arc::clone(&self.closed);
        self.group.beside(move || closed.load(Relaxed) || stop())
    }

    /// The results of a function for all rows of the arguments.
    ///
    /// # Errors
    /// As [`call`].
    pub fn call(
        &self,
        function: &Arc<Function>,
        group: CallGroup,
        arguments: &dyn Input,
    ) -> Result<Results, Error> {
        let begun = now();
        let _place = self.stand(function, &group, begun)?;
        let mut results = Results::new(function.signature.returns.clone());
        let caller = Caller::since(&group, self.lanes, begun);
        call(&self.library, function, caller, arguments, &mut results)?;
        match (results.rows(), arguments.rows()) {
            (got, due) if got == due => Ok(results),
            (got, due) => Err(Error::Engine(format!("{}: {got} results of {due} rows", function.name()))),
        }
    }

    /// The results of an aggregate for so many groups, over one lane.
    ///
    /// # Errors
    /// As [`aggregate`].
    pub fn aggregate(
        &self,
        function: &Arc<Function>,
        group: CallGroup,
        arguments: &dyn Input,
        groups: (&[usize], usize),
    ) -> Result<Results, Error> {
        let _place = self.stand(function, &group, now())?;
        aggregate(&self.library, function, &Arc::new(group), arguments, groups)
    }

    /// A place among those who have lanes.
    fn stand(&self, function: &Function, group: &CallGroup, begun: u64) -> Result<Taken<'_>, Error> {
        let place = self.line.stand(|| group.should_end(begun));
        place.ok_or_else(|| Error::Cancelled { function: function.name().into() })
    }

    /// The rows of a table function, all columns of them.
    ///
    /// # Errors
    /// [`Error::Engine`] if it is no table function.
    pub fn scan(&self, function: &Arc<Function>, arguments: Row) -> Result<Table, Error> {
        function.entry(crosslane::Entry::Scan)?;
        let (library, function) = (Arc::clone(&self.library), Arc::clone(function));
        Ok(Table { library, function, arguments, parts: None, scan: None })
    }

    /// A stream through a function.
    ///
    /// # Errors
    /// As [`Map::new`].
    pub fn map(&self, function: &Arc<Function>, options: MapOptions) -> Result<Map<AnyZygote>, Error> {
        Map::new(Arc::clone(&self.library), Arc::clone(function), options)
    }
}

/// The rows of a table function: those of its partitions, one behind the other.
#[derive(Debug)]
pub struct Table {
    library: Arc<Library<AnyZygote>>,
    function: Arc<Function>,
    arguments: Row,
    /// The partitions that were not scanned yet, the first last; `None` before they were asked for.
    parts: Option<Vec<Option<Vec<u8>>>>,
    scan: Option<Scan<AnyZygote, Asked>>,
}

impl Table {
    /// A STRUCT of the columns.
    pub fn columns(&self) -> &DataType {
        &self.function.signature.returns
    }

    /// The next batch of rows; `None` if there are no more. After an error it is of no use.
    ///
    /// # Errors
    /// As [`Scan::next`].
    pub fn next(&mut self, caller: Caller<'_>) -> Result<Option<Results>, Error> {
        loop {
            if let Some(scan) = &mut self.scan {
                if let Some(rows) = scan.next(caller)? {
                    let mut results = Results::new(rows.data_type.clone());
                    results.accept(0, &rows)?;
                    return Ok(Some(results));
                }
                self.scan = None;
            }
            let parts = match &mut self.parts {
                Some(parts) => parts,
                none => {
                    let (library, arguments) = (&self.library, self.arguments.clone());
                    let found =
                        Scan::partitions(library, &self.function, caller, arguments, LARGEST_PARTITIONS)?;
                    none.insert(found.into_iter().rev().collect())
                }
            };
            let Some(partition) = parts.pop() else { return Ok(None) };
            let returns = self.function.signature.returns.clone();
            let wanted = (0..returns.children().len()).collect();
            let asked = Asked { partition, wanted, arguments: self.arguments.clone() };
            let (library, function) = (Arc::clone(&self.library), Arc::clone(&self.function));
            self.scan = Some(Scan::open(library, function, caller, returns, asked)?);
        }
    }
}

/// So many columns, of an argument each, as a function takes them: those behind the fixed ones become LISTs if it takes any number, and are told of if it takes any
/// type.
///
/// # Errors
/// [`Error::Engine`] if there is no memory for them, or 32-bit offsets cannot tell their parts apart.
pub fn with_arguments(
    function: &Function,
    (columns, count): (&dyn Encode, usize),
    rows: usize,
    take: &mut dyn FnMut(&dyn Encode),
) -> Result<(), Error> {
    let signature = &function.signature;
    let Some(element) = signature.rest() else {
        match &function.types {
            Some(types) => take(&Typed { types, columns }),
            None => take(columns),
        }
        return Ok(());
    };
    let fixed = signature.fixed();
    let types = fixed.iter().map(|field| &field.data_type);
    let types = types.chain(std::iter::repeat_n(element, count.saturating_sub(fixed.len())));
    let frame = Frame::new(columns, rows)?;
    let mut columns = batch::columns(frame.bytes(), types)?;
    let rest = columns.split_off(fixed.len());
    let skips = function.spec.admits_null.last() != Some(&true);
    let lists = ColumnBuilder::lists(element, &rest, rows, skips)
        .map_err(|error| Error::Engine(error.to_string()))?;
    let data_type = DataType::List(Arc::new(element.clone()));
    columns.push(lists.column(&data_type));
    take(&columns);
    Ok(())
}

/// Columns with their types as text.
struct Typed<'a> {
    types: &'a Arc<str>,
    columns: &'a dyn Encode,
}

impl Encode for Typed<'_> {
    fn plan(&self, plan: &mut batch::Plan) {
        plan.types(self.types);
        self.columns.plan(plan);
    }
    fn write(&self, body: &mut batch::Body<'_>) {
        self.columns.write(body);
    }
}

/// So many places, which are taken in the order in which those come who want them.
#[derive(Debug)]
struct Line {
    state: Mutex<Places>,
    /// Notified when somebody may be the next.
    moved: Condvar,
}

#[derive(Debug)]
struct Places {
    free: usize,
    /// Counts those who came.
    came: u64,
    line: VecDeque<u64>,
}

/// A place that was taken, until this is dropped.
struct Taken<'a>(&'a Line);

impl Line {
    fn new(free: usize) -> Self {
        let places = Places { free, came: 0, line: VecDeque::new() };
        Self { state: Mutex::new(places), moved: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. `None` if `should_end` says so first; it is asked without the lock.
    fn stand(&self, should_end: impl Fn() -> bool) -> Option<Taken<'_>> {
        let mut places = self.lock();
        places.came += 1;
        let ticket = places.came;
        places.line.push_back(ticket);
        while places.free == 0 || places.line.front() != Some(&ticket) {
            places = self.moved.wait_timeout(places, TICK).unwrap_or_else(PoisonError::into_inner).0;
            drop(places);
            let ends = should_end();
            places = self.lock();
            if ends {
                places.line.retain(|other| *other != ticket);
                self.moved.notify_all();
                return None;
            }
        }
        places.line.pop_front();
        places.free -= 1;
        if places.free > 0 && !places.line.is_empty() {
            self.moved.notify_all();
        }
        Some(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut places = self.0.lock();
        places.free += 1;
        if !places.line.is_empty() {
            self.0.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn places_are_taken_in_the_order_of_the_line() {
        let line = Line::new(1);
        let first = line.stand(|| false).unwrap();
        let (sender, order) = mpsc::channel();
        thread::scope(|scope| {
            for number in 0..8 {
                let (line, sender) = (&line, sender.clone());
                scope.spawn(move || {
                    let place = line.stand(|| false).unwrap();
                    sender.send(number).unwrap();
                    drop(place);
                });
                while line.lock().line.len() <= number {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert_eq!(line.lock().free, 1);
    }

    #[test]
    fn who_leaves_the_line_lets_the_next_one_in() {
        let line = Line::new(1);
        let first = line.stand(|| false).unwrap();
        assert!(line.stand(|| true).is_none());
        let left = AtomicBool::new(false);
        thread::scope(|scope| {
            let (line, left) = (&line, &left);
            let leaves = scope.spawn(move || line.stand(|| left.load(Relaxed)).is_none());
            while line.lock().line.is_empty() {
                thread::yield_now();
            }
            let stays = scope.spawn(move || line.stand(|| false).is_some());
            while line.lock().line.len() < 2 {
                thread::yield_now();
            }
            left.store(true, Relaxed);
            assert!(leaves.join().unwrap());
            drop(first);
            assert!(stays.join().unwrap());
        });
        assert_eq!(line.lock().free, 1);
    }
}
