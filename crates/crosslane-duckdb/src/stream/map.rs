//! `crosslane_map('SELECT ...', 'function')`: the rows of a query as the input of a stream
//! function.
//!
//! The query runs on a connection and a thread of its own, as its rows are needed (`feed`). So it
//! makes the next rows while the functions work on the last ones, needs none of the engine's
//! threads, and can be interrupted at any time. The thread that reads the results drives the lanes
//! (`scan`). Connection and thread end with the scan, which waits for them.

use super::feed::open;
use super::scan::{Bound, Scan};
use crate::database::library::Entry;
use crate::database::{Connection, Database, names};
use crosslane::call::MapOptions;
use crosslane::{DataType, Error, Function, Kind};
use crosslane_vectors::callback::{drop_box, run};
use crosslane_vectors::{Context, LogicalType, Projection, Value, add_result_columns, query_for};
use libduckdb_sys as ffi;
use std::ffi::CStr;
use std::sync::Arc;

const NAME: &CStr = c"crosslane_map";
const ORDERED: &CStr = c"ordered";
const DEPTH: &CStr = c"depth";
const CARDINALITY: &CStr = c"cardinality";
/// How many batches a lane has, by default.
const USUAL_DEPTH: i64 = 2;
/// The most batches that a user may set.
const MOST_DEPTH: i64 = 64;
/// The estimated number of result rows, by default: so many that DuckDB builds the hash table of a
/// join from the other side if that is a table of usual size.
const USUAL_CARDINALITY: i64 = 1_000_000;
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

unsafe extern "C" fn bind(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_bind_set_error(info, text) };
    // SAFETY: DuckDB passes its own info and the extra info that was registered, and copies what it
    // is given.
    run(set_error, || unsafe {
        let database = &*ffi::duckdb_bind_get_extra_info(info).cast::<Arc<Database>>();
        let bound = bound(database, info)?;
        add_result_columns(info, &bound.function.signature.returns)?;
        ffi::duckdb_bind_set_cardinality(info, bound.cardinality as ffi::idx_t, false);
        let bound = Box::into_raw(Box::new(bound)).cast();
        ffi::duckdb_bind_set_bind_data(info, bound, Some(drop_box::<Bound>));
        Ok(())
    });
}

/// # Safety
/// The info must be that of a `bind` callback of the registered function.
unsafe fn bound(database: &Arc<Database>, info: ffi::duckdb_bind_info) -> Result<Bound, Error> {
    // SAFETY: as the caller says; each value and the context are destroyed once.
    unsafe {
        let text = |index, what: &str| {
            let value = Value::owned(ffi::duckdb_bind_get_parameter(info, index));
            value.text().ok_or_else(|| Error::Engine(format!("{what} is NULL")))
        };
        let (query, name) = (text(0, "the query")?, text(1, "the name of the function")?);
        let ordered = Value::owned(ffi::duckdb_bind_get_named_parameter(info, ORDERED.as_ptr()));
        let ordered = ordered.is_null() || ffi::duckdb_get_bool(ordered.raw());
        let depth = Value::owned(ffi::duckdb_bind_get_named_parameter(info, DEPTH.as_ptr()));
        let depth = if depth.is_null() { USUAL_DEPTH } else { ffi::duckdb_get_int64(depth.raw()) };
        if !(1..=MOST_DEPTH).contains(&depth) {
            return Err(Error::Engine(format!(
                "depth is a whole number from 1 to {MOST_DEPTH}, not {depth}"
            )));
        }
        let cardinality = Value::owned(ffi::duckdb_bind_get_named_parameter(info, CARDINALITY.as_ptr()));
        let cardinality =
            if cardinality.is_null() { USUAL_CARDINALITY } else { ffi::duckdb_get_int64(cardinality.raw()) };
        if cardinality < 0 {
            return Err(Error::Engine(format!("cardinality is a number of rows, not {cardinality}")));
        }
        let mut context = std::ptr::null_mut();
        ffi::duckdb_table_function_get_client_context(info, &raw mut context);
        let mut scope = 0;
        let path =
            ffi::duckdb_client_context_get_config_option(context, c"search_path".as_ptr(), &raw mut scope);
        let search_path = Value::owned(path).text().filter(|path| !path.is_empty());
        let context = Context::take(context);

        let (entry, function) = stream(database, &name)?;
        let own = open(database, search_path.as_deref())?;
        // The optimizer calls functions with constant arguments. That can take long, nothing can
        // interrupt it here, and the query that runs is optimized again.
        let _ = own.run("PRAGMA disable_optimizer");
        let wanted = match function.signature.parameters.first().map(|table| &table.data_type) {
            Some(DataType::Struct(columns)) => &**columns,
            _ => &[],
        };
        let query = query_for(own.raw(), &query, wanted)?;
        let options = MapOptions { lanes: context.threads, depth: depth as usize, ordered };
        Ok(Bound { query, search_path, entry, function, options, cardinality, context })
    }
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
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_init_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, and what was registered and bound.
    run(set_error, || unsafe {
        let database = &*ffi::duckdb_init_get_extra_info(info).cast::<Arc<Database>>();
        let bound = &*ffi::duckdb_init_get_bind_data(info).cast::<Bound>();
        let scan = Scan::new(database, bound, Projection::of(info, &bound.function.signature.returns)?)?;
        let scan = Box::into_raw(Box::new(scan)).cast();
        ffi::duckdb_init_set_init_data(info, scan, Some(drop_box::<Scan>));
        // Results come in order, and the lanes are what works.
        ffi::duckdb_init_set_max_threads(info, 1);
        Ok(())
    });
}

unsafe extern "C" fn execute(info: ffi::duckdb_function_info, output: ffi::duckdb_data_chunk) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_function_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, what `init` made (to one thread at a time), and a chunk
    // of the declared columns.
    run(set_error, || unsafe {
        let scan = &mut *ffi::duckdb_function_get_init_data(info).cast::<Scan>();
        let rows = scan.next(output);
        if !matches!(rows, Ok(1..)) {
            scan.end();
        }
        ffi::duckdb_data_chunk_set_size(output, rows? as ffi::idx_t);
        Ok(())
    });
}
