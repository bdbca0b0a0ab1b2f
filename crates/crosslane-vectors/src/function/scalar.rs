//! Functions as DuckDB's scalar functions: what all adapters do alike.

use super::callback::{drop_box, run};
use super::callee::Callee;
use super::context::Context;
use super::failures::RecentFailure;
use super::registration::{c_string, logical_types, registered};
use crate::input::Arguments;
use crate::output::Results;
use crate::types::LogicalType;
use crosslane::call::{Input, Spent};
use crosslane::{Entry, Error, Function};
use libduckdb_sys as ffi;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// What an adapter knows of a registered function.
pub trait Scalar: Send + Sync + 'static {
    /// What one worker needs for one occurrence of the function in a query.
    type State;

    /// A query begins on a worker.
    ///
    /// # Errors
    /// If there is nothing that could call the function.
    fn begin(&self, context: Context) -> Result<Self::State, Error>;

    /// The number of the statement ([`RecentFailure::once`]). DuckDB's C interface has none.
    fn statement(_: &Self::State) -> Option<u64> {
        None
    }

    /// The function as this occurrence calls it.
    ///
    /// # Errors
    /// If it is no more.
    fn callee(state: &Self::State) -> Result<&Callee, Error>;

    /// Calls the function. `spent` has the calls of the query at this place.
    ///
    /// # Errors
    /// What the call ended with.
    fn call(
        state: &Self::State,
        function: &Function,
        spent: &Spent,
        arguments: &Arguments<'_>,
        results: &mut Results<'_>,
    ) -> Result<(), Error>;

    /// The outcome of a call that DuckDB gets.
    ///
    /// # Errors
    /// If it failed.
    fn settle(_: &Self::State, _: Option<&RecentFailure>, outcome: Result<(), Error>) -> Result<(), Error> {
        outcome
    }
}

/// Makes a function callable on all connections of the database, from the next statement on.
///
/// # Errors
/// [`Error::Engine`] if it is no scalar function, or DuckDB refuses it.
///
/// # Safety
/// The connection must be open.
pub unsafe fn register_scalar<S: Scalar>(
    connection: ffi::duckdb_connection,
    function: &Function,
    extra: S,
) -> Result<(), Error> {
    function.entry(Entry::Call)?;
    let signature = &function.signature;
    let name = c_string(function.name())?;
    let returns = LogicalType::new(&signature.returns)?;
    let parameters = logical_types(signature.fixed())?;
    let rest = signature.rest().map(LogicalType::new).transpose()?;
    // SAFETY: all handles live across the calls; what is registered is freed by DuckDB through
    // `drop_box`.
    unsafe {
        let mut scalar = ffi::duckdb_create_scalar_function();
        ffi::duckdb_scalar_function_set_name(scalar, name.as_ptr());
        parameters
            .iter()
            .for_each(|parameter| ffi::duckdb_scalar_function_add_parameter(scalar, parameter.raw()));
        if let Some(rest) = &rest {
            ffi::duckdb_scalar_function_set_varargs(scalar, rest.raw());
        }
        ffi::duckdb_scalar_function_set_return_type(scalar, returns.raw());
        if function.admits_null() {
            ffi::duckdb_scalar_function_set_special_handling(scalar);
        }
        if !function.spec.deterministic {
            ffi::duckdb_scalar_function_set_volatile(scalar);
        }
        let extra = Box::into_raw(Box::new(extra)).cast();
        ffi::duckdb_scalar_function_set_extra_info(scalar, extra, Some(drop_box::<S>));
        ffi::duckdb_scalar_function_set_bind(scalar, Some(bind));
        ffi::duckdb_scalar_function_set_init(scalar, Some(init::<S>));
        ffi::duckdb_scalar_function_set_function(scalar, Some(execute::<S>));
        let state = ffi::duckdb_register_scalar_function(connection, scalar);
        ffi::duckdb_destroy_scalar_function(&raw mut scalar);
        registered(state, signature)
    }
}

/// What the workers of a query share at one place where it calls a function. The plan of the query has
/// it. So the runs of a prepared statement share it, too: DuckDB's C interface does not tell them apart.
#[derive(Default)]
struct Shared {
    recent: RecentFailure,
    spent: Spent,
}

