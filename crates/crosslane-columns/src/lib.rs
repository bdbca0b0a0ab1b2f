//! Functions of rows, evaluated by columns with Python's meaning.
//!
//! | | |
//! |---|---|
//! | [`Source`] | a function as a translator has written it: its statements, with all names resolved |
//! | [`compile`] | finds types, and makes a [`Program`] without branches |
//! | [`Evaluator`] | runs a program over up to [`CHUNK`] rows at once |
//!
//! # Contract
//! The result of a row is the result of CPython, to the bit, or the row *leaves* the program. A row
//! leaves if its result has no 64 bits, if CPython would raise an exception, or if an operation does not
//! know the answer. The caller runs such rows with the function itself, from its beginning. A program
//! has no side effects, so running both has no effect that a user could see. The translator refuses a
//! function that could change what its program relies on in such a row.
//!
//! The modules of `run` have a table each: which rows leave which operation.

mod compile;
mod format;
mod program;
mod run;
mod source;
mod strftime;

pub use compile::{Unsupported, compile};
pub use program::{CHUNK, Program};
pub use run::Evaluator;
pub use source::{Expression, Node, Source, Statement};
