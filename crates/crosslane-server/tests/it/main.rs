//! The integration tests of the server that may run at the same time, in one program, which is linked once. Those that may not
//! are in `alone`.

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "flight")]
mod flight;
mod garbage;
mod hostile;
mod http;
mod load_test;
mod server;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No other test that makes a crowd of connections runs until this is dropped: a process may have 1,024 descriptors unless its
/// user has said more, and both ends of a connection are in this one.
fn crowd() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
