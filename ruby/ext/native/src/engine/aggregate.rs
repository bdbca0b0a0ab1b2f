//! The program's blocks as aggregate functions.
//!
//! DuckDB's aggregate states are plain bytes that any thread may copy and combine, so a state here is a number, and
//! Ruby holds what is accumulated under it (`Crosslane::Accumulators`). DuckDB's callbacks are the entries of one function
//! (`crosslane::Kind`). Its API knows no state per worker for aggregates, and none is needed: each callback takes a host
//! lane for its chunk. One state is never worked on by two lanes, so a chunk is not shared between lanes.

use crate::engine::database::{Connection, OK, c_string};
use crate::engine::host::{self, Block};
use crate::engine::session::{Sessions, failure};
use crate::engine::states;
use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{CallGroup, Caller, Input, Output, call_entry};
use crosslane::{ColumnBuilder, DataType, Entry, Error};
use crosslane_vectors::guard::{drop_box, error_text, guard};
use crosslane_vectors::{Arguments, LogicalType, Results};
use libduckdb_sys as ffi;
use std::ops::Range;
use std::sync::Arc;

/// What a registered aggregate carries.
struct Registered {
    block: Block,
    group: CallGroup,
    sessions: Arc<Sessions>,
}

/// Registers an aggregate that Ruby has put into the host's list.
pub(crate) fn register(connection: &Connection, number: u32, declared: String) -> Result<(), magnus::Error> {
    let block = Block::new(number, &declared)?;
    let link = connection.link()?;
    let engine = |error: Error| failure(None, &error.to_string());
    let signature = &block.function.signature;
    let types = signature.parameters.iter().map(|parameter| LogicalType::new(&parameter.data_type));
    let types = types.collect::<Result<Vec<_>, _>>().map_err(engine)?;
    let returns = LogicalType::new(&signature.returns).map_err(engine)?;
    let c_name = c_string(&signature.name)?;
    let sees_null = block.function.admits_null();
    let sessions = Arc::clone(&link.database.sessions);
    let registered = Registered { block, group: CallGroup::default(), sessions };
    // SAFETY: all handles live across the calls; the extra info is freed by DuckDB.
    let state = unsafe {
        let mut function = ffi::duckdb_create_aggregate_function();
        if !states::spread(function) {
            ffi::duckdb_destroy_aggregate_function(&raw mut function);
            return Err(failure(
                None,
                "this libduckdb has no aggregates that crosslane knows; use 1.5.6 or 2.0.0",
            ));
        }
        ffi::duckdb_aggregate_function_set_name(function, c_name.as_ptr());
        types.iter().for_each(|parameter| {
            ffi::duckdb_aggregate_function_add_parameter(function, parameter.raw());
        });
        ffi::duckdb_aggregate_function_set_return_type(function, returns.raw());
        if sees_null {
            ffi::duckdb_aggregate_function_set_special_handling(function);
        }
        let registered = Box::into_raw(Box::new(registered)).cast();
        ffi::duckdb_aggregate_function_set_extra_info(function, registered, Some(drop_box::<Registered>));
        ffi::duckdb_aggregate_function_set_functions(
            function,
            Some(size),
            Some(init),
            Some(update),
            Some(combine_states),
            Some(finalize),
        );
        ffi::duckdb_aggregate_function_set_destructor(function, Some(destroy));
        let state = ffi::duckdb_register_aggregate_function(link.raw, function);
        ffi::duckdb_destroy_aggregate_function(&raw mut function);
        state
    };
    if state == OK {
        return Ok(());
    }
    Err(failure(None, &format!("DuckDB refused the aggregate {c_name:?}; another may have this name")))
}

unsafe extern "C" fn size(_info: ffi::duckdb_function_info) -> ffi::idx_t {
    size_of::<i64>() as ffi::idx_t
}

unsafe extern "C" fn init(_info: ffi::duckdb_function_info, state: ffi::duckdb_aggregate_state) {
    // SAFETY: DuckDB gives each state the bytes that `size` asks for.
    unsafe { state.cast::<i64>().write_unaligned(states::born()) };
}

/// The numbers of states.
///
/// # Safety
/// There must be so many states that `init` has seen.
unsafe fn numbers(states: *mut ffi::duckdb_aggregate_state, count: usize) -> Vec<i64> {
    // SAFETY: as the caller says.
    unsafe { (0..count).map(|at| states.add(at).read().cast::<i64>().read_unaligned()).collect() }
}

/// Columns of states' numbers, and the arguments behind them.
struct States<'a> {
    columns: Vec<Vec<i64>>,
    arguments: Option<&'a dyn Input>,
}