/// Gives a call in a query what its workers share. DuckDB could also tell which arguments are constant,
/// but it copies them for that, and refuses a query with a subquery in an argument.
unsafe extern "C" fn bind(info: ffi::duckdb_bind_info) {
    let shared = Box::into_raw(Box::<Arc<Shared>>::default()).cast();
    // SAFETY: DuckDB passes its own info, and frees what it is given.
    unsafe {
        ffi::duckdb_scalar_function_set_bind_data(info, shared, Some(drop_box::<Arc<Shared>>));
        ffi::duckdb_scalar_function_set_bind_data_copy(info, Some(copy_shared));
    }
}

unsafe extern "C" fn copy_shared(shared: *mut c_void) -> *mut c_void {
    // SAFETY: DuckDB passes what `bind` made.
    let shared = unsafe { shared.cast::<Arc<Shared>>().as_ref() };
    shared.map_or(ptr::null_mut(), |shared| Box::into_raw(Box::new(Arc::clone(shared))).cast())
}

/// An occurrence of a function in a query, on one worker.
struct Occurrence<S: Scalar> {
    state: S::State,
    shared: Arc<Shared>,
}

unsafe extern "C" fn init<S: Scalar>(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_scalar_function_init_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, the extra info that was registered, and what `bind` made.
    run(set_error, || unsafe {
        let scalar = &*ffi::duckdb_scalar_function_init_get_extra_info(info).cast::<S>();
        let shared = ffi::duckdb_scalar_function_init_get_bind_data(info).cast::<Arc<Shared>>();
        let shared = shared.as_ref().cloned().unwrap_or_default();
        let occurrence = Occurrence::<S> { state: scalar.begin(Context::of_init(info))?, shared };
        let occurrence = Box::into_raw(Box::new(occurrence)).cast();
        ffi::duckdb_scalar_function_init_set_state(info, occurrence, Some(drop_box::<Occurrence<S>>));
        Ok(())
    });
}

unsafe extern "C" fn execute<S: Scalar>(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    output: ffi::duckdb_vector,
) {
    // SAFETY: DuckDB copies the text.
    let set_error = |text| unsafe { ffi::duckdb_scalar_function_set_error(info, text) };
    // SAFETY: DuckDB passes its own info, what `init` made, and a chunk and a vector of the
    // registered types that live until this returns.
    run(set_error, || unsafe {
        let occurrence = ffi::duckdb_scalar_function_get_state(info).cast::<Occurrence<S>>();
        let Some(Occurrence { state, shared }) = occurrence.as_ref() else {
            return Err(Error::Engine("DuckDB lost the function's state".into()));
        };
        let function = S::callee(state)?.of_chunk(input)?;
        let arguments = Arguments::of(input, function);
        let mut results = Results::new(output, &function.signature.returns, arguments.rows());
        let statement = S::statement(state);
        if function.spec.budget.is_some() {
            shared.spent.run(statement);
        }
        let mut call = || S::call(state, function, &shared.spent, &arguments, &mut results);
        let recent = function.spec.deterministic.then_some(&shared.recent);
        let outcome = match recent {
            Some(recent) => recent.once(statement, &arguments, call),
            None => call(),
        };
        S::settle(state, recent, outcome)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Scalar for Nobody {
        type State = ();
        fn begin(&self, _: Context) -> Result<(), Error> {
            unreachable!()
        }
        fn callee((): &()) -> Result<&Callee, Error> {
            unreachable!()
        }
        fn call(
            (): &(),
            _: &Function,
            _: &Spent,
            _: &Arguments<'_>,
            _: &mut Results<'_>,
        ) -> Result<(), Error> {
            unreachable!()
        }
    }

    /// A guest may say of its functions that they are of any kind.
    #[test]
    fn other_functions_are_refused() {
        for (kind, returns) in [("table", "TABLE(x BIGINT)"), ("aggregate", "BIGINT")] {
            let signature = format!("f() -> {returns}");
            let spec = serde_json::json!({ "signature": signature, "kind": kind, "admits_null": [] });
            let function = Function::new(0, serde_json::from_value(spec).unwrap()).unwrap();
            // SAFETY: it is refused before the connection is used.
            let refused = unsafe { register_scalar(ptr::null_mut(), &function, Nobody) };
            assert_eq!(
                refused.unwrap_err().to_string(),
                format!("f is of the kind {kind}, which has no entry Call")
            );
        }
    }
}
