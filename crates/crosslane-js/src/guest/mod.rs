//! An isolate that answers batches with results or failures.

mod columns;
mod results;
mod serve;

pub use serve::*;
