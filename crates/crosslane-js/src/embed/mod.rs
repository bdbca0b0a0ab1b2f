//! Contexts of a program that embeds V8.

mod context;

pub use context::*;
