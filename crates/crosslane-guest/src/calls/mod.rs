//! How functions are called for the rows of a batch, and how their calls are answered.

mod batch;
mod function;
mod language;

pub use batch::{Batch, Mishap, Progress};
pub use function::Function;
pub use language::{Language, done, fail, refuse, serve, succeed};
