//! Locks that stay usable after a thread that held them has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also if a thread that held it has panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
