//! `crosslane_map('SELECT ...', 'function')`: the rows of a query as the input of a stream function.
//!
//! The query runs on a connection of its own, by a thread of its own, as its rows are wanted. So it makes the next rows
//! while the functions work on the last, needs none of the engine's threads, and can be interrupted whatever it does.
//! What reads the results drives the lanes ([`Map`]). Connection and thread end with the scan, which waits for them.

use crate::connection::Connection;
use crate::database::{Database, Entry};
use crate::names;
use crate::signals;
use crosslane::call::{CallGroup, Caller, Map, MapInput, MapOptions, MapStep};
use crosslane::stats::now;
use crosslane::{DataType, Error, Field, Function, Kind};
use crosslane_remote::AnyZygote;
use crosslane_vectors::callback::{drop_box, error_text, guard};
use crosslane_vectors::{Context, LogicalType, PendingRows, Projection, StreamInput, query_for};
use libduckdb_sys as ffi;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

const NAME: &CStr = c"crosslane_map";
const ORDERED: &CStr = c"ordered";
const DEPTH: &CStr = c"depth";
const CARDINALITY: &CStr = c"cardinality";
/// How many batches a lane has, unless the user says.
const USUAL_DEPTH: i64 = 2;
/// The most that a user may say.
const MOST_DEPTH: i64 = 64;
/// How many rows the results have, about, unless the user says: so many that DuckDB does not put them into a hash table
/// where the other side of a join is a table of usual size.
const USUAL_CARDINALITY: i64 = 1_000_000;
/// How often who waits for the query looks for results, and whether it is still to wait.
const TICK: Duration = Duration::from_millis(1);

/// Makes the function callable on all connections of the database.
pub(crate) fn register(database: &Arc<Database>, connection: &Connection) -> Result<(), Error> {
    let (text, flag) = (LogicalType::new(&DataType::Varchar)?, LogicalType::new(&DataType::Boolean)?);
    let number = LogicalType::new(&DataType::BigInt)?;
    // SAFETY: all handles live across the calls; the extra info is freed by DuckDB.
    let state = unsafe {
        let mut function = ffi::duckdb_create_table_function();
        ffi::duckdb_table_function_set_name(function, NAME.as_ptr());
        ffi::duckdb_table_function_add_parameter(function, text.raw());
        ffi::duckdb_table_function_add_parameter(function, text.raw());
        ffi::duckdb_table_function_add_named_parameter(function, ORDERED.as_ptr(), flag.raw());
        ffi::duckdb_table_function_add_named_parameter(function, DEPTH.as_ptr(), number.raw());
        ffi::duckdb_table_function_add_named_parameter(function, CARDINALITY.as_ptr(), number.raw());
        let extra = Box::into_raw(Box::new(Arc::clone(database))).cast();
        ffi::duckdb_table_function_set_extra_info(function, extra, Some(drop_box::<Arc<Database>>));
        ffi::duckdb_table_function_set_bind(function, Some(bind));
        ffi::duckdb_table_function_set_init(function, Some(init));
        ffi::duckdb_table_function_set_function(function, Some(execute));
        ffi::duckdb_table_function_supports_projection_pushdown(function, true);
        let state = ffi::duckdb_register_table_function(connection.raw(), function);
        ffi::duckdb_destroy_table_function(&raw mut function);
        state
    };
    if state != ffi::duckdb_state_DuckDBSuccess {
        return Err(Error::Engine(format!("DuckDB refused {}", NAME.to_string_lossy())));
    }
    Ok(())
}

/// One use of it in a statement.
struct Bound {
    /// The query, made to give what the function takes.
    query: String,
    /// Where it looks for tables.
    search_path: Option<String>,
    entry: Arc<Entry>,
    function: Arc<Function>,
    options: MapOptions,
    /// How many rows the results have, about.
    cardinality: i64,
    context: Context,
}

/// A value of DuckDB's that is destroyed.
struct Value(ffi::duckdb_value);

impl Value {
    fn is_given(&self) -> bool {
        // SAFETY: the value lives.
        unsafe { !self.0.is_null() && !ffi::duckdb_is_null_value(self.0) }
    }

    fn text(&self) -> Option<String> {
        // SAFETY: the value lives; the text is given to the caller.
        self.is_given().then(|| unsafe {
            let text = ffi::duckdb_get_varchar(self.0);
            let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
            ffi::duckdb_free(text.cast());
            owned
        })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_value(&raw mut self.0) };
    }
}