impl Input for States<'_> {
    fn rows(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns = self.columns.iter().map(|numbers| {
            let mut column = ColumnBuilder::new(&DataType::BigInt);
            column.fixed_all(&numbers[rows.clone()]);
            column
        });
        let numbers: Vec<_> = columns.collect();
        let Some(arguments) = self.arguments else {
            take(&Joined { numbers: &numbers, arguments: None });
            return Ok(());
        };
        arguments.slice(rows.clone(), &mut |arguments| {
            take(&Joined { numbers: &numbers, arguments: Some(arguments) });
        })
    }
}

/// So many times the answer that DuckDB may use a state that was combined once more.
struct Keep(usize);

impl Input for Keep {
    fn rows(&self) -> usize {
        self.0
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut column = ColumnBuilder::new(&DataType::Boolean);
        rows.for_each(|_| column.boolean(true));
        take(&column);
        Ok(())
    }
}

struct Joined<'a> {
    numbers: &'a [ColumnBuilder],
    arguments: Option<&'a dyn Encode>,
}

impl Encode for Joined<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.numbers.iter().for_each(|column| column.plan(plan));
        self.arguments.iter().for_each(|arguments| arguments.plan(plan));
    }
    fn write(&self, body: &mut Body<'_>) {
        self.numbers.iter().for_each(|column| column.write(body));
        self.arguments.iter().for_each(|arguments| arguments.write(body));
    }
}

/// Results from a place in a vector on.
struct Behind<'a>(usize, Results<'a>);

impl Output for Behind<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.1.accept(self.0 + first, results)
    }
    fn null(&mut self, row: usize) {
        self.1.null(self.0 + row);
    }
}

impl Registered {
    fn enter(&self, entry: Entry, input: &dyn Input, output: &mut dyn Output) -> Result<(), Error> {
        let (host, caller) = (host::current()?, Caller::new(&self.group, 1));
        call_entry(&*host, &self.block.function, entry, caller, input, output).inspect_err(|error| {
            if let Error::Raised { failure, .. } = error {
                // DuckDB does not say which connection this is for.
                self.sessions.leave_anyhow(error.to_string(), failure.ticket);
            }
        })
    }
}

/// Runs a callback's body with the aggregate.
///
/// # Safety
/// `info` must be DuckDB's, for one of our aggregates.
unsafe fn with(info: ffi::duckdb_function_info, body: impl FnOnce(&Registered) -> Result<(), Error>) {
    // SAFETY: as the caller says; DuckDB copies the text.
    unsafe {
        let registered = &*ffi::duckdb_aggregate_function_get_extra_info(info).cast::<Registered>();
        if let Err(error) = guard(|| body(registered)) {
            ffi::duckdb_aggregate_function_set_error(info, error_text(&error).as_ptr());
        }
    }
}

unsafe extern "C" fn update(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    states: *mut ffi::duckdb_aggregate_state,
) {
    // SAFETY: DuckDB passes a chunk of the declared types, and a state for each of its rows.
    unsafe {
        with(info, |registered| {
            let arguments = Arguments::of(input, &registered.block.function);
            let columns = vec![numbers(states, arguments.rows())];
            let input = States { columns, arguments: Some(&arguments) };
            registered.enter(Entry::Update, &input, &mut ())
        });
    }
}

unsafe extern "C" fn combine_states(
    info: ffi::duckdb_function_info,
    source: *mut ffi::duckdb_aggregate_state,
    target: *mut ffi::duckdb_aggregate_state,
    count: ffi::idx_t,
) {
    // SAFETY: DuckDB passes so many states of each.
    unsafe {
        with(info, |registered| {
            let columns = vec![numbers(target, count as usize), numbers(source, count as usize)];
            let keep = Keep(count as usize);
            registered.enter(Entry::Combine, &States { columns, arguments: Some(&keep) }, &mut ())
        });
    }
}

unsafe extern "C" fn finalize(
    info: ffi::duckdb_function_info,
    source: *mut ffi::duckdb_aggregate_state,
    result: ffi::duckdb_vector,
    count: ffi::idx_t,
    offset: ffi::idx_t,
) {
    // SAFETY: DuckDB passes so many states, and a vector of the declared type with room for their results.
    unsafe {
        with(info, |registered| {
            let columns = vec![numbers(source, count as usize)];
            let rows = offset as usize + count as usize;
            let results = Results::new(result, &registered.block.function.signature.returns, rows);
            let mut output = Behind(offset as usize, results);
            registered.enter(Entry::Finish, &States { columns, arguments: None }, &mut output)
        });
    }
}

unsafe extern "C" fn destroy(ended: *mut ffi::duckdb_aggregate_state, count: ffi::idx_t) {
    // SAFETY: DuckDB passes so many states.
    states::end(unsafe { numbers(ended, count as usize) });
}
