//! V8 contexts of a program that embeds V8. The Ruby package `crosslane-v8` uses them. Lanes do
//! not.
//!
//! `context` has the contexts and their snapshots. Any thread of the program may use a context, one
//! thread at a time.

mod context;

pub use context::{Context, MOST_STACK, Program, Refused, Script};
