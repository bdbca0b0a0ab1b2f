//! Tests that need the process for themselves, and tests that start programs.
//!
//! - `file_size` limits the size of the files that the process may make. Programs that other tests start
//!   would inherit the limit.
//! - `fork` forks. The child has the descriptors of all other tests, so their peers would not see them
//!   close. Both tests take the lock of [`alone`].
//! - `fork_server`, `panics` and `zygote` start programs. Until a program runs, its process has the
//!   descriptors of other tests, too. These tests do not wait for a descriptor to close at once. So they
//!   may run at the same time ([`beside`]), but not at the same time as a test of `it`.

mod file_size;
mod fork;
mod fork_server;
mod panics;
mod zygote;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

static PROCESS: RwLock<()> = RwLock::new(());

/// No other test runs until this is dropped.
fn alone() -> RwLockWriteGuard<'static, ()> {
    PROCESS.write().unwrap_or_else(PoisonError::into_inner)
}

/// No test that needs the process for itself runs until this is dropped.
fn beside() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the body's result, and panics if the body takes too long. The limit is shorter than the time
/// that a zygote has for a lane.
fn soon<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(body()));
    result.recv_timeout(Duration::from_secs(20)).expect("it hangs, or panicked")
}
