//! The native part of `Crosslane::Client`: calls a server's functions from a program without an
//! engine ([`Served`]).
//!
//! A call waits without the GVL. If the VM needs the thread meanwhile, the wait handles the VM's
//! interrupts as in a query ([`crate::engine::connection::session`]). If an interrupt raises an
//! exception, the call ends.

use crate::engine::connection::closing::{briefly, in_own_process};
use crate::engine::connection::session::{Session as Watch, failure, lock};
use crate::values::{Fault, columns};
use crosslane::batch::{Column, Encode};
use crosslane::call::{CallGroup, Caller, Input, Map, MapInput, MapOptions, MapStep, Results, Row};
use crosslane::{ColumnBuilder, DataType, Error as CallError, Function, Rows};
use crosslane_guest::Values;
use crosslane_gvl::{self as gvl, check_interrupts};
use crosslane_remote::AnyZygote;
use crosslane_remote::client::Remote;
use crosslane_remote::session::{Session as Served, Table, with_arguments};
use magnus::rb_sys::AsRawValue;
use magnus::{Error, RArray, Value};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The most rows of a batch of a stream's input, and the bytes after which the batch ends earlier.
const BATCH: (usize, usize) = (2048, 256 << 10);

/// An object that owns threads. A fork does not have these threads, and may have copies of locked
/// locks. So a fork does not use the object, and leaks it.
struct Owned<T: Send + 'static> {
    /// `None` after the close.
    object: Mutex<Option<T>>,
    process: u32,
}

impl<T: Send + 'static> Owned<T> {
    fn new(object: T) -> Self {
        Self { object: Mutex::new(Some(object)), process: std::process::id() }
    }

    /// Whether the process is the one that made the object.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.is_here() {
            return Ok(());
        }
        let why = "this process was forked after the client had connected; it needs a client of its own";
        Err(failure(None, why))
    }

    /// Locks the object for the one thread that reads it.
    fn alone(&self) -> Result<MutexGuard<'_, Option<T>>, Error> {
        self.check_process()?;
        match self.object.try_lock() {
            Ok(object) => Ok(object),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(failure(None, "the rows are being read already")),
        }
    }
}

impl<T: Send + 'static> Drop for Owned<T> {
    fn drop(&mut self) {
        let object = self.object.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.is_here() {
            in_own_process(self.process, move || drop(object));
        } else {
            std::mem::forget(object);
        }
    }
}

/// Drops an object that may wait for threads.
fn end<T>(object: &mut Option<T>) {
    let over = object.take();
    briefly(|| drop(over));
}

/// `Crosslane::Native::Client`.
#[magnus::wrap(class = "Crosslane::Native::Client", free_immediately)]
pub(crate) struct Client(Owned<Arc<Served>>);

/// The exception of a failed call. With the GVL.
fn raised(watch: &Watch, served: &Served, error: &CallError) -> Error {
    let left = watch.left();
    let closed = served.closed().load(Relaxed);
    let message = match error {
        CallError::Cancelled { .. } if left.is_none() && closed => "the client was closed".into(),
        error => told(error),
    };
    failure(left, &message)
}

/// The message of an error for a caller that connects to a server.
fn told(error: &CallError) -> String {
    match error {
        CallError::Load { failure, .. } => failure.message.clone(),
        CallError::Boot(why) => why.clone(),
        error => error.to_string(),
    }
}

/// A watch for one use of a function. It can end the use.
fn watched(served: &Served) -> (Arc<Watch>, CallGroup) {
    let watch = Watch::new();
    watch.begin();
    let asked = Arc::clone(&watch);
    let group = served.group(move || asked.must_stop());
    (watch, group)
}

/// Waits without the GVL. An exception of the VM's interrupts ends the work, and is returned.
fn wait<T>(served: &Served, watch: &Watch, work: impl FnOnce() -> Result<T, CallError>) -> Result<T, Error> {
    let done = gvl::without_fail(work, || watch.interrupt(), |unwind| watch.stop(unwind));
    let done = done.map_err(|error| raised(watch, served, &error))?;
    match watch.left() {
        None => Ok(done),
        Some(left) => Err(failure(Some(left), "the call was interrupted")),
    }
}

