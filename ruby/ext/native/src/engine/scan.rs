//! The program's blocks as table functions.
//!
//! Binding reads the arguments. The start of a scan asks Ruby for its parts (`Crosslane::Scan`), through any host
//! lane; each worker then holds a lane of its own until it finds no more rows, and has the next chunk made
//! while DuckDB takes the last. A scan that ends early drops its lanes, which ends their blocks.

use crate::engine::database::{Connection, OK};
use crate::engine::rows::Chunk;
use crate::engine::session::{Session, Sessions, failure, lock};
use crate::engine::database::c_string;
use crate::engine::host::{self, Block};
use crosslane::batch::{self, Column, FAILURE, Header, RESULT};
use crosslane::call::{Caller, Output, call};
use crosslane::lane::{Lane, Patience};
use crosslane::pool::PooledLane;
use crosslane::stats::now;
use crosslane::{ColumnBuilder, DataType, Error, Failure, Field, Function, Library, Place, values};
use crosslane_process::{ProcessLane, Zygote};
use crosslane_vectors::guard::{drop_box, error_text, guard};
use crosslane_vectors::{Arguments, Context, LogicalType, Results};
use libduckdb_sys as ffi;
use std::ffi::CString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a waiting worker looks for cancellation and death.
const TICK: Duration = Duration::from_millis(10);

/// Scans that are over, for Ruby to forget.
static OVER: Mutex<Vec<i64>> = Mutex::new(Vec::new());

/// What a registered table function carries.
struct Registered {
    /// Returns a scan's number.
    open: Block,
    /// Returns a scan's rows as STRUCTs.
    rows: Block,
    names: Vec<CString>,
    parallel: bool,
    sessions: Arc<Sessions>,
}

impl Registered {
    fn columns(&self) -> &[Field] {
        match &self.rows.function.signature.returns {
            DataType::Struct(fields) => fields,
            _ => &[],
        }
    }

    fn raised(&self, failure: Failure) -> Error {
        let function = self.rows.function.name().into();
        Error::Raised { function, failure: Box::new(failure), place: Place::default() }
    }
}

/// The arguments of one use of the function.
struct Bound {
    arguments: Chunk,
    context: Context,
}

// SAFETY: the chunk is only read after binding.
unsafe impl Send for Bound {}
// SAFETY: as above.
unsafe impl Sync for Bound {}

/// One scan.
struct Scan {
    number: i64,
    session: Arc<Session>,
    host: Arc<Library<Zygote>>,
}

impl Drop for Scan {
    fn drop(&mut self) {
        lock(&OVER).push(self.number);
    }
}

/// One worker's part in a scan.
#[derive(Default)]
struct Part {
    lane: Option<PooledLane<ProcessLane>>,
    over: bool,
}

/// The scans that ended since this was asked last; nothing if there are none.
pub(crate) fn ended() -> Option<Vec<i64>> {
    let ended = std::mem::take(&mut *lock(&OVER));
    (!ended.is_empty()).then_some(ended)
}

/// Registers a table function, of which Ruby has put both functions into the host's list.
pub(crate) fn register(
    connection: &Connection,
    open: (u32, String),
    rows: (u32, String),
    parallel: bool,
) -> Result<(), magnus::Error> {
    let [open, rows] = [open, rows].map(|(number, declared)| Block::new(number, &declared));
    let (open, rows) = (open?, rows?);
    let link = connection.link()?;
    let name = c_string(open.function.name())?;
    let registered =
        Registered { open, rows, names: Vec::new(), parallel, sessions: Arc::clone(&link.database.sessions) };
    let names = registered.columns().iter().map(|field| c_string(&field.name));
    let registered = Registered { names: names.collect::<Result<_, _>>()?, ..registered };
    let types = registered.open.function.signature.parameters.iter().map(|field| LogicalType::new(&field.data_type));
    let types = types.collect::<Result<Vec<_>, _>>().map_err(|error| failure(None, &error.to_string()))?;
    // SAFETY: all handles live across the calls; the extra info is freed by DuckDB.
    let state = unsafe {
        let mut function = ffi::duckdb_create_table_function();
        ffi::duckdb_table_function_set_name(function, name.as_ptr());
        types.iter().for_each(|parameter| {
            ffi::duckdb_table_function_add_parameter(function, parameter.raw());
        });
        let registered = Box::into_raw(Box::new(registered)).cast();
        ffi::duckdb_table_function_set_extra_info(function, registered, Some(drop_box::<Registered>));
        ffi::duckdb_table_function_set_bind(function, Some(bind));
        ffi::duckdb_table_function_set_init(function, Some(init));
        ffi::duckdb_table_function_set_local_init(function, Some(local_init));
        ffi::duckdb_table_function_set_function(function, Some(execute));
        let state = ffi::duckdb_register_table_function(link.raw, function);
        ffi::duckdb_destroy_table_function(&raw mut function);
        state
    };
    if state == OK {
        return Ok(());
    }
    Err(failure(None, &format!("DuckDB refused the table function {name:?}; another may have this name")))
}

