//! Tests that need their process for themselves, and those that start programs.
//!
//! - `file_size` sets how large a file the process may make. Programs that other tests start would have the limit, too.
//! - `fork` forks. The child has the descriptors of all other tests, and their peers would not see them close. Both take the lock
//!   of [`alone`].
//! - `fork_server`, `panics` and `zygote` start programs. Until a program runs, its process has the descriptors of other tests, too. These tests
//!   wait for no descriptor to close at once, so they may run beside one another ([`beside`]), but beside no test of `it`.

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

/// What the body returns, if it does not hang. Shorter than the time that a zygote has for a lane.
fn soon<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(body()));
    result.recv_timeout(Duration::from_secs(20)).expect("it hangs, or panicked")
}