unsafe extern "C" fn bind(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB passes its own info and the extra info that was registered, and copies what it is given.
    let outcome = guard(|| unsafe {
        let database = &*ffi::duckdb_bind_get_extra_info(info).cast::<Arc<Database>>();
        let bound = bound(database, info)?;
        for column in columns(&bound.function.signature.returns) {
            let name = CString::new(column.name.as_str());
            let name = name.map_err(|error| Error::Engine(error.to_string()))?;
            let logical = LogicalType::new(&column.data_type)?;
            ffi::duckdb_bind_add_result_column(info, name.as_ptr(), logical.raw());
        }
        ffi::duckdb_bind_set_cardinality(info, bound.cardinality as ffi::idx_t, false);
        let bound = Box::into_raw(Box::new(bound)).cast();
        ffi::duckdb_bind_set_bind_data(info, bound, Some(drop_box::<Bound>));
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_bind_set_error(info, error_text(&error).as_ptr()) };
    }
}

/// The columns of a table.
fn columns(table: &DataType) -> &[Field] {
    match table {
        DataType::Struct(columns) => columns,
        _ => &[],
    }
}

/// # Safety
/// The info must be that of a `bind` callback of the registered function.
unsafe fn bound(database: &Arc<Database>, info: ffi::duckdb_bind_info) -> Result<Bound, Error> {
    // SAFETY: as the caller says; each value and the context are destroyed once.
    unsafe {
        let text = |index, what: &str| {
            let value = Value(ffi::duckdb_bind_get_parameter(info, index));
            value.text().ok_or_else(|| Error::Engine(format!("{what} is NULL")))
        };
        let (query, name) = (text(0, "the query")?, text(1, "the name of the function")?);
        let ordered = Value(ffi::duckdb_bind_get_named_parameter(info, ORDERED.as_ptr()));
        let ordered = !ordered.is_given() || ffi::duckdb_get_bool(ordered.0);
        let depth = Value(ffi::duckdb_bind_get_named_parameter(info, DEPTH.as_ptr()));
        let depth = if depth.is_given() { ffi::duckdb_get_int64(depth.0) } else { USUAL_DEPTH };
        if !(1..=MOST_DEPTH).contains(&depth) {
            return Err(Error::Engine(format!(
                "depth is a whole number from 1 to {MOST_DEPTH}, not {depth}"
            )));
        }
        let cardinality = Value(ffi::duckdb_bind_get_named_parameter(info, CARDINALITY.as_ptr()));
        let cardinality =
            if cardinality.is_given() { ffi::duckdb_get_int64(cardinality.0) } else { USUAL_CARDINALITY };
        if cardinality < 0 {
            return Err(Error::Engine(format!("cardinality is a number of rows, not {cardinality}")));
        }
        let mut context = std::ptr::null_mut();
        ffi::duckdb_table_function_get_client_context(info, &raw mut context);
        let mut scope = 0;
        let path =
            ffi::duckdb_client_context_get_config_option(context, c"search_path".as_ptr(), &raw mut scope);
        let search_path = Value(path).text().filter(|path| !path.is_empty());
        let context = Context::take(context);

        let (entry, function) = stream(database, &name)?;
        let own = open(database, search_path.as_deref())?;
        // The optimizer would call functions of constants: that can take long, nothing can interrupt it here, and it does it
        // again for the query that runs.
        let _ = own.run("PRAGMA disable_optimizer");
        let wanted = function.signature.parameters.first().map_or(&[][..], |table| columns(&table.data_type));
        let query = query_for(own.raw(), &query, wanted)?;
        let options = MapOptions { lanes: context.threads, depth: depth as usize, ordered };
        Ok(Bound { query, search_path, entry, function, options, cardinality, context })
    }
}

/// Opens a connection for a query, which looks for tables where the user's does.
fn open(database: &Database, search_path: Option<&str>) -> Result<Connection, Error> {
    let own = database.further_connection()?;
    // What a database with a locked configuration refuses, the query does without.
    if !loses_errors() {
        // A full buffer stops the query, but DuckDB gives its first chunk only when the buffer is full, and a MB of small rows
        // may take long.
        let _ = own.run("SET streaming_buffer_size = '1KB'");
    }
    // The client for Python would look for unknown tables among the variables of the thread that binds the query, and not find
    // them where it runs. Other clients have no such option.
    let _ = own.run("SET SESSION python_enable_replacements = false");
    if let Some(path) = search_path {
        own.run(&format!("SET search_path = '{}'", path.replace('\'', "''")))?;
    }
    Ok(own)
}

/// Whether DuckDB may say that a streaming query was interrupted where its thread has failed: 1.5 does when the buffer is full.
fn loses_errors() -> bool {
    // SAFETY: the text is DuckDB's own and lasts.
    unsafe { CStr::from_ptr(ffi::duckdb_library_version()) }.to_bytes().starts_with(b"v1.")
}

