//! Conversion between Ruby objects and SQL values.

pub(crate) mod columns;
mod conversion;
mod datetime;
mod fields;
mod objects;
pub(crate) mod primitives;
pub(crate) mod shared;
mod vm;

pub(crate) use columns::{Reader, Writer, exception};
pub(crate) use primitives::{Held, intern, known, send};
pub(crate) use vm::{CallError, Fault, Vm};
