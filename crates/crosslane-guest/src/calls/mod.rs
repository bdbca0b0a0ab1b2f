//! How functions are called for the rows of a batch, and how their calls are answered.
//!
//! [`Invoke`] calls one function once. A [`Batch`] calls it for all rows, with its NULLs, retries
//! and errors. A [`Function`] runs batches under the function's limits and answers them. [`serve`]
//! is the loop of a lane.

mod answer;
mod batch;
mod call_error;
mod function;
mod invoke;
mod language;
mod prepared;
mod serve;

pub use answer::{done, fail, refuse, succeed};
pub use batch::{Batch, Progress};
pub use call_error::CallError;
pub use function::Function;
pub use invoke::Invoke;
pub use language::Language;
pub use serve::serve;