/// The stream function of a name.
fn stream(database: &Database, name: &str) -> Result<(Arc<Entry>, Arc<Function>), Error> {
    let entry = database.catalog.stream(name);
    let gone = match entry.map(|entry| (entry.current(), entry)) {
        Some((Ok(current), entry)) => return Ok((entry, current.function)),
        Some((Err(gone), _)) => Some(gone),
        None => None,
    };
    let libraries = database.catalog.libraries();
    let all = libraries.iter().flat_map(|library| library.functions.iter().map(move |it| (library, it)));
    let all = all.filter(|(library, function)| database.catalog.is_current(library, function));
    let all: Vec<_> = all.map(|(_, function)| function).collect();
    if let Some(other) = all.iter().find(|function| function.name().eq_ignore_ascii_case(name)) {
        let (name, kind) = (other.name(), other.spec.kind);
        let call = if kind == Kind::Table { "FROM" } else { "SELECT" };
        return Err(Error::Engine(format!(
            "{name} is of the kind {}: call it in SQL itself, {call} {name}(...). crosslane_map takes a function whose \
             parameter is a table: {name}(rows TABLE(...)) -> TABLE(...)",
            kind.name()
        )));
    }
    let streams = all.iter().filter(|function| function.spec.kind == Kind::Stream);
    let streams = streams.map(|function| function.name().to_owned()).collect();
    let otherwise =
        "FROM crosslane_functions() lists all of them, and those of the kind stream are for crosslane_map";
    let unknown = |connection: &Connection| {
        Ok(names::unknown(connection, "stream function", name, &streams, otherwise))
    };
    Err(gone.map_or_else(|| database.with_connection(unknown), Ok).unwrap_or_else(|error| error))
}

unsafe extern "C" fn init(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB passes its own info, and what was registered and bound.
    let outcome = guard(|| unsafe {
        let database = &*ffi::duckdb_init_get_extra_info(info).cast::<Arc<Database>>();
        let bound = &*ffi::duckdb_init_get_bind_data(info).cast::<Bound>();
        let scan = Scan::new(database, bound, Projection::of(info, &bound.function.signature.returns)?)?;
        let scan = Box::into_raw(Box::new(scan)).cast();
        ffi::duckdb_init_set_init_data(info, scan, Some(drop_box::<Scan>));
        // Results come in order, and the lanes are what works.
        ffi::duckdb_init_set_max_threads(info, 1);
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_init_set_error(info, error_text(&error).as_ptr()) };
    }
}

unsafe extern "C" fn execute(info: ffi::duckdb_function_info, output: ffi::duckdb_data_chunk) {
    // SAFETY: DuckDB passes its own info, what `init` made (to one thread at a time), and a chunk of the declared
    // columns.
    let outcome = guard(|| unsafe {
        let scan = &mut *ffi::duckdb_function_get_init_data(info).cast::<Scan>();
        let rows = scan.next(output);
        if !matches!(rows, Ok(1..)) {
            scan.state = State::Over;
        }
        ffi::duckdb_data_chunk_set_size(output, rows? as ffi::idx_t);
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_function_set_error(info, error_text(&error).as_ptr()) };
    }
}

/// It in a query that runs.
struct Scan {
    database: Arc<Database>,
    query: String,
    search_path: Option<String>,
    function: Arc<Function>,
    /// What is cancelled with the user's connection.
    group: Arc<CallGroup>,
    begun: u64,
    options: MapOptions,
    projection: Projection,
    portions: PendingRows,
    state: State,
}

enum State {
    /// Nobody has asked for a row yet.
    Begun(Map<AnyZygote>),
    Open(Map<AnyZygote>, Feed),
    Over,
}

impl Scan {
    fn new(database: &Arc<Database>, bound: &Bound, projection: Projection) -> Result<Self, Error> {
        let current = bound.entry.current()?;
        if current.function.signature != bound.function.signature {
            return Err(Error::Engine(format!(
                "{} has other columns than when the statement was prepared; prepare it again",
                current.function.signature
            )));
        }
        let begun = now();
        let users = signals::group_of(&database.groups, bound.context.client);
        let group = CallGroup::with_stop(move || users.should_end(begun));
        Ok(Self {
            database: Arc::clone(database),
            query: bound.query.clone(),
            search_path: bound.search_path.clone(),
            function: Arc::clone(&current.function),
            group: Arc::new(group),
            begun,
            options: bound.options,
            projection,
            portions: PendingRows::default(),
            state: State::Begun(Map::new(current.library, current.function, bound.options)?),
        })
    }