impl Client {
    /// Connects to the servers.
    pub(crate) fn new(addresses: String, token: Option<String>, lanes: usize) -> Result<Self, Error> {
        crosslane_process::occupy_standard_descriptors();
        crosslane_process::report_panics();
        let remote = Remote::new(&addresses, token).map_err(crate::errors::argument_error)?;
        check_interrupts()?;
        let served = gvl::without_or_raise(|| Served::connect(remote, lanes), || {})?;
        let served = served.map_err(|error| failure(None, &told(&error)))?;
        Ok(Self(Owned::new(Arc::new(served))))
    }

    /// Whether the server may have loaded other functions since, or has ended.
    pub(crate) fn is_outdated(&self) -> bool {
        self.0.is_here() && lock(&self.0.object).as_ref().is_some_and(|served| served.is_outdated())
    }

    /// A client of the functions that the server has now, or nil if they are those of this client. Both
    /// are closed together.
    pub(crate) fn renewed(&self) -> Result<Option<Self>, Error> {
        let served = self.served()?;
        check_interrupts()?;
        let renewed = gvl::without_or_raise(|| served.renewed(), || {})?;
        let renewed = renewed.map_err(|error| failure(None, &told(&error)))?;
        Ok(renewed.map(|served| Self(Owned::new(Arc::new(served)))))
    }

    fn served(&self) -> Result<Arc<Served>, Error> {
        self.0.check_process()?;
        lock(&self.0.object).clone().ok_or_else(|| failure(None, "the client is closed"))
    }

    /// The signature of each function, and the server's description of it as JSON.
    pub(crate) fn functions(&self) -> Result<Vec<(String, String)>, Error> {
        let served = self.served()?;
        let said = served.functions().iter().map(|function| {
            let said = serde_json::to_string(&function.spec).map_err(crate::errors::argument_error)?;
            Ok((function.signature.to_string(), said))
        });
        said.collect()
    }

    /// The results of the function with this index, for `rows` rows. Each column is an Array.
    /// `types` are the arguments' types if a parameter has the type ANY.
    pub(crate) fn call(
        &self,
        index: usize,
        types: Option<String>,
        columns: RArray,
        rows: usize,
    ) -> Result<RArray, Error> {
        self.used(index, types.as_deref(), (columns, rows), Served::call)
    }

    /// The results of an aggregate, one for each of `count` groups. `groups` has the group's index
    /// for each row.
    pub(crate) fn aggregate(
        &self,
        index: usize,
        columns: RArray,
        groups: Vec<usize>,
        count: usize,
    ) -> Result<RArray, Error> {
        let given = (columns, groups.len());
        self.used(index, None, given, |served, function, group, arguments| {
            served.aggregate(function, group, arguments, (&groups, count))
        })
    }

    /// Uses a function with `rows` rows of columns. Returns the results.
    fn used(
        &self,
        index: usize,
        types: Option<&str>,
        (columns, rows): (RArray, usize),
        work: impl FnOnce(&Served, &Arc<Function>, CallGroup, &dyn Input) -> Result<Results, CallError>,
    ) -> Result<RArray, Error> {
        let served = self.served()?;
        let results = used(&served, index, types, (columns, rows), work);
        if let Some(closed) = Arc::into_inner(served) {
            briefly(|| drop(closed));
        }
        let results = results?;
        let column = results.column();
        let reader = columns::reader(column.data_type)?;
        columns::array(|vm| vm.list(column.rows, |row| reader.read(vm, &column, row)))
    }

    /// The rows of a table function for one row of arguments.
    pub(crate) fn scan(&self, index: usize, columns: RArray) -> Result<Scan, Error> {
        let served = self.served()?;
        let function = function(&served, index)?;
        let arguments = Arguments::new(function, columns, 1)?;
        let types = function.signature.parameters.iter().map(|field| field.data_type.clone());
        let table = Row::of(&arguments, types).and_then(|row| served.scan(function, row));
        let table = table.map_err(|error| failure(None, &told(&error)))?;
        Ok(Scan(Owned::new(Reading { table, served })))
    }

    /// A stream through a stream function.
    pub(crate) fn map(
        &self,
        index: usize,
        lanes: usize,
        depth: usize,
        ordered: bool,
    ) -> Result<Stream, Error> {
        let served = self.served()?;
        let function = Arc::clone(function(&served, index)?);
        let map = served.map(&function, MapOptions { lanes, depth, ordered });
        let map = map.map_err(|error| failure(None, &told(&error)))?;
        let Some(takes) = map.takes().cloned() else {
            return Err(crate::errors::argument_error(format!(
                "{} does not say its columns",
                function.signature
            )));
        };
        let (writer, batch) = (columns::writer(&takes)?, ColumnBuilder::new(&takes));
        let mapping = Mapping { map, function, takes, writer, batch, before: 0, finished: false, served };
        Ok(Stream(Owned::new(mapping)))
    }

