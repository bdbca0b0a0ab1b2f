//! All integration tests of the rings, in one program, which is linked once.

#[cfg(loom)]
mod loom;
#[cfg(not(any(loom, miri)))]
mod region;
#[cfg(not(loom))]
mod ring;
