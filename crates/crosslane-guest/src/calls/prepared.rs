//! The parts of an entry that its batches need.

use crate::values::{Reader, Values, Writer};
use crosslane::{Entry, ErrorPolicy};

/// An entry of a function, prepared for its batches.
#[derive(Debug)]
pub(crate) struct Prepared<V: Values> {
    pub(crate) entry: Entry,
    /// Whether the last argument is a LIST of any number of arguments.
    pub(crate) variadic: bool,
    /// For each column, whether rows with a NULL in it are called.
    pub(crate) admits_null: Vec<bool>,
    pub(crate) error_policy: ErrorPolicy,
    pub(crate) readers: Vec<Reader<V>>,
    /// None if the entry has no results. The values that the function returns are then dropped.
    pub(crate) writer: Option<Writer<V>>,
}
