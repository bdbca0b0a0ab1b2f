//! Tests that need their process for themselves. Each takes the lock of [`alone`], so one runs at a time:
//!
//! - `descriptors` sets how many descriptors the process may have. Other tests would find none.
//! - `fork` forks. The child has the descriptors of all other tests, and their peers would not see them close. Locks that other
//!   threads held stay locked in the child.
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
