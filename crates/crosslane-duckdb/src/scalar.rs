//! Functions as DuckDB's scalar functions.
//!
//! DuckDB cannot forget a registered function, so each registration points to a [`Slot`]: what the
//! function is now. Reloading a file fills the slots of the functions that stayed the same, registers the
//! new ones, and marks the others as gone. A query takes the function from its slot when it starts on a
//! worker, and keeps that version until its end.

use crate::connection::Connection;
use crate::database::{Database, ProcessLibrary};
use crate::guard::{drop_box, error_text, guard};
use crate::input::Arguments;
use crate::output::Results;
use crate::types::LogicalType;
use arc_swap::ArcSwap;
use crosslane::call::Crew;
use crosslane::{DataType, Error, Function};
use libduckdb_sys as ffi;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// A function and the library that runs it.
#[derive(Clone)]
struct Current {
    library: Arc<ProcessLibrary>,
    function: Arc<Function>,
}

/// What a registration stands for now.
enum Content {
    Current(Current),
    /// Why there is nothing any more, and what to do.
    Gone(String),
}

struct Slot {
    content: ArcSwap<Content>,
    crew: Arc<Crew>,
}

/// All that DuckDB was told about a function when it was registered.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    signature: String,
    special_nulls: bool,
    deterministic: bool,
}

impl Key {
    fn new(function: &Function) -> Self {
        let types = |list: &[crosslane::Field]| {
            list.iter().map(|field| field.data_type.to_string()).collect::<Vec<_>>().join(", ")
        };
        let signature = &function.signature;
        let name = signature.name.to_lowercase();
        Self {
            signature: format!("{name}({}) -> {}", types(&signature.parameters), signature.returns),
            special_nulls: function.admits_null(),
            deterministic: function.spec.deterministic,
        }
    }
}

/// The slots of a database.
#[derive(Default)]
pub(crate) struct Slots(Mutex<HashMap<Key, Arc<Slot>>>);

impl Slots {
    /// Makes the functions of a library callable, in place of those of its last version.
    pub(crate) fn register(
        &self,
        database: &Database,
        connection: &Connection,
        library: &Arc<ProcessLibrary>,
    ) -> Result<(), Error> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for function in &library.functions {
            let current =
                Content::Current(Current { library: Arc::clone(library), function: Arc::clone(function) });
            let current = Arc::new(current);
            let slot = slots.entry(Key::new(function)).or_insert_with(|| {
                let content = ArcSwap::new(Arc::clone(&current));
                Arc::new(Slot { content, crew: Arc::clone(&database.crew) })
            });
            slot.content.store(current);
            // Also if it is registered: another library may have taken the name since.
            // SAFETY: the connection is open.
            unsafe { register(connection, function, Arc::clone(slot))? };
        }
        for slot in slots.values() {
            let content = slot.content.load();
            let Content::Current(current) = &**content else { continue };
            if current.library.name != library.name || current.library.version >= library.version {
                continue;
            }
            slot.content.store(Arc::new(Content::Gone(farewell(&current.function, library))));
        }
        Ok(())
    }
}

fn farewell(gone: &Function, library: &ProcessLibrary) -> String {
    let instead = library.functions.iter().find(|function| function.name().eq_ignore_ascii_case(gone.name()));
    let advice = match instead {
        Some(function) => format!(
            "it is now {}: prepare the statement again, or cast the arguments to these types",
            function.signature
        ),
        None => "the file does not declare it any more".into(),
    };
    format!("{} was removed when {} was loaded again; {advice}", gone.signature, library.name)
}

/// # Safety
/// The connection must be open.
unsafe fn register(connection: &Connection, function: &Function, slot: Arc<Slot>) -> Result<(), Error> {
    let name = CString::new(function.name()).map_err(|error| Error::Engine(error.to_string()))?;
    let returns = LogicalType::new(&function.signature.returns)?;
    let parameters = function
        .signature
        .parameters
        .iter()
        .map(|parameter| LogicalType::new(&parameter.data_type))
        .collect::<Result<Vec<_>, _>>()?;
    // SAFETY: all handles live across the calls; the slot is freed by DuckDB through `drop_box`.
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
        let slot = Box::into_raw(Box::new(slot)).cast();
        ffi::duckdb_scalar_function_set_extra_info(scalar, slot, Some(drop_box::<Arc<Slot>>));
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
    current: Result<Current, String>,
    crew: Arc<Crew>,
    /// The engine's threads.
    width: usize,
}

unsafe extern "C" fn init(info: ffi::duckdb_init_info) {
    // SAFETY: DuckDB passes its own info, and the extra info that was registered.
    let outcome = guard(|| unsafe {
        let slot = &*ffi::duckdb_scalar_function_init_get_extra_info(info).cast::<Arc<Slot>>();
        let current = match &**slot.content.load() {
            Content::Current(current) => Ok(current.clone()),
            Content::Gone(why) => Err(why.clone()),
        };
        let state = State { current, crew: Arc::clone(&slot.crew), width: threads(info) };
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
        let Current { library, function } =
            state.current.as_ref().map_err(|why| Error::Engine(why.clone()))?;
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
