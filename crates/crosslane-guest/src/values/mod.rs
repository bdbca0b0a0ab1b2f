//! A language's values as rows of columns, and back. The rules are here, so that they are the same
//! in every language.
//!
//! A language says in [`Values`] how its values are made and what they hold. [`Reader`] makes
//! values of columns, [`Writer`] columns of values. A value that is not what a column needs is a
//! [`Refusal`], which becomes an error of the language.

mod convert;
mod date_parts;
mod integer;
mod numbers;
mod reader;
mod refusal;
mod shape;
mod temporal;
mod writer;

pub use convert::{Taken, Values};
pub use integer::Integer;
pub use numbers::decimal_text;
pub use reader::{Argument, Reader};
pub use refusal::{Class, Fault, NULL_KEY, Refusal, Wrong};
pub use temporal::{DAY, Temporal, units_per_second};
pub use writer::Writer;
