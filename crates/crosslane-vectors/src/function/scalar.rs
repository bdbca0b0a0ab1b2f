//! Functions as DuckDB's scalar functions: what all adapters do alike.

use crate::attempts::Attempts;
use crate::guard::{drop_box, error_text, guard};
use crate::input::Arguments;
use crate::interrupt::Client;
use crate::output::Results;
use crate::types::{LogicalType, data_type};
use crosslane::call::Input;
use crosslane::{DataType, Entry, Error, Function, Signature};
use libduckdb_sys as ffi;
use std::cell::OnceCell;
use std::ffi::{CString, c_void};
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

    /// The number of the statement ([`Attempts::once`]). DuckDB's C interface has none.
    fn statement(_: &Self::State) -> Option<u64> {
        None
    }

    /// The function as this occurrence calls it.
    ///
    /// # Errors
    /// If it is no more.
    fn callee(state: &Self::State) -> Result<&Callee, Error>;

    /// Calls the function.
    ///
    /// # Errors
    /// What the call ended with.
    fn call(
        state: &Self::State,
        function: &Function,
        arguments: &Arguments<'_>,
        results: &mut Results<'_>,
    ) -> Result<(), Error>;

    /// What DuckDB is told of how an attempt ended.
    ///
    /// # Errors
    /// If it failed.
    fn settle(_: &Self::State, _: Option<&Attempts>, outcome: Result<(), Error>) -> Result<(), Error> {
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
    let name = CString::new(function.name()).map_err(|error| Error::Engine(error.to_string()))?;
    let returns = LogicalType::new(&function.signature.returns)?;
    let signature = &function.signature;
    let parameters = signature
        .fixed()
        .iter()
        .map(|parameter| LogicalType::new(&parameter.data_type))
        .collect::<Result<Vec<_>, _>>()?;
    let rest = signature.rest().map(LogicalType::new).transpose()?;
    // SAFETY: all handles live across the calls; what is registered is freed by DuckDB through `drop_box`.
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
        if function.spec.deterministic {
            ffi::duckdb_scalar_function_set_bind(scalar, Some(bind));
        }
        ffi::duckdb_scalar_function_set_init(scalar, Some(init::<S>));
        ffi::duckdb_scalar_function_set_function(scalar, Some(execute::<S>));
        let state = ffi::duckdb_register_scalar_function(connection, scalar);
        ffi::duckdb_destroy_scalar_function(&raw mut scalar);
        if state != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::Engine(format!(
                "DuckDB refused {signature}; a built-in function may have this name",
            )));
        }
    }
    Ok(())
}

/// Gives a call the memory of its attempts, which belongs to this place in this query. DuckDB would tell which arguments are
/// constant, too, but copies them for that, and refuses the query if there is a subquery in one.
unsafe extern "C" fn bind(info: ffi::duckdb_bind_info) {
    let attempts = Box::into_raw(Box::<Arc<Attempts>>::default()).cast();
    // SAFETY: DuckDB passes its own info, and frees what it is given.
    unsafe {
        ffi::duckdb_scalar_function_set_bind_data(info, attempts, Some(drop_box::<Arc<Attempts>>));
        ffi::duckdb_scalar_function_set_bind_data_copy(info, Some(copy_attempts));
    }
}

unsafe extern "C" fn copy_attempts(attempts: *mut c_void) -> *mut c_void {
    // SAFETY: DuckDB passes what `bind` made.
    let attempts = unsafe { attempts.cast::<Arc<Attempts>>().as_ref() };
    attempts.map_or(ptr::null_mut(), |attempts| Box::into_raw(Box::new(Arc::clone(attempts))).cast())
}

/// An occurrence of a function in a query, on one worker.
struct Occurrence<S: Scalar> {
    state: S::State,
    /// If the function is deterministic.
    attempts: Option<Arc<Attempts>>,
}

unsafe extern "C" fn init<S: Scalar>(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB passes its own info, the extra info that was registered, and what `bind` made, if it was called.
    let outcome = guard(|| unsafe {
        let scalar = &*ffi::duckdb_scalar_function_init_get_extra_info(info).cast::<S>();
        let attempts = ffi::duckdb_scalar_function_init_get_bind_data(info).cast::<Arc<Attempts>>();
        let state = scalar.begin(Context::of_init(info))?;
        let occurrence = Occurrence::<S> { state, attempts: attempts.as_ref().cloned() };
        let occurrence = Box::into_raw(Box::new(occurrence)).cast();
        ffi::duckdb_scalar_function_init_set_state(info, occurrence, Some(drop_box::<Occurrence<S>>));
        Ok(())
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_scalar_function_init_set_error(info, error_text(&error).as_ptr()) };
    }
}