    /// Ends all uses and closes the connections. A second call does nothing.
    pub(crate) fn close(&self) {
        if !self.0.is_here() {
            return;
        }
        if let Some(served) = lock(&self.0.object).take() {
            served.close();
            briefly(|| drop(served));
        }
    }
}

fn function(served: &Served, index: usize) -> Result<&Arc<Function>, Error> {
    served.functions().get(index).ok_or_else(|| crate::errors::argument_error(format!("no function {index}")))
}

fn used(
    served: &Served,
    index: usize,
    types: Option<&str>,
    (columns, rows): (RArray, usize),
    work: impl FnOnce(&Served, &Arc<Function>, CallGroup, &dyn Input) -> Result<Results, CallError>,
) -> Result<Results, Error> {
    check_interrupts()?;
    let declared = function(served, index)?;
    let concrete = types.map(|types| for_types(declared, types)).transpose()?.map(Arc::new);
    let function = concrete.as_ref().unwrap_or(declared);
    let arguments = Arguments::new(function, columns, rows)?;
    let (watch, group) = watched(served);
    wait(served, &watch, || work(served, function, group, &arguments))
}

/// The function for arguments of the types in a text such as `(BIGINT)`.
fn for_types(declared: &Function, types: &str) -> Result<Function, Error> {
    let concrete = declared.signature.for_types(types).map_err(crate::errors::argument_error)?;
    let types = concrete.parameters.into_iter().map(|field| field.data_type).collect();
    declared.for_arguments(types).map_err(crate::errors::argument_error)
}

/// The arguments of a call.
struct Arguments<'a> {
    function: &'a Function,
    columns: Vec<(DataType, ColumnBuilder)>,
    rows: usize,
}

impl<'a> Arguments<'a> {
    /// Reads Arrays of `rows` values each. With the GVL.
    fn new(function: &'a Function, given: RArray, rows: usize) -> Result<Self, Error> {
        let signature = &function.signature;
        let mut columns = Vec::with_capacity(given.len());
        for at in 0..given.len() {
            let values: RArray = given.entry(at as isize)?;
            let fixed = signature.fixed().get(at).map(|field| &field.data_type);
            let Some(data_type) = fixed.or(signature.rest()) else {
                return Err(crate::errors::argument_error(format!(
                    "{} arguments for {signature}",
                    given.len()
                )));
            };
            let writer = columns::writer(data_type)?;
            let mut out = ColumnBuilder::new(data_type);
            for row in 0..rows {
                // The conversion of a value may call a method that shortens the Array. A missing
                // value is nil.
                let value: Value = values.entry(row as isize)?;
                if let Err(fault) = columns::write_row(&writer, value.as_raw(), &mut out) {
                    let row = (rows > 1).then_some(row + 1);
                    return Err(columns::exception(about(fault, function, at, row)).into());
                }
            }
            columns.push((data_type.clone(), out));
        }
        Ok(Self { function, columns, rows })
    }
}

/// The fault of an argument, made from the text for a fault of a result.
fn about(fault: Fault, function: &Function, at: usize, row: Option<usize>) -> Fault {
    let Fault::Refused(refused) = fault else { return fault };
    let (class, text) = *refused;
    let fields = &function.signature.parameters;
    let name = &fields[at.min(fields.len() - 1)].name;
    let place = row.map(|row| format!(" of row {row}")).unwrap_or_default();
    let text = text.strip_prefix("returned ").unwrap_or(&text);
    Fault::refused(class, format!("{}: {name}{place}: {text}", function.name()))
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), CallError> {
        let columns: Vec<Column<'_>> =
            self.columns.iter().map(|(data_type, column)| column.column(data_type)).collect();
        let pieces: Vec<_> = columns.iter().map(|column| Rows::new(column, rows.clone())).collect();
        with_arguments(self.function, (&pieces, pieces.len()), rows.len(), take)
    }
}

/// A table that is being read.
struct Reading {
    table: Table,
    served: Arc<Served>,
}

/// `Crosslane::Native::Scan`: the rows of a table function that are not read yet.
#[magnus::wrap(class = "Crosslane::Native::Scan", free_immediately)]
pub(crate) struct Scan(Owned<Reading>);

