//! The test that needs a process for itself: `tls` says in the environment whom clients trust, and nobody may read the
//! environment meanwhile.

#[path = "../common/mod.rs"]
mod common;
mod tls;
