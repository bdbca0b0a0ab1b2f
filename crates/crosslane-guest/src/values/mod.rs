//! A language's values as rows of columns, and back. The rules are here, so that they are the same in every language.

mod convert;
mod date_parts;
mod numbers;
mod reader;
mod writer;

pub use convert::{
    Class, DAY, Fault, Integer, Moment, NULL_KEY, Refusal, Taken, Values, Wrong, units_per_second,
};
pub use numbers::decimal_text;
pub use reader::{Argument, Reader};
pub use writer::Writer;
