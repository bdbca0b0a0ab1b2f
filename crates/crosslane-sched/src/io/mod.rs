//! Sockets, pipes and other descriptors that tasks wait for.

mod descriptor;
#[cfg(feature = "futures-io")]
mod futures;
mod readiness;
mod tcp;

pub use descriptor::Io;
pub use readiness::Interest;
pub(crate) use readiness::Source;
