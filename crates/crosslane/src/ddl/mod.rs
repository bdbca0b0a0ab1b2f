//! Definitions of functions in SQL: `CREATE FUNCTION ... LANGUAGE python AS $$ ... $$`, and where
//! they are in a text of several statements.

mod lexer;
mod parser;
mod statements;

pub use parser::{Definition, DefinitionError, Value};
pub use statements::{Statement, statements};
