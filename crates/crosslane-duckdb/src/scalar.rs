//! Functions as DuckDB's scalar functions.
//!
//! DuckDB cannot forget a registered function, so each registration holds an entry of the catalog, which
//! says what the function is now.

use crate::connection::Connection;
use crate::database::{Entry, ProcessLibrary};
use crosslane::call::{Attempts, CallGroup, CallGroups, Caller, Input, call};
use crosslane::catalog::Current;
use crosslane::stats::now;
use crosslane::{Error, Function};
use crosslane_vectors::guard::{drop_box, error_text, guard};
use crosslane_vectors::{Arguments, Callee, Context, Results, attempts_of_init, register_scalar};
use libduckdb_sys as ffi;
use std::sync::Arc;

/// What a registered function carries.
pub(crate) struct Registered {
    pub(crate) entry: Arc<Entry>,
    pub(crate) groups: Arc<CallGroups>,
}

/// Makes a function callable on all connections of the database, from the next statement on.
///
/// # Safety
/// The connection must be open.
pub(crate) unsafe fn register(
    connection: &Connection,
    function: &Function,
    registered: Registered,
) -> Result<(), Error> {
    // SAFETY: as the caller says; `init` and `execute` expect a `Registered`.
    unsafe { register_scalar(connection.raw(), function, registered, init, execute) }
}

/// What one worker needs for one occurrence of a function in a query.
struct State {
    current: Result<(Arc<ProcessLibrary>, Callee), Error>,
    /// That of the query's connection.
    group: Arc<CallGroup>,
    /// When the query began here; it is cancelled as a whole.
    begun: u64,
    /// The engine's threads.
    width: usize,
    attempts: Option<Arc<Attempts>>,
}

unsafe extern "C" fn init(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB passes its own info, and the extra info that was registered.
    let outcome = guard(|| unsafe {
        let registered = &*ffi::duckdb_scalar_function_init_get_extra_info(info).cast::<Registered>();
        let current = registered.entry.current();
        let context = Context::of_init(info);
        let state = State {
            current: current.map(|Current { library, function }| (library, Callee::new(function))),
            group: registered.groups.of(context.connection),
            begun: now(),
            width: context.threads,
            attempts: attempts_of_init(info),
        };
        let state = Box::into_raw(Box::new(state)).cast();
        ffi::duckdb_scalar_function_init_set_state(info, state, Some(drop_box::<State>));
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_scalar_function_init_set_error(info, error_text(&error).as_ptr()) };
    }
}

unsafe extern "C" fn execute(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    output: ffi::duckdb_vector,
) {
    // SAFETY: DuckDB passes its own info, the state that `init` made, and a chunk and a vector of the
    // registered types that live until this returns.
    let outcome = guard(|| unsafe {
        let state = ffi::duckdb_scalar_function_get_state(info).cast::<State>();
        let Some(state) = state.as_ref() else {
            return Err(Error::Engine("DuckDB lost the function's state".into()));
        };
        let (library, callee) = state.current.as_ref().map_err(Error::clone)?;
        let function = callee.of_chunk(input)?;
        let arguments = Arguments::of(input, function);
        let mut results = Results::new(output, &function.signature.returns, arguments.rows());
        let caller = Caller::since(&state.group, state.width, state.begun);
        let mut call = || call(library, function, caller, &arguments, &mut results);
        match &state.attempts {
            Some(attempts) => attempts.once(&arguments, call),
            None => call(),
        }
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_scalar_function_set_error(info, error_text(&error).as_ptr()) };
    }
}
