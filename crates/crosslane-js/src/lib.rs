//! The JavaScript guest: V8 isolates that boot from a snapshot of a library.
//!
//! | module | what |
//! |---|---|
//! | [`library`] | a file and its modules, loaded once and kept as a [`snapshot`] |
//! | [`isolate`] | one heap of JavaScript: boots from a snapshot, runs calls, ends them from outside |
//! | [`guest`] | an isolate that answers batches with results or failures |
//! | [`embed`] | contexts of a program that embeds V8 |
//! | [`attention`] | whether there are calls that have to be watched |
//! | [`host`] | the process around it: a zygote whose lanes are threads, one isolate each |
//! | `js/` | the JavaScript side: loops, readers and writers made for each function's types |
//! | `../shim` | V8's C++ interface as a small C one |
//!
//! Nothing that runs in an isolate can reach a file, a socket or a process: V8 alone has none, and nothing
//! is added to it but `console` (to the log) and timers. What can be used up is limited: time by ending the
//! call, the stack by V8, and memory by looking at the heap after each collection, by counting array buffers, and
//! where V8 does neither by what the kernel gives to the lane's thread ([`lane`]).

pub mod embed;
pub mod guest;
pub mod host;
pub mod isolate;
pub mod library;

pub use host::attention;
pub use isolate::Snapshot;

/// Snapshots by the name that programs know.
pub mod snapshot {
    pub use crate::isolate::Snapshot;
}
