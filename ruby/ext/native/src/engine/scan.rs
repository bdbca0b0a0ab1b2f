//! The program's blocks as table functions.
//!
//! Binding reads the arguments, and has Ruby decide the columns if the function's signature leaves them open. The start of
//! a scan tells Ruby which columns the query wants, and asks for the scan's parts (`Crosslane::Scan`), through any host
//! lane; each worker then holds a lane of its own until it finds no more rows ([`call::Scan`]), and the next chunk is made
//! while DuckDB takes the last. A scan that ends early is cancelled, which ends its blocks.

use crate::engine::database::c_string;
use crate::engine::database::{Connection, OK};
use crate::engine::host::{self, Block};
use crate::engine::projection::Opening;
use crate::engine::scalar;
use crate::engine::session::{Session, Sessions, failure, lock};
use crosslane::batch::{Column, Encode};
use crosslane::call::{self, Caller, Input, Output, call};
use crosslane::stats::now;
use crosslane::{ColumnBuilder, DataType, Error, Field, Function, Library};
use crosslane_gvl::{Stand, stand};
use crosslane_process::Zygote;
use crosslane_vectors::guard::{drop_box, error_text, guard};
use crosslane_vectors::{Arguments, Chunk, Context, LogicalType, Projection, Results};
use libduckdb_sys as ffi;
use magnus::{RHash, Value};
use std::ffi::CString;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Scans that are over, for Ruby to forget.
static OVER: Mutex<Vec<i64>> = Mutex::new(Vec::new());

/// What a registered table function carries.
struct Registered {
    /// Returns a scan's number.
    open: Block,
    /// Returns a scan's rows as STRUCTs.
    rows: Block,
    /// Returns the columns of one use, as a signature has them; without, they are those of the rows.
    columns: Option<Block>,
    /// For each parameter, whether SQL names it.
    named: Vec<bool>,
    parallel: bool,
    sessions: Arc<Sessions>,
}

impl Registered {
    /// The parameters that are known when one use is bound: all but the columns that the query wants.
    fn parameters(&self) -> &[Field] {
        let all = &self.open.function.signature.parameters;
        &all[..all.len() - 1]
    }
}

/// The arguments of one use of the function.
struct Bound {
    arguments: Chunk,
    /// A STRUCT of its columns.
    rows: DataType,
    context: Context,
}

// SAFETY: the chunk is only read after binding.
unsafe impl Send for Bound {}
// SAFETY: as above.
unsafe impl Sync for Bound {}

/// One scan.
struct Scan {
    number: Arc<Number>,
    projection: Projection,
    session: Arc<Session>,
    host: Arc<Library<Zygote>>,
    begun: u64,
}

/// The number that opening a scan returns. Ruby may forget it when no part of the scan asks for rows any more.
struct Number(i64);

impl Drop for Number {
    fn drop(&mut self) {
        lock(&OVER).push(self.0);
    }
}

/// What asks for the rows of a scan.
struct Ask(Arc<Number>);

impl Input for Ask {
    fn rows(&self) -> usize {
        1
    }

    fn slice(&self, _rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        // Opening the scan has seen to its parts, and to the columns that the query wants.
        let mut partition = ColumnBuilder::new(&DataType::Blob);
        partition.null();
        let mut wanted = ColumnBuilder::new(&DataType::List(Arc::new(DataType::Integer)));
        wanted.null();
        let mut number = ColumnBuilder::new(&DataType::BigInt);
        number.fixed(self.0.0);
        take(&vec![partition, wanted, number]);
        Ok(())
    }
}

/// One worker's part in a scan.
#[derive(Default)]
enum Part {
    #[default]
    New,
    Open(Box<call::Scan<Zygote, Ask>>),
    Over,
}

