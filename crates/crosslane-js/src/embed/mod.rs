//! V8 contexts of a program that embeds V8. The Ruby package `crosslane-v8` uses them; lanes do not.
//!
//! `context` has the contexts and the snapshots that they boot from. Any thread of the program may
//! use a context, one thread at a time.

mod context;

pub use context::{Context, MOST_STACK, Program, Refused, Script};
