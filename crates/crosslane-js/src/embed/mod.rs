//! V8 contexts of a program that embeds V8. The Ruby package `crosslane-v8` uses them. Lanes do
//! not.
//!
//! `context` has contexts in the program, and their snapshots. `process` has contexts in processes of their
//! own, and `wire` their messages. Any thread of the program may use a context, one thread at a time.

mod context;
pub mod process;
pub(crate) mod wire;

pub use context::{Context, MOST_STACK, Program, Refused, Script};
