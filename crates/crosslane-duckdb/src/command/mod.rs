//! The commands that users call in SQL: to load functions, inspect them, and set options.

mod answers;
mod commands;
mod table_function;

pub(crate) use commands::register;
