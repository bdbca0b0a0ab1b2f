//! Exceptions that the thread of a query raises again, by their tickets. A ticket is a number. Only
//! the ticket passes through DuckDB.
//!
//! Rust stores the exceptions. A Ruby method could be interrupted while it stores one, and the
//! interrupt's exception would replace it.

use crate::values::{Held, known};
use crosslane_gvl::Unwind;
use magnus::Value;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use rb_sys::{Qtrue, VALUE};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most stored exceptions. A query may never take its exception, because it can ignore an error
/// (`TRY`).
const MOST: usize = 1000;

#[derive(Debug, Default)]
struct Exceptions {
    exceptions: BTreeMap<u64, Held>,
    tickets: u64,
}

static EXCEPTIONS: Mutex<Exceptions> = Mutex::new(Exceptions { exceptions: BTreeMap::new(), tickets: 0 });

fn lock() -> MutexGuard<'static, Exceptions> {
    EXCEPTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores an exception, which must be on the caller's stack. Returns its ticket, or 0 if there is
/// no memory for it. With the GVL.
pub(crate) fn add(exception: VALUE) -> u64 {
    // SAFETY: the exception is alive, as the caller says.
    let Ok(held) = Held::new(unsafe { Value::from_raw(exception) }) else { return 0 };
    let mut stored = lock();
    let oldest = if stored.exceptions.len() >= MOST { stored.exceptions.pop_first() } else { None };
    stored.tickets += 1;
    let ticket = stored.tickets;
    stored.exceptions.insert(ticket, held);
    drop(stored);
    drop(oldest);
    ticket
}

/// Takes the exception of a ticket. The ticket is invalid afterwards. With the GVL.
pub(crate) fn take(ticket: u64) -> Option<Value> {
    let held = lock().exceptions.remove(&ticket)?;
    Some(held.get())
}

/// Whether the exception of a ticket ends the program or its thread, or is a `throw`. With the GVL.
pub(crate) fn is_final(ticket: u64) -> bool {
    let Some(exception) = lock().exceptions.get(&ticket).map(|held| held.get().as_raw()) else {
        return false;
    };
    // SAFETY: the exception is alive, since no code ran since it was looked up. Asking for its
    // class raises nothing.
    let is_throw = unsafe { rb_sys::rb_obj_is_kind_of(exception, known().uncaught_throw) == Qtrue as VALUE };
    is_throw || Unwind::Raise(exception).is_final()
}
