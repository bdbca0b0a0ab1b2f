//! All integration tests of the core, in one program, so that they are linked once.

mod call;
mod idle;
mod pool;
