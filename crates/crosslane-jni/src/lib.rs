//! The native half of the Spark plugin.
//!
//! A JVM has memory that others can read at an address, and this crate reads and writes columns there; it calls nothing of Java's but
//! to throw. [`natives`] is what Java sees. All else is plain Rust:
//!
//! | module | what it is |
//! |---|---|
//! | [`columns`] | columns that lie in the JVM's memory, and columns of ours that the JVM reads |
//! | [`library`] | the libraries of this process, and what Spark needs to know of their functions |
//! | [`states`] | the states of an aggregate in one Spark task |
//! | [`task`] | the calls of one Spark task: batches go in while results come out |
//!
//! The JVM's threads wait here without a lock of the JVM's, and never for a guest longer than they ask for: [`task::Task::take`] has
//! a timeout, so that the caller can look whether its task was killed.

pub mod columns;
pub mod library;
mod natives;
pub mod states;
pub mod task;
