//! All integration tests of the conversions, in one program, which is linked once.
//!
//! Its allocator counts for `allocations`, for each thread by itself, so tests that run beside that one disturb nothing.

mod allocations;
mod duckdb;
mod rows;
