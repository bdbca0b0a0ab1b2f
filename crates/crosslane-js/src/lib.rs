//! The JavaScript guest: V8 isolates that boot from a snapshot of a library.
//!
//! | module | what |
//! |---|---|
//! | [`library`] | a file and its modules, loaded once and kept as a [snapshot](isolate::Snapshot) |
//! | [`isolate`] | one heap of JavaScript: boots from a snapshot, runs calls, ends them from outside |
//! | [`guest`] | an isolate that answers batches with results or failures |
//! | [`embed`] | contexts of a program that embeds V8 |
//! | [`attention`] | whether there are calls that have to be watched |
//! | [`host`] | the process around it: a zygote whose lanes are threads, one isolate each |
//! | `js/` | the JavaScript side: loops, readers and writers made for each function's types |
//! | `../shim` | V8's C++ interface as a small C one |
//!
//! Code in an isolate cannot reach files, sockets or processes: V8 has none, and this crate adds
//! only `console` (to the log) and timers. Code that breaks out of V8 finds no system call for them: the
//! host has none once its library is loaded ([`host::confine`]). Time is limited by ending the call, and the stack by V8.
//! Memory is limited in three ways: the heap is checked after each collection, array buffers are
//! counted, and the kernel counts the pages of the lane's thread where V8 does neither ([`host`]).

pub mod embed;
pub mod guest;
pub mod host;
pub mod isolate;
pub mod library;
#[cfg(node)]
pub mod start;

pub use host::attention;
