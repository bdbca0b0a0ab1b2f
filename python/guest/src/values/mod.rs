//! Python's objects as SQL values, and back.
//!
//! `objects` has the rules for every type. [`fast_path`] has the quick ways of the usual types, and
//! [`layout`] the memory of CPython's objects, which the quick ways read and write.

pub(crate) mod datetime;
mod errors;
pub(crate) mod fast_path;
pub(crate) mod layout;
mod missing;
mod numbers;
mod objects;
mod temporal;
mod union;
pub(crate) mod vectorcall;
mod vm;

pub(crate) use errors::overflow;
pub(crate) use fast_path::FastPath;
pub(crate) use missing::*;
pub(crate) use vm::{Hint, Reader, Vm, Writer, reader, writer};
