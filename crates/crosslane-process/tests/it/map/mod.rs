//! Streams through process lanes.

mod fixture;
mod losses;
mod results;
