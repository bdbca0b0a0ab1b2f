//! The callbacks of our aggregates, which DuckDB's C API calls.

use super::current_call::{CURRENT_CALL, CurrentCall};
use super::uses::Registered;
use super::version::{is_deferred, unknown};
use crate::function::callback::{error_text, guard};
use crate::input::Arguments;
use crate::output::Results;
use crate::types::LogicalType;
use crate::vector::Scratch;
use crosslane::call::Behind;
use crosslane::states::{Accumulates, State, States, destroy};
use crosslane::{Error, Function};
use libduckdb_sys as ffi;

unsafe extern "C" fn size(_info: ffi::duckdb_function_info) -> ffi::idx_t {
    size_of::<State>() as ffi::idx_t
}

unsafe extern "C" fn init(_info: ffi::duckdb_function_info, state: ffi::duckdb_aggregate_state) {
    // SAFETY: DuckDB gives each state the bytes that `size` asks for.
    unsafe { state.cast::<State>().write_unaligned(State::default()) };
}

/// Our callbacks, in the order in which DuckDB's object for our aggregates has them. Their
/// addresses distinguish our aggregates from others. A function may have several addresses, so only
/// those of this static are used.
pub(super) struct Callbacks {
    pub(super) size: unsafe extern "C" fn(ffi::duckdb_function_info) -> ffi::idx_t,
    pub(super) init: unsafe extern "C" fn(ffi::duckdb_function_info, ffi::duckdb_aggregate_state),
    pub(super) update: unsafe extern "C" fn(
        ffi::duckdb_function_info,
        ffi::duckdb_data_chunk,
        *mut ffi::duckdb_aggregate_state,
    ),
    pub(super) combine: unsafe extern "C" fn(
        ffi::duckdb_function_info,
        *mut ffi::duckdb_aggregate_state,
        *mut ffi::duckdb_aggregate_state,
        ffi::idx_t,
    ),
    pub(super) finalize: unsafe extern "C" fn(
        ffi::duckdb_function_info,
        *mut ffi::duckdb_aggregate_state,
        ffi::duckdb_vector,
        ffi::idx_t,
        ffi::idx_t,
    ),
}

pub(super) static CALLBACKS: Callbacks = Callbacks { size, init, update, combine, finalize };

impl Callbacks {
    pub(super) fn addresses(&self) -> [usize; 5] {
        let Self { size, init, update, combine, finalize } = *self;
        [size as usize, init as usize, update as usize, combine as usize, finalize as usize]
    }
}

/// # Safety
/// There must be `count` states, and no other thread may use them meanwhile.
unsafe fn states<'a>(first: *mut ffi::duckdb_aggregate_state, count: usize) -> States<'a> {
    if count == 0 {
        // SAFETY: there are none.
        return unsafe { States::new(&[]) };
    }
    // SAFETY: as the caller says; a handle is the address of the state's memory.
    unsafe { States::new(std::slice::from_raw_parts(first.cast::<*mut State>(), count)) }
}

/// Runs a callback's body with the aggregate and its use in this query.
///
/// The error of a callback that only adds to states may wait for the callback that returns results
/// ([`is_deferred`]).
///
/// # Safety
/// `info` must be DuckDB's, for one of our aggregates.
unsafe fn with(
    info: ffi::duckdb_function_info,
    adds: bool,
    body: impl FnOnce(&Function, &dyn Accumulates, CurrentCall) -> Result<(), Error>,
) {
    // SAFETY: as the caller says; DuckDB copies the text.
    unsafe {
        let registered = &*ffi::duckdb_aggregate_function_get_extra_info(info).cast::<Registered>();
        let outcome = guard(|| {
            let call = CURRENT_CALL.get().ok_or_else(|| unknown("its callbacks' data"))?;
            body(&registered.function, &*registered.accumulation(call.bound, adds)?, call)
        });
        if let Err(error) = outcome {
            if adds && is_deferred() {
                return;
            }
            ffi::duckdb_aggregate_function_set_error(info, error_text(&error).as_ptr());
        }
    }
}

unsafe extern "C" fn update(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    places: *mut ffi::duckdb_aggregate_state,
) {
    // SAFETY: DuckDB passes a chunk of the declared types, and our C++ callback a state for each of
    // its rows.
    unsafe {
        with(info, true, |function, accumulation, call| {
            // The size of a chunk without columns is 0.
            let arguments = Arguments::of(input, function).with_rows(call.rows);
            accumulation.update(&states(places, call.rows), &arguments)
        });
    }
}

unsafe extern "C" fn combine(
    info: ffi::duckdb_function_info,
    sources: *mut ffi::duckdb_aggregate_state,
    targets: *mut ffi::duckdb_aggregate_state,
    count: ffi::idx_t,
) {
    // SAFETY: DuckDB passes `count` states of each.
    unsafe {
        with(info, true, |_, accumulation, call| {
            let (targets, sources) = (states(targets, count as usize), states(sources, count as usize));
            accumulation.combine(&targets, &sources, call.keeps)
        });
    }
}

unsafe extern "C" fn finalize(
    info: ffi::duckdb_function_info,
    sources: *mut ffi::duckdb_aggregate_state,
    result: ffi::duckdb_vector,
    count: ffi::idx_t,
    offset: ffi::idx_t,
) {
    let (rows, first) = (count as usize, offset as usize);
    // SAFETY: DuckDB passes `count` states, and a vector of the declared type with space for their
    // results.
    unsafe {
        with(info, false, |function, accumulation, _| {
            let returns = &function.signature.returns;
            let in_order = states(sources, rows);
            let lanes: Vec<u64> = in_order.lanes().collect();
            if lanes.is_sorted() {
                let output = &mut Results::new(result, returns, first + rows);
                return accumulation.finish(&in_order, &mut Behind { first, output });
            }
            // Each lane gets one request; afterwards the results are put into the order of the
            // rows.
            let mut order: Vec<usize> = (0..rows).collect();
            order.sort_by_key(|row| lanes[*row]);
            let places = std::slice::from_raw_parts(sources.cast::<*mut State>(), rows);
            let places: Vec<*mut State> = order.iter().map(|row| places[*row]).collect();
            let logical = LogicalType::new(returns)?;
            let sorted = Scratch::new(logical.raw(), count);
            accumulation.finish(&States::new(&places), &mut Results::new(sorted.vector, returns, rows))?;
            let where_from = sorted.selection();
            (0..).zip(&order).for_each(|(at, row)| where_from[*row] = at);
            ffi::duckdb_vector_copy_sel(sorted.vector, result, sorted.all, count, 0, offset);
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn destroyed(ended: *mut ffi::duckdb_aggregate_state, count: ffi::idx_t) {
    let _ = guard(|| {
        // SAFETY: DuckDB passes `count` states.
        destroy(&unsafe { states(ended, count as usize) });
        Ok(())
    });
}
