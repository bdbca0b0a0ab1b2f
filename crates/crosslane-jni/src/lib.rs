//! The native half of the Spark plugin.
//!
//! Java passes addresses of columns outside its heap, and this crate reads and writes columns
//! there. It calls Java only to throw exceptions. [`natives`] has the methods that Java calls. All
//! else is plain Rust:
//!
//! | module | content |
//! |---|---|
//! | [`columns`] | columns in the JVM's memory, and columns of ours that the JVM reads |
//! | [`library`] | the libraries of this process, and what Spark needs to know of their functions |
//! | `queries` | the calls that a query has made of functions with a `budget` |
//! | [`states`] | the states of an aggregate in one Spark task |
//! | [`task`] | the calls of one Spark task: batches go in while results come out |
//!
//! A thread of the JVM holds no lock of the JVM while it waits here. [`task::Task::take`] has a
//! timeout, so that the caller can see whether Spark has killed its task.

pub mod columns;
pub mod library;
mod method;
mod natives;
mod queries;
pub mod states;
pub mod task;
