//! The integration tests of the server that may run at the same time. They are one program, so that they
//! are linked once. Tests that must run alone are in `alone`.

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "flight")]
mod flight;
mod garbage;
mod hostile;
mod http;
mod load_test;
mod offers;
mod rate;
mod reuse;
mod server;
mod spans;
mod trace;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No other test that makes many connections runs until this is dropped. A process may have 1,024
/// descriptors, unless its user has raised that limit. This process has both ends of each connection.
fn crowd() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
