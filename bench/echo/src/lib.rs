//! A load generator for echo servers, and the servers to which crosslane-sched's is compared.
//!
//! # The protocol
//!
//! A connection carries frames of 64 bytes, all integers little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | the request's number |
//! | 8..12 | how many microseconds the server keeps a processor busy before it answers |
//! | 12..64 | filler |
//!
//! The server sends the same 64 bytes back, in any order. It binds port 0 of 127.0.0.1, prints
//! `listening on 127.0.0.1:PORT`, and ends when its stdin is closed.

pub mod frame;
pub mod load;
pub mod micro;
pub mod percentiles;
pub mod process;
pub mod raw;
pub mod tasks;
pub mod usage;
