//! Functions as DuckDB's scalar functions.
//!
//! DuckDB cannot forget a registered function, so each registration holds an entry of the catalog, which
//! says what the function is now.

use crate::connection::Connection;
use crate::database::Entry;
use crosslane::call::Crew;
use crosslane::catalog::Current;
use crosslane::{DataType, Error, Function};
use crosslane_process::Zygote;
use crosslane_vectors::guard::{drop_box, error_text, guard};
use crosslane_vectors::{Arguments, LogicalType, Results};
use libduckdb_sys as ffi;
use std::ffi::CString;
use std::sync::Arc;

/// What a registered function carries.
pub(crate) struct Registered {
    pub(crate) entry: Arc<Entry>,
    pub(crate) crew: Arc<Crew>,
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
    let name = CString::new(function.name()).map_err(|error| Error::Engine(error.to_string()))?;
    let returns = LogicalType::new(&function.signature.returns)?;
    let parameters = function
        .signature
        .parameters
        .iter()
        .map(|parameter| LogicalType::new(&parameter.data_type))
        .collect::<Result<Vec<_>, _>>()?;
    // SAFETY: all handles live across the calls; what is registered is freed by DuckDB through `drop_box`.
    unsafe {
        let mut scalar = ffi::duckdb_create_scalar_function();
        ffi::duckdb_scalar_function_set_name(scalar, name.as_ptr());
        parameters
            .iter()
            .for_each(|parameter| ffi::duckdb_scalar_function_add_parameter(scalar, parameter.raw()));
        ffi::duckdb_scalar_function_set_return_type(scalar, returns.raw());
        if function.admits_null() {
            ffi::duckdb_scalar_function_set_special_handling(scalar);
        }
        if !function.spec.deterministic {
            ffi::duckdb_scalar_function_set_volatile(scalar);
        }
        let registered = Box::into_raw(Box::new(registered)).cast();
        ffi::duckdb_scalar_function_set_extra_info(scalar, registered, Some(drop_box::<Registered>));
        ffi::duckdb_scalar_function_set_init(scalar, Some(init));
        ffi::duckdb_scalar_function_set_function(scalar, Some(execute));
        let state = ffi::duckdb_register_scalar_function(connection.raw(), scalar);
        ffi::duckdb_destroy_scalar_function(&raw mut scalar);
        if state != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::Engine(format!(
                "DuckDB refused {}; a built-in function may have this name",
                function.signature
            )));
        }
    }
    Ok(())
}

/// What one worker needs for one occurrence of a function in a query.
struct State {
    current: Result<Current<Zygote>, Error>,
    crew: Arc<Crew>,
    /// The engine's threads.
    width: usize,
}

unsafe extern "C" fn init(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB passes its own info, and the extra info that was registered.
    let outcome = guard(|| unsafe {
        let registered = &*ffi::duckdb_scalar_function_init_get_extra_info(info).cast::<Registered>();
        let current = registered.entry.current();
        let state = State { current, crew: Arc::clone(&registered.crew), width: threads(info) };
        let state = Box::into_raw(Box::new(state)).cast();
        ffi::duckdb_scalar_function_init_set_state(info, state, Some(drop_box::<State>));
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_scalar_function_init_set_error(info, error_text(&error).as_ptr()) };
    }
}

/// The setting `threads` of the query's connection; 1 if it cannot be read.
///
/// # Safety
/// `info` must be DuckDB's.
unsafe fn threads(info: ffi::duckdb_init_info) -> usize {
    // SAFETY: each handle is destroyed once, also if it is null.
    unsafe {
        let mut context = std::ptr::null_mut();
        ffi::duckdb_scalar_function_init_get_client_context(info, &raw mut context);
        let mut scope = 0;
        let mut value =
            ffi::duckdb_client_context_get_config_option(context, c"threads".as_ptr(), &raw mut scope);
        let threads = if value.is_null() { 1 } else { ffi::duckdb_get_int64(value) };
        ffi::duckdb_destroy_value(&raw mut value);
        ffi::duckdb_destroy_client_context(&raw mut context);
        usize::try_from(threads).unwrap_or(1).max(1)
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
        let Current { library, function } = state.current.as_ref().map_err(Error::clone)?;
        let parameters = &function.signature.parameters;
        let types: Vec<&DataType> = parameters.iter().map(|parameter| &parameter.data_type).collect();
        let arguments = Arguments::new(input, types);
        let mut results = Results::new(output);
        crosslane::call::call(library, function, &state.crew, state.width, &arguments, &mut results)
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_scalar_function_set_error(info, error_text(&error).as_ptr()) };
    }
}
