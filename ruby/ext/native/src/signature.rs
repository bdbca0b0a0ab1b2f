//! Parses signatures for Ruby.

use crate::errors::argument_error;
use crosslane::{DataType, Signature};
use magnus::Error;

/// The name, the parameters' names and types, the type of the result, and whether the last
/// parameter takes any number of arguments.
type ParsedSignature = (String, Vec<(String, String)>, String, bool);

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
