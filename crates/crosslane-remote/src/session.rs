//! A program's use of a server without an engine. All calls of one client belong to one session.
//! Any thread may call.
//!
//! Calls run at the same time, each over its own lane. A call also uses idle lanes if that makes it
//! faster. The number of calls that have lanes at a time is limited. The other calls wait in a
//! queue and get their lanes in the order of arrival. Each scan and each stream keeps its own lane
//! and does not wait in the queue. So a thread that reads one may call functions meanwhile.
//!
//! A session has the functions that the server had when it connected. If the server has loaded
//! other functions since ([`Session::is_outdated`]), the client makes the next session
//! ([`Session::renewed`]). Uses that run go on with theirs.

use crate::any::AnyZygote;
use crate::client::{Remote, RemoteZygote, Watch};
use crate::lane::LaneOptions;
use crosslane::batch::{self, Encode, Frame, Typed};
use crosslane::call::{
    Asked, CallGroup, Caller, Input, LARGEST_PARTITIONS, Map, MapOptions, Output, Results, Row, Scan, call,
};
use crosslane::pool::{Pool, PoolOptions, Stop};
use crosslane::states::aggregate;
use crosslane::stats::now;
use crosslane::{ColumnBuilder, DataType, Error, Function, Library, Settings};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a thread in the queue checks whether its wait should end.
const TICK: Duration = Duration::from_millis(10);

/// A client's session with a server.
#[derive(Debug)]
pub struct Session {
    remote: Remote,
    /// Says when the server has other functions, if it loads files again.
    watch: Mutex<Option<Arc<Watch>>>,
    library: Arc<Library<AnyZygote>>,
    /// The call group from which the groups of all uses are made.
    group: CallGroup,
    /// The most calls that have lanes at a time.
    lanes: usize,
    line: Arc<Line>,
    /// Whether the client was closed.
    closed: Arc<AtomicBool>,
}

impl Session {
    /// Connects to a server.
    ///
    /// # Errors
    /// [`Error::Load`] if the server cannot be reached or refuses the client. [`Error::Boot`] if
    /// the system starts no thread.
    pub fn connect(remote: Remote, lanes: usize) -> Result<Self, Error> {
        let lanes = lanes.max(1);
        Self::open(remote, lanes, Arc::new(Line::new(lanes)), Arc::default())
    }

    /// Returns whether the server may have loaded other functions since, or has ended.
    pub fn is_outdated(&self) -> bool {
        self.watch().as_ref().is_some_and(|watch| watch.is_over())
    }

    fn watch(&self) -> MutexGuard<'_, Option<Arc<Watch>>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects again, for the functions that the server has now. Returns `None` if they are those of
    /// this session. Both sessions share the limit of calls that have lanes at a time, and are closed
    /// together.
    ///
    /// # Errors
    /// Those of [`Session::connect`].
    pub fn renewed(&self) -> Result<Option<Self>, Error> {
        // The lock is not held while this connects.
        let watch = self.watch().clone();
        let Some(watch) = watch.filter(|watch| watch.is_over()) else { return Ok(None) };
        if let Some(renewed) = watch.renewed(&self.remote, &Stop::default())? {
            *self.watch() = Some(Arc::new(renewed));
            return Ok(None);
        }
        let (line, closed) = (Arc::clone(&self.line), Arc::clone(&self.closed));
        Self::open(self.remote.clone(), self.lanes, line, closed).map(Some)
    }

    fn open(remote: Remote, lanes: usize, line: Arc<Line>, closed: Arc<AtomicBool>) -> Result<Self, Error> {
        let settings = Settings::default();
        let (name, reached) = (remote.to_string(), remote.clone());
        let options = LaneOptions { largest: settings.largest_batch, stuck: settings.stuck() };
        let warm = PoolOptions { warm: lanes, idle_timeout: settings.idle_timeout };
        let (pool, (functions, watch)) = Pool::start(warm, move |stop| {
            let (mut zygote, functions) = RemoteZygote::attach(reached, options, stop)?;
            let watch = zygote.take_watch();
            Ok((AnyZygote::Remote(Box::new(zygote)), (functions, watch)))
        })?;
        let library = Arc::new(Library { name, version: 1, functions, pool });
        let watch = Mutex::new(watch.map(Arc::new));
        Ok(Self { remote, watch, library, group: CallGroup::default(), lanes, line, closed })
    }

    /// Returns the server's functions.
    pub fn functions(&self) -> &[Arc<Function>] {
        &self.library.functions
    }

    /// Returns the most calls that have lanes at a time.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Returns the flag that is set when the client is closed.
    pub fn closed(&self) -> &Arc<AtomicBool> {
        &self.closed
    }

