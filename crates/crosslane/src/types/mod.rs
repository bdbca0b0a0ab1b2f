//! SQL's types: their names, signatures, values and texts.

pub mod calendar;
mod data_type;
pub mod display;
pub mod integer;
mod parser;
pub mod signature;
mod signature_error;
#[cfg(test)]
mod signature_tests;
mod type_names;
pub mod values;
mod wkb;

pub(crate) use data_type::Identifier;
pub use data_type::{DataType, Field, Layout, MOST_LEVELS, MOST_MEMBERS, code_width, timetz};
pub use signature::Signature;
pub use signature_error::SignatureError;
pub use type_names::TypeNames;
