//! All integration tests of the core, in one program, which is linked once.

mod call;
mod idle;
mod pool;