    /// Puts the next rows into a chunk. Returns how many; 0 if there are no more.
    ///
    /// # Safety
    /// The chunk must be an empty one of the projection's columns.
    unsafe fn next(&mut self, output: ffi::duckdb_data_chunk) -> Result<usize, Error> {
        // SAFETY: as the caller says.
        let rows = unsafe { self.portions.next(output) }?;
        if rows > 0 {
            return Ok(rows);
        }
        self.open()?;
        let State::Open(map, feed) = &mut self.state else { return Ok(0) };
        loop {
            let caller = Caller::since(&self.group, 1, self.begun);
            match map.next(caller)? {
                MapStep::Done => return Ok(0),
                MapStep::Output(batch, first) => {
                    // SAFETY: as above; the batch has the columns of the function's table.
                    return unsafe { self.portions.begin(&batch, first, &self.projection, output) };
                }
                MapStep::Wants => {}
            }
            match feed.next() {
                Some(Ok(Some(batch))) => map.put(batch),
                Some(Ok(None)) => map.end(),
                Some(Err(error)) => return Err(error),
                None if self.group.should_end(self.begun) => {
                    return Err(Error::Cancelled { function: self.function.name().into() });
                }
                None => {
                    // The query may be slower than the function.
                    if let Some((batch, first)) = map.ready(caller)? {
                        // SAFETY: as above.
                        return unsafe { self.portions.begin(&batch, first, &self.projection, output) };
                    }
                }
            }
        }
    }

    fn open(&mut self) -> Result<(), Error> {
        if let State::Begun(_) = self.state {
            let own = open(&self.database, self.search_path.as_deref())?;
            let rows = self.function.signature.parameters.first().map(|table| table.data_type.clone());
            let rows = Arc::new(rows.unwrap_or(DataType::Any));
            let feed = Feed::new(&self.database, own, self.query.clone(), rows, self.options.lanes)?;
            if let State::Begun(map) = std::mem::replace(&mut self.state, State::Over) {
                self.state = State::Open(map, feed);
            }
        }
        Ok(())
    }
}

/// What the query's thread gives: a batch, the end, or an error.
type Fed = Result<Option<MapInput>, Error>;

/// The query, on a thread of its own. It ends when this is dropped.
struct Feed {
    batches: Option<Receiver<Fed>>,
    database: Arc<Database>,
    connection: Arc<Own>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

/// The connection of a query. One thread uses it, and another may interrupt it.
struct Own {
    connection: Connection,
    /// DuckDB's number of it.
    number: u64,
}

// SAFETY: beside the thread that runs the query others only interrupt it, which any thread may.
unsafe impl Sync for Own {}

impl Feed {
    fn new(
        database: &Arc<Database>,
        connection: Connection,
        query: String,
        rows: Arc<DataType>,
        lanes: usize,
    ) -> Result<Self, Error> {
        // One batch waits here, and the next is made meanwhile.
        let (sender, batches) = sync_channel(1);
        let own = Arc::new(Own { number: connection.number_of_its_own(), connection });
        let runs = Arc::clone(&own);
        let run = move || run(&runs, &query, rows, lanes, &sender);
        let thread = std::thread::Builder::new().name("crosslane-query".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Engine(format!("no thread: {error}")))?;
        Ok(Self {
            batches: Some(batches),
            database: Arc::clone(database),
            connection: own,
            thread: Some(thread),
        })
    }

    /// The next batch; `None` if it is not there after a moment.
    fn next(&self) -> Option<Fed> {
        match self.batches.as_ref()?.recv_timeout(TICK) {
            Ok(fed) => Some(fed),
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Error::Engine("the query's thread has ended".into())))
            }
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

/// Runs the query as long as its rows are wanted.
fn run(own: &Own, query: &str, rows: Arc<DataType>, lanes: usize, sender: &SyncSender<Fed>) {
    let send = || -> Result<(), Error> {
        // SAFETY: the connection outlives the source, and this thread alone uses it. The query was made for these
        // columns.
        let mut source = unsafe { StreamInput::new(own.connection.raw(), query, rows.clone(), lanes)? };
        while let Some(batch) = source.next_batch()? {
            if sender.send(Ok(Some(batch))).is_err() {
                break;
            }
        }
        Ok(())
    };
    let ended = guard(send);
    // Whoever does not want rows any more does not want to know, either.
    let _ = sender.send(ended.map(|()| None));
}

impl Drop for Feed {
    fn drop(&mut self) {
        // What the thread sends finds nobody.
        drop(self.batches.take());
        let Some(thread) = self.thread.take() else { return };
        // A query that has just begun forgets that it was interrupted before.
        while !thread.is_finished() {
            // SAFETY: the connection is open.
            unsafe { ffi::duckdb_interrupt(self.connection.connection.raw()) };
            self.database.groups.cancel(self.connection.number);
            std::thread::sleep(Duration::from_micros(500));
        }
        let _ = thread.join();
    }
}
