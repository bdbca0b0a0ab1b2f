//! Parameters of prepared statements: Ruby objects as DuckDB values.

use crate::engine::connection::session::failure;
use crate::engine::library::text::{OK, text};
use crate::engine::parameters::value;
use crosslane::DataType;
use crosslane_vectors::data_type;
use libduckdb_sys as ffi;
use magnus::{Error, RArray, RHash, Ruby, Value};

/// A parameter of a statement.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// The parameter's type in the statement, if the statement determines it.
    pub(crate) wanted: Option<DataType>,
}

/// The parameters of a statement that was just prepared. They must be read before the first bind: a
/// parameter without a type later has the type of the last bound value.
///
/// # Safety
/// The statement must live.
pub(crate) unsafe fn parameters(statement: ffi::duckdb_prepared_statement) -> Vec<Parameter> {
    // SAFETY: the parameters exist; names and types are freed.
    unsafe {
        let read = |index| {
            let name = ffi::duckdb_parameter_name(statement, index);
            let mut logical = ffi::duckdb_param_logical_type(statement, index);
            let wanted = if logical.is_null() { None } else { data_type(logical).ok() };
            ffi::duckdb_destroy_logical_type(&raw mut logical);
            let parameter = Parameter { name: text(name), wanted };
            ffi::duckdb_free(name.cast_mut().cast());
            parameter
        };
        (1..=ffi::duckdb_nparams(statement)).map(read).collect()
    }
}

/// Binds all parameters in order. If the statement has names and the only argument is a Hash, binds
/// them by name.
pub(crate) fn bind(
    statement: ffi::duckdb_prepared_statement,
    known: &[Parameter],
    parameters: RArray,
) -> Result<(), Error> {
    let named = (parameters.len() == 1).then(|| RHash::from_value(parameters.entry(0).ok()?)).flatten();
    // Parameters without names have their numbers as names.
    let named = named.filter(|_| known.iter().any(|parameter| parameter.name.parse::<u32>().is_err()));
    if named.is_none() && parameters.len() != known.len() {
        let (count, given) = (known.len(), parameters.len());
        return Err(failure(None, &format!("the statement has {count} parameters, and {given} were given")));
    }
    if let Some(hash) = named {
        hash.foreach(|key: Value, _: Value| {
            let key = key.to_string();
            if known.iter().any(|parameter| parameter.name == key) {
                return Ok(magnus::r_hash::ForEach::Continue);
            }
            let names: Vec<_> = known.iter().map(|parameter| &parameter.name[..]).collect();
            Err(failure(None, &format!("the statement has no parameter {key}; it has {}", names.join(", "))))
        })?;
    }
    for (index, Parameter { name, wanted }) in (1..).zip(known) {
        let given: Value = match named {
            Some(hash) => {
                let ruby = Ruby::get().expect("with the GVL");
                let given = hash.get(ruby.to_symbol(name)).or_else(|| hash.get(name.as_str()));
                given.ok_or_else(|| failure(None, &format!("the parameter {name} was not given")))?
            }
            None => parameters.entry(index as isize - 1)?,
        };
        let value = value::value(given, wanted.as_ref())?;
        // SAFETY: the parameter exists, and DuckDB copies the value.
        let state = unsafe { ffi::duckdb_bind_value(statement, index, value.raw()) };
        if state != OK {
            // SAFETY: the text belongs to the statement.
            let message = unsafe { text(ffi::duckdb_prepare_error(statement)) };
            return Err(failure(None, &format!("parameter {name}: {message}")));
        }
    }
    Ok(())
}
