//! All integration tests of the conversions, in one program, which is linked once.
//!
//! Its allocator counts allocations for each thread, so tests that run at the same time do not disturb `allocations`.

mod allocations;
mod duckdb;
mod rows;
