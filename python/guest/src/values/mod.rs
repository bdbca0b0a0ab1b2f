//! Python's objects as SQL values, and back.
//!
//! [`objects`] has the rules for every type. [`fast_path`] has the quick ways of the usual types, and [`layout`] the memory
//! of CPython's objects, which the quick ways read and write.

pub(crate) mod datetime;
pub(crate) mod fast_path;
pub(crate) mod layout;
pub(crate) mod objects;
pub(crate) mod vectorcall;
