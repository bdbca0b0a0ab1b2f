//! A library: a file and its modules, loaded once and kept as a snapshot.

mod load;
mod source;
#[cfg(feature = "typescript")]
mod typescript;
mod unreadable;

pub use load::*;