unsafe extern "C" fn bind(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB passes its own info and the extra info that was registered; what it copies lives across the
    // calls, and what it allocates is destroyed.
    let outcome = guard(|| unsafe {
        let registered = &*ffi::duckdb_bind_get_extra_info(info).cast::<Registered>();
        for (name, field) in registered.names.iter().zip(registered.columns()) {
            let logical = LogicalType::new(&field.data_type)?;
            ffi::duckdb_bind_add_result_column(info, name.as_ptr(), logical.raw());
        }
        let parameters = &registered.open.function.signature.parameters;
        // A chunk needs a column, also if there are no parameters.
        let filler = [DataType::Boolean];
        let types = parameters.iter().map(|field| &field.data_type);
        let types: Vec<&DataType> =
            if parameters.is_empty() { filler.iter().collect() } else { types.collect() };
        let logical = types.into_iter().map(LogicalType::new).collect::<Result<Vec<_>, _>>()?;
        let arguments = Chunk::new(&logical)?;
        for index in 0..parameters.len() as ffi::idx_t {
            let mut value = ffi::duckdb_bind_get_parameter(info, index);
            ffi::duckdb_vector_reference_value(ffi::duckdb_data_chunk_get_vector(arguments.0, index), value);
            ffi::duckdb_destroy_value(&raw mut value);
        }
        ffi::duckdb_data_chunk_set_size(arguments.0, 1);
        let bound = Box::new(Bound { arguments, context: Context::of_bind(info) });
        ffi::duckdb_bind_set_bind_data(info, Box::into_raw(bound).cast(), Some(drop_box::<Bound>));
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_bind_set_error(info, error_text(&error).as_ptr()) };
    }
}

/// The number that opening a scan returns.
struct Number(i64);

