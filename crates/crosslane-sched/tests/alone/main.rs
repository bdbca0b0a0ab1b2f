//! Tests that need the process for themselves. Each test takes the lock of [`alone`], so that only one
//! runs at a time:
//!
//! - `descriptors` limits the number of descriptors of the process. Other tests would find none.
//! - `fork` forks. The child has the descriptors of all other tests, so their peers would not see them
//!   close. In the child, locks that other threads held stay locked.
//! - `echo` starts a program. Until the program runs, its process has the descriptors of other tests, too.
#![cfg(not(loom))]

mod descriptors;
mod echo;
mod fork;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No other test runs until this is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