/// Takes the scans that ended since this was asked last out of Ruby's lists: `scans` has each one's list. With the GVL; for
/// the reason of [`host::forget_ended`].
pub(crate) fn forget_ended(scans: RHash) -> Result<(), magnus::Error> {
    let ended = std::mem::take(&mut *lock(&OVER));
    ended.into_iter().try_for_each(|number| match scans.delete::<_, Option<RHash>>(number)? {
        Some(list) => list.delete::<_, Value>(number).map(drop),
        None => Ok(()),
    })
}

/// A function's number and its declaration.
type Declared = (u32, String);

/// Registers a table function, of which Ruby has put the functions into the host's list: that which opens a scan, its
/// rows, and what decides its columns, if that is left open. `named` are the parameters that SQL names.
pub(crate) fn register(
    connection: &Connection,
    functions: (Declared, Declared, Option<Declared>),
    named: Vec<String>,
    parallel: bool,
) -> Result<(), magnus::Error> {
    let block = |(number, declared): Declared| Block::new(number, &declared);
    let (open, rows, columns) = functions;
    let (open, rows, columns) = (block(open), block(rows), columns.map(block).transpose());
    let (open, rows, columns) = (open?, rows?, columns?);
    let link = connection.link()?;
    let name = c_string(open.function.name())?;
    let parameters = &open.function.signature.parameters;
    // What is decided for one use, and what one scan wants, are no parameters of SQL's.
    let parameters = &parameters[..parameters.len() - usize::from(columns.is_some()) - 1];
    let names =
        parameters.iter().map(|field| named.contains(&field.name).then(|| c_string(&field.name)).transpose());
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let types = parameters.iter().map(|field| LogicalType::new(&field.data_type));
    let types = types.collect::<Result<Vec<_>, _>>().map_err(|error| failure(None, &error.to_string()))?;
    let sessions = Arc::clone(&link.database.sessions);
    // SAFETY: all handles live across the calls; the extra info is freed by DuckDB.
    let state = unsafe {
        let mut function = ffi::duckdb_create_table_function();
        ffi::duckdb_table_function_set_name(function, name.as_ptr());
        for (parameter, named) in types.iter().zip(&names) {
            match named {
                None => ffi::duckdb_table_function_add_parameter(function, parameter.raw()),
                Some(name) => {
                    ffi::duckdb_table_function_add_named_parameter(function, name.as_ptr(), parameter.raw());
                }
            }
        }
        let named = names.iter().map(Option::is_some).collect();
        let registered = Registered { open, rows, columns, named, parallel, sessions };
        let registered = Box::into_raw(Box::new(registered)).cast();
        ffi::duckdb_table_function_set_extra_info(function, registered, Some(drop_box::<Registered>));
        ffi::duckdb_table_function_set_bind(function, Some(bind));
        ffi::duckdb_table_function_set_init(function, Some(init));
        ffi::duckdb_table_function_set_local_init(function, Some(local_init));
        ffi::duckdb_table_function_set_function(function, Some(execute));
        ffi::duckdb_table_function_supports_projection_pushdown(function, true);
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
        let context = Context::of_bind(info);
        let parameters = registered.parameters();
        let arguments = crosslane_vectors::arguments(info, parameters, &registered.named)?;
        let rows = match &registered.columns {
            None => registered.rows.function.signature.returns.clone(),
            Some(decide) => registered.decide(&decide.function, &arguments, context.connection)?,
        };
        let DataType::Struct(fields) = &rows else {
            return Err(Error::Engine(format!("{rows} has no columns")));
        };
        for field in &**fields {
            let name = CString::new(&*field.name).map_err(|error| Error::Engine(error.to_string()))?;
            let logical = LogicalType::new(&field.data_type)?;
            ffi::duckdb_bind_add_result_column(info, name.as_ptr(), logical.raw());
        }
        let bound = Box::new(Bound { arguments, rows, context });
        ffi::duckdb_bind_set_bind_data(info, Box::into_raw(bound).cast(), Some(drop_box::<Bound>));
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_bind_set_error(info, error_text(&error).as_ptr()) };
    }
}

