//! The commands: what users call in SQL to load, look and set.

mod answers;
mod commands;
mod table_function;

pub(crate) use commands::register;