impl Scan {
    /// The next rows as Arrays; nil after the last row.
    pub(crate) fn fetch(&self) -> Result<Option<RArray>, Error> {
        let mut guard = self.0.alone()?;
        let Some(Reading { table, served }) = &mut *guard else { return Ok(None) };
        let next = check_interrupts().map_err(Error::from).and_then(|()| {
            let (watch, group) = watched(served);
            wait(served, &watch, || table.next(Caller::new(&group, 1)))
        });
        if !matches!(next, Ok(Some(_))) {
            end(&mut guard);
        }
        let Some(results) = next? else { return Ok(None) };
        let column = results.column();
        rows_of(&column, 0).map(Some)
    }

    /// Ends the scan. Returns an error if another thread is reading.
    pub(crate) fn close(&self) -> Result<(), Error> {
        end(&mut *self.0.alone()?);
        Ok(())
    }
}

/// The rows of a STRUCT column from the row `first` on, as Arrays.
fn rows_of(column: &Column<'_>, first: usize) -> Result<RArray, Error> {
    let readers = column.children.iter().map(|child| columns::reader(child.data_type));
    let readers = readers.collect::<Result<Vec<_>, _>>()?;
    columns::rows(&readers, &column.children, first..column.rows)
}

/// A stream that is being read.
struct Mapping {
    map: Map<AnyZygote>,
    function: Arc<Function>,
    /// The type of a row of the input.
    takes: DataType,
    writer: columns::Writer,
    /// The rows that are not sent yet.
    batch: ColumnBuilder,
    /// The number of rows before these.
    before: usize,
    /// Whether the input has ended.
    finished: bool,
    served: Arc<Served>,
}

impl Mapping {
    /// Whether the collected rows make a full batch.
    fn is_full(&self) -> bool {
        self.batch.rows() >= BATCH.0 || self.batch.size() >= BATCH.1
    }

    fn add(&mut self, row: Value) -> Result<bool, Error> {
        let rows = self.batch.rows();
        if let Err(fault) = columns::write_row(&self.writer, row.as_raw(), &mut self.batch) {
            self.batch.truncate(rows);
            let number = Some(self.before + rows + 1);
            return Err(columns::exception(about(fault, &self.function, 0, number)).into());
        }
        Ok(self.is_full())
    }

    /// The next results; `None` if the stream needs more rows, or has ended.
    fn next(&mut self) -> Result<Option<RArray>, Error> {
        let (watch, group) = watched(&self.served);
        loop {
            check_interrupts()?;
            let full = self.is_full();
            let map = &mut self.map;
            match wait(&self.served, &watch, || map.next(Caller::new(&group, 1)))? {
                MapStep::Output(rows, first) => return rows_of(&rows, first).map(Some),
                MapStep::Done => return Ok(None),
                MapStep::Wants => {}
            }
            let rows = self.batch.rows();
            if rows > 0 && (full || self.finished) {
                let content = std::mem::replace(&mut self.batch, ColumnBuilder::new(&self.takes));
                self.before += rows;
                self.map.put(MapInput { rows, content: Box::new(content) });
            } else if self.finished {
                self.map.end();
            } else {
                return Ok(None);
            }
        }
    }
}

/// `Crosslane::Native::Stream`: a use of a stream function, with the input that is not sent and the
/// results that are not read.
#[magnus::wrap(class = "Crosslane::Native::Stream", free_immediately)]
pub(crate) struct Stream(Owned<Mapping>);

impl Stream {
    /// Adds a row to the input. Returns whether the caller should now fetch results until there are
    /// none.
    pub(crate) fn add(&self, row: Value) -> Result<bool, Error> {
        self.0.alone()?.as_mut().map_or(Ok(true), |mapping| mapping.add(row))
    }

    /// Ends the input.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if let Some(mapping) = &mut *self.0.alone()? {
            mapping.finished = true;
        }
        Ok(())
    }

    /// The next results as an Array of rows; nil if the stream needs more rows, or has ended.
    pub(crate) fn fetch(&self) -> Result<Option<RArray>, Error> {
        let mut guard = self.0.alone()?;
        let Some(mapping) = &mut *guard else {
            return Err(failure(None, "the stream was closed"));
        };
        let next = mapping.next();
        if next.is_err() {
            end(&mut guard);
        }
        next
    }

    /// Ends the stream. Returns an error if another thread is reading.
    pub(crate) fn close(&self) -> Result<(), Error> {
        end(&mut *self.0.alone()?);
        Ok(())
    }
}