    /// Closes the client. Running uses end with [`Error::Cancelled`], and no new ones begin. The
    /// lanes end when the last reference to the session is dropped.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.line.moved.notify_all();
    }

    /// Makes the call group for one use of a function. The use ends when the client is closed, or
    /// when `stop` returns true.
    pub fn group(&self, stop: impl Fn() -> bool + Send + Sync + 'static) -> CallGroup {
        let closed = Arc::clone(&self.closed);
        self.group.beside(move || closed.load(Relaxed) || stop())
    }

    /// Calls a function, and returns its results for all rows of the arguments.
    ///
    /// # Errors
    /// The errors of [`call`].
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

    /// Computes an aggregate over one lane, and returns the results for this many groups.
    ///
    /// # Errors
    /// The errors of [`aggregate`].
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

    /// Waits for a place among the calls that have lanes.
    fn stand(&self, function: &Function, group: &CallGroup, begun: u64) -> Result<Taken<'_>, Error> {
        let place = self.line.stand(|| group.should_end(begun));
        place.ok_or_else(|| Error::Cancelled { function: function.name().into() })
    }

    /// Scans a table function, with all of its columns.
    ///
    /// # Errors
    /// [`Error::Engine`] if it is not a table function.
    pub fn scan(&self, function: &Arc<Function>, arguments: Row) -> Result<Table, Error> {
        function.entry(crosslane::Entry::Scan)?;
        let (library, function) = (Arc::clone(&self.library), Arc::clone(function));
        Ok(Table { library, function, arguments, parts: None, scan: None })
    }

    /// Makes a stream through a function.
    ///
    /// # Errors
    /// The errors of [`Map::new`].
    pub fn map(&self, function: &Arc<Function>, options: MapOptions) -> Result<Map<AnyZygote>, Error> {
        Map::new(Arc::clone(&self.library), Arc::clone(function), options)
    }
}

/// The rows of a table function. Its partitions follow each other.
#[derive(Debug)]
pub struct Table {
    library: Arc<Library<AnyZygote>>,
    function: Arc<Function>,
    arguments: Row,
    /// The partitions that were not yet scanned, in reverse order. `None` before the server was
    /// asked for them.
    parts: Option<Vec<Option<Vec<u8>>>>,
    scan: Option<Scan<AnyZygote, Asked>>,
}

impl Table {
    /// Returns the type of the rows: a STRUCT of the columns.
    pub fn columns(&self) -> &DataType {
        &self.function.signature.returns
    }

    /// Returns the next batch of rows, or `None` if there are no more. After an error, the table
    /// must not be used.
    ///
    /// # Errors
    /// The errors of [`Scan::next`].
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

/// Passes the columns of `count` arguments to `take`, in the form in which the function takes them.
/// If the function takes any number of arguments, those after the fixed ones become one column of
/// LISTs. If it takes any type, the types are added as text.
///
/// # Errors
/// [`Error::Engine`] if there is no memory for the columns, or the lists are too long for 32-bit
/// offsets.
pub fn with_arguments(
    function: &Function,
    (columns, count): (&dyn Encode, usize),
    rows: usize,
    take: &mut dyn FnMut(&dyn Encode),
) -> Result<(), Error> {
    let signature = &function.signature;
    let Some(element) = signature.rest() else {
        take(&Typed { types: function.types.as_ref(), columns });
        return Ok(());
    };
    let fixed = signature.fixed();
    let types = fixed.iter().map(|field| &field.data_type);
    let types = types.chain(std::iter::repeat_n(element, count.saturating_sub(fixed.len())));
    let frame = Frame::new(columns, rows)?;
    let mut columns = batch::columns(frame.bytes(), types)?;
    let rest = columns.split_off(fixed.len());
    let skips = function.spec.admits_null.last() != Some(&true);
    let lists = ColumnBuilder::lists(element, &rest, rows, skips)?;
    let data_type = DataType::List(Arc::new(element.clone()));
    columns.push(lists.column(&data_type));
    take(&columns);
    Ok(())
}

/// A limited number of places. Threads take them in the order in which they ask.
#[derive(Debug)]
struct Line {
    state: Mutex<Places>,
    /// Notified when the next thread in the queue may have a place.
    moved: Condvar,
}

#[derive(Debug)]
struct Places {
    free: usize,
    /// The number of threads that have asked.
    came: u64,
    line: VecDeque<u64>,
}

/// A place that a thread has taken. Dropping this frees the place.
struct Taken<'a>(&'a Line);

impl Line {
    fn new(free: usize) -> Self {
        let places = Places { free, came: 0, line: VecDeque::new() };
        Self { state: Mutex::new(places), moved: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. Returns `None` if `should_end` returns true first. The lock is not held
    /// while `should_end` runs.
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
    fn a_caller_that_leaves_the_queue_lets_the_next_one_in() {
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
