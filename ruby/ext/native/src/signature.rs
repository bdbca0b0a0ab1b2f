//! Parses what a declaration says, for Ruby.

use crate::errors::argument_error;
use crosslane::{DataType, FunctionSpec, Signature};
use magnus::value::ReprValue;
use magnus::{Error, Value};
use std::path::Path;

/// The name, the parameters' names and types, the type of the result, and whether the last
/// parameter takes any number of arguments.
type ParsedSignature = (String, Vec<(String, String)>, String, bool);

/// The specification of a declared function (`Crosslane::Declaration`).
pub(crate) fn specification(declared: Value) -> Result<FunctionSpec, Error> {
    let text: String = declared.funcall("specification", ())?;
    serde_json::from_str(&text).map_err(argument_error)
}

/// The sandbox that a function in `file` asks for by options, given and returned as JSON. nil if it asks
/// for none.
pub(crate) fn own_sandbox(options: String, file: String) -> Result<Option<String>, Error> {
    let options = serde_json::from_str(&options).map_err(argument_error)?;
    let asked = crosslane_process::own_sandbox(options, Path::new(&file)).map_err(argument_error)?;
    asked.as_ref().map(serde_json::to_string).transpose().map_err(argument_error)
}

/// The parts of a signature, in their normal form.
pub(crate) fn parse_signature(text: String) -> Result<ParsedSignature, Error> {
    let signature: Signature = text.parse().map_err(argument_error)?;
    let mut parameters = signature.pairs();
    if signature.stream {
        // The parsed signature has the type of the table's transfer. The declaration needs the type
        // TABLE instead.
        parameters[0].1 = match &signature.parameters[0].data_type {
            DataType::Any => "TABLE".to_owned(),
            columns => columns.to_string().replacen("STRUCT", "TABLE", 1),
        };
    }
    Ok((signature.name.clone(), parameters, signature.result(), signature.variadic))
}