impl Output for Number {
    fn accept(&mut self, _first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.0 = results.value(0);
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}

unsafe extern "C" fn init(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB passes its own info, and what was registered and bound.
    let outcome = guard(|| unsafe {
        let registered = &*ffi::duckdb_init_get_extra_info(info).cast::<Registered>();
        let bound = &*ffi::duckdb_init_get_bind_data(info).cast::<Bound>();
        let session = registered.sessions.of(bound.context.connection);
        let host = host::current()?;
        let parameters = &registered.open.function.signature.parameters;
        let types = parameters.iter().map(|field| &field.data_type).collect();
        let arguments = Arguments::new(bound.arguments.0, types);
        let mut number = Number(0);
        let opened = call(&host, &registered.open.function, Caller::new(&session.group, 1), &arguments, &mut number);
        session.settle(opened)?;
        let scan = Box::new(Scan { number: number.0, session, host });
        ffi::duckdb_init_set_init_data(info, Box::into_raw(scan).cast(), Some(drop_box::<Scan>));
        let threads = if registered.parallel { bound.context.threads } else { 1 };
        ffi::duckdb_init_set_max_threads(info, threads as ffi::idx_t);
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_init_set_error(info, error_text(&error).as_ptr()) };
    }
}

unsafe extern "C" fn local_init(info: ffi::duckdb_init_info) {
    let part = Box::into_raw(Box::<Part>::default()).cast();
    // SAFETY: DuckDB passes its own info, and frees the part.
    unsafe { ffi::duckdb_init_set_init_data(info, part, Some(drop_box::<Part>)) };
}

unsafe extern "C" fn execute(info: ffi::duckdb_function_info, output: ffi::duckdb_data_chunk) {
    // SAFETY: DuckDB passes its own info, what was registered, the scan, this worker's part (to one thread at a
    // time), and a chunk of the declared columns.
    let outcome = guard(|| unsafe {
        let registered = &*ffi::duckdb_function_get_extra_info(info).cast::<Registered>();
        let scan = &*ffi::duckdb_function_get_init_data(info).cast::<Scan>();
        let part = &mut *ffi::duckdb_function_get_local_init_data(info).cast::<Part>();
        let rows = match part.next(registered, scan)? {
            None => 0,
            Some(lane) => {
                let types = std::iter::once(&registered.rows.function.signature.returns);
                let columns = batch::columns(lane.frame(), types)?;
                if let Some((row, what)) = values::unfit(&columns[0]).first_key_value() {
                    return Err(registered.raised(Failure::unfit(&format!("{what}, in row {}", row + 1))));
                }
                let room = ffi::duckdb_vector_size() as usize;
                for (index, child) in columns[0].children.iter().enumerate() {
                    let vector = ffi::duckdb_data_chunk_get_vector(output, index as ffi::idx_t);
                    Results::new(vector, child.data_type, room).accept(0, child)?;
                }
                columns[0].rows
            }
        };
        ffi::duckdb_data_chunk_set_size(output, rows as ffi::idx_t);
        if rows > 0 { part.ask(registered, scan) } else { Ok(()) }
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_function_set_error(info, error_text(&error).as_ptr()) };
    }
}

impl Part {
    /// Asks for the next chunk.
    fn ask(&mut self, registered: &Registered, scan: &Scan) -> Result<(), Error> {
        let lane = match &mut self.lane {
            Some(lane) => lane,
            None => {
                let group = &scan.session.group;
                let begun = now();
                let lane = scan.host.pool.check_out(|| group.should_end(begun))?;
                let cancelled = || Error::Cancelled { function: registered.rows.function.name().into() };
                self.lane.insert(lane.ok_or_else(cancelled)?)
            }
        };
        // DuckDB may have moved the scan to another of its threads.
        lane.hold();
        let mut number = ColumnBuilder::new(&DataType::BigInt);
        number.fixed(scan.number);
        match lane.submit(registered.rows.function.index, 1, &number) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(self.died(registered, "it has no room for a question".into())),
            Err(error) => Err(self.died(registered, error.to_string())),
        }
    }

    fn died(&mut self, registered: &Registered, how: String) -> Error {
        self.lane = None;
        Error::LaneDied { function: registered.rows.function.name().into(), how, place: Place::default() }
    }

    /// The lane with the next chunk; `None` if there are no more rows.
    fn next(&mut self, registered: &Registered, scan: &Scan) -> Result<Option<&ProcessLane>, Error> {
        if self.over {
            return Ok(None);
        }
        if self.lane.is_none() {
            self.ask(registered, scan)?;
        }
        let header = self.wait(registered, scan)?;
        match header.kind {
            RESULT if header.rows > 0 => {}
            RESULT => {
                self.over = true;
                if let Some(lane) = self.lane.take() {
                    lane.give_back();
                }
            }
            FAILURE => {
                self.over = true;
                let Some(lane) = self.lane.take() else { return Ok(None) };
                let text = batch::failure_text(lane.frame())?;
                let failure: Failure =
                    serde_json::from_slice(text).map_err(|error| Error::Engine(error.to_string()))?;
                lane.give_back();
                scan.session.settle(Err(registered.raised(failure)))?;
            }
            kind => return Err(self.died(registered, format!("a reply of kind {kind}"))),
        }
        Ok(self.lane.as_deref())
    }

    fn wait(&mut self, registered: &Registered, scan: &Scan) -> Result<Header, Error> {
        let group = &scan.session.group;
        let begun = now();
        loop {
            let Some(lane) = &mut self.lane else { return Err(self.died(registered, "no lane".into())) };
            match lane.try_collect() {
                Ok(Some(header)) => return Ok(header),
                Ok(None) => {}
                Err(error) => return Err(self.died(registered, error.to_string())),
            }
            ProcessLane::wait_any(&mut [&mut **lane], Patience::Spin, TICK);
            if group.should_end(begun) {
                self.lane = None;
                return Err(Error::Cancelled { function: registered.rows.function.name().into() });
            }
            let dead = lane.check().err();
            if let Some(error) = dead {
                // Its last words may be in the ring.
                if let Ok(Some(header)) = lane.try_collect() {
                    return Ok(header);
                }
                return Err(self.died(registered, error.to_string()));
            }
        }
    }
}