impl Registered {
    /// Has Ruby decide the columns of one use, and puts them behind its arguments, for the scan. A query is planned by its
    /// own thread, which may hold the GVL: so the block is called right here.
    fn decide(&self, function: &Function, arguments: &Chunk, connection: u64) -> Result<DataType, Error> {
        let session = self.sessions.of(connection);
        let types: Vec<_> = function.signature.parameters.iter().map(|field| &field.data_type).collect();
        let last = types.len() as ffi::idx_t;
        // SAFETY: the chunk has columns of these types, and lives across the call.
        let row = unsafe { Arguments::new(arguments.0, types) };
        let mut text = Text(String::new());
        let decided = match stand() {
            Stand::Foreign => {
                let host = host::current()?;
                call(&host, function, Caller::new(&session.group, 1), &row, &mut text)
            }
            stand => scalar::call_here(function, &session, stand, &row, &mut text),
        };
        session.settle(decided)?;
        // SAFETY: the chunk has a VARCHAR column behind the arguments; DuckDB copies the bytes.
        unsafe {
            let vector = ffi::duckdb_data_chunk_get_vector(arguments.0, last);
            let (bytes, length) = (text.0.as_ptr().cast(), text.0.len() as ffi::idx_t);
            ffi::duckdb_unsafe_vector_assign_string_element_len(vector, 0, bytes, length);
        }
        format!("STRUCT{}", text.0).parse().map_err(|error| Error::Engine(format!("{error}")))
    }
}

/// The columns that Ruby has decided.
struct Text(String);

impl Output for Text {
    fn accept(&mut self, _first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.0 = String::from_utf8_lossy(results.bytes(0)).into_owned();
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}

/// Where opening a scan returns its number.
struct Opened(i64);

impl Output for Opened {
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
        let projection = Projection::of(info, &bound.rows)?;
        let types = registered.parameters().iter().map(|field| &field.data_type);
        let arguments = Arguments::new(bound.arguments.0, types);
        let arguments = Opening::new(&arguments, &projection)?;
        let (begun, mut number) = (now(), Opened(0));
        let caller = Caller::since(&session.group, 1, begun);
        let opened = call(&host, &registered.open.function, caller, &arguments, &mut number);
        session.settle(opened)?;
        let scan = Box::new(Scan { number: Arc::new(Number(number.0)), projection, session, host, begun });
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
        let rows = scan.session.settle(part.next(registered, scan, output)).inspect_err(|_| {
            *part = Part::Over;
        })?;
        ffi::duckdb_data_chunk_set_size(output, rows as ffi::idx_t);
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_function_set_error(info, error_text(&error).as_ptr()) };
    }
}

impl Part {
    /// Puts the next rows into a chunk. Returns how many; 0 if there are no more.
    ///
    /// # Safety
    /// The chunk must be an empty one of the scan's columns.
    unsafe fn next(
        &mut self,
        registered: &Registered,
        scan: &Scan,
        output: ffi::duckdb_data_chunk,
    ) -> Result<usize, Error> {
        let caller = Caller::since(&scan.session.group, 1, scan.begun);
        if matches!(self, Part::New) {
            let (host, function) = (Arc::clone(&scan.host), Arc::clone(&registered.rows.function));
            let rows = scan.projection.rows.clone();
            let ask = Ask(Arc::clone(&scan.number));
            *self = Part::Open(Box::new(call::Scan::open(host, function, caller, rows, ask)?));
        }
        let Part::Open(rows) = self else { return Ok(0) };
        let Some(batch) = rows.next(caller)? else {
            *self = Part::Over;
            return Ok(0);
        };
        // SAFETY: the chunk's vectors are of the columns' types, as the caller says, and have so many rows.
        unsafe {
            let room = ffi::duckdb_vector_size() as usize;
            for (index, child) in (0..).zip(scan.projection.vectors(&batch)) {
                let vector = ffi::duckdb_data_chunk_get_vector(output, index);
                Results::new(vector, child.data_type, room).accept(0, child)?;
            }
        }
        Ok(batch.rows)
    }
}