unsafe extern "C" fn execute<S: Scalar>(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    output: ffi::duckdb_vector,
) {
    // SAFETY: DuckDB passes its own info, what `init` made, and a chunk and a vector of the registered types that live
    // until this returns.
    let outcome = guard(|| unsafe {
        let occurrence = ffi::duckdb_scalar_function_get_state(info).cast::<Occurrence<S>>();
        let Some(Occurrence { state, attempts }) = occurrence.as_ref() else {
            return Err(Error::Engine("DuckDB lost the function's state".into()));
        };
        let function = S::callee(state)?.of_chunk(input)?;
        let arguments = Arguments::of(input, function);
        let mut results = Results::new(output, &function.signature.returns, arguments.rows());
        let mut call = || S::call(state, function, &arguments, &mut results);
        let outcome = match attempts {
            Some(attempts) => attempts.once(S::statement(state), &arguments, call),
            None => call(),
        };
        S::settle(state, attempts.as_deref(), outcome)
    });
    if let Err(error) = outcome {
        // SAFETY: as above; DuckDB copies the text.
        unsafe { ffi::duckdb_scalar_function_set_error(info, error_text(&error).as_ptr()) };
    }
}

/// A function as one call in a query calls it, on one worker.
#[derive(Debug)]
pub struct Callee {
    declared: Arc<Function>,
    /// What it is for the arguments of this call, if it takes arguments of any type; their first chunk says which they have.
    concrete: Option<OnceCell<Function>>,
}

impl Callee {
    /// For a call of a function.
    pub fn new(declared: Arc<Function>) -> Self {
        let concrete = declared.signature.takes_any().then(OnceCell::new);
        Self { declared, concrete }
    }

    /// The function for the arguments of the call, of which this is a chunk.
    ///
    /// # Errors
    /// [`Error::Engine`] if an argument has a type that functions cannot have.
    ///
    /// # Safety
    /// The chunk must have the columns that the function was registered with.
    pub unsafe fn of_chunk(&self, chunk: ffi::duckdb_data_chunk) -> Result<&Function, Error> {
        let Some(concrete) = &self.concrete else { return Ok(&self.declared) };
        if let Some(known) = concrete.get() {
            return Ok(known);
        }
        // SAFETY: as the caller says.
        let types = unsafe { argument_types(&self.declared.signature, chunk)? };
        let made = self.declared.for_arguments(types)?;
        Ok(concrete.get_or_init(|| made))
    }
}

/// The types with which a function is called: the declared ones, and where that is ANY the argument's own.
///
/// # Safety
/// As [`Callee::of_chunk`].
unsafe fn argument_types(
    signature: &Signature,
    chunk: ffi::duckdb_data_chunk,
) -> Result<Vec<DataType>, Error> {
    // SAFETY: as the caller says.
    let count = unsafe { ffi::duckdb_data_chunk_get_column_count(chunk) } as usize;
    let declared = signature.fixed().iter().map(|field| &field.data_type);
    let declared = declared.chain(signature.rest().into_iter().cycle()).take(count);
    let type_of = |(index, declared): (usize, &DataType)| {
        if *declared != DataType::Any {
            return Ok(declared.clone());
        }
        let refused = |what: String| Error::Engine(format!("{signature}: argument {}: {what}", index + 1));
        // SAFETY: the chunk has this column, and the handle is alive.
        let own = unsafe {
            let vector = ffi::duckdb_data_chunk_get_vector(chunk, index as ffi::idx_t);
            data_type(LogicalType::of(vector).raw())
        };
        let own = own.map_err(|error| refused(error.to_string()))?;
        // Guests read the type as text.
        if own.to_string().parse().as_ref() != Ok(&own) {
            return Err(refused(format!(
                "a function cannot have the type {own}; cast it to one whose fields have names"
            )));
        }
        Ok(own)
    };
    declared.enumerate().map(type_of).collect()
}

/// What a query's connection says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The setting `threads`; 1 if it cannot be read.
    pub threads: usize,
    /// Which connection it is, and what tells whether it was interrupted.
    pub client: Client,
}

impl Context {
    /// Reads a context, and destroys it.
    ///
    /// # Safety
    /// The context must be DuckDB's, given to the caller.
    pub unsafe fn take(mut context: ffi::duckdb_client_context) -> Self {
        // SAFETY: each handle is destroyed once, also if it is null.
        unsafe {
            let mut scope = 0;
            let mut value =
                ffi::duckdb_client_context_get_config_option(context, c"threads".as_ptr(), &raw mut scope);
            let threads = if value.is_null() { 1 } else { ffi::duckdb_get_int64(value) };
            ffi::duckdb_destroy_value(&raw mut value);
            let client = Client::of(context);
            ffi::duckdb_destroy_client_context(&raw mut context);
            Self { threads: usize::try_from(threads).unwrap_or(1).max(1), client }
        }
    }

    /// The context of a scalar function's init.
    ///
    /// # Safety
    /// `info` must be DuckDB's.
    pub unsafe fn of_init(info: ffi::duckdb_init_info) -> Self {
        // SAFETY: as the caller says.
        unsafe {
            let mut context = std::ptr::null_mut();
            ffi::duckdb_scalar_function_init_get_client_context(info, &raw mut context);
            Self::take(context)
        }
    }

    /// The context of a table function's bind.
    ///
    /// # Safety
    /// `info` must be DuckDB's.
    pub unsafe fn of_bind(info: ffi::duckdb_bind_info) -> Self {
        // SAFETY: as the caller says.
        unsafe {
            let mut context = std::ptr::null_mut();
            ffi::duckdb_table_function_get_client_context(info, &raw mut context);
            Self::take(context)
        }
    }
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
        fn call((): &(), _: &Function, _: &Arguments<'_>, _: &mut Results<'_>) -> Result<(), Error> {
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
