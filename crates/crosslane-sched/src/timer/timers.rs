//! The sleeping tasks of a group, by due time.

use crate::idle::Poller;
use crate::sync::{Mutex, lock};
use crate::task::wake;
use std::collections::BTreeMap;
use std::io;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Replaces a duration that cannot be added to the current time.
pub(crate) const FAR_AWAY: Duration = Duration::from_secs(100 * 365 * 86400);

/// The due time of a sleeper, and a number that distinguishes sleepers of the same instant.
pub(super) type Key = (Instant, u64);

#[derive(Debug, Default)]
struct Sleepers {
    by_time: BTreeMap<Key, Waker>,
    next: u64,
}

/// The timers of a group. The kernel's timer is set to the first of them.
#[derive(Debug, Default)]
pub(crate) struct Timers(Mutex<Sleepers>);

impl Timers {
    pub(super) fn add(&self, due: Instant, waker: Waker, poller: &Poller) -> io::Result<Key> {
        let mut sleepers = lock(&self.0);
        let key = (due, sleepers.next);
        sleepers.next += 1;
        let is_first = sleepers.by_time.first_key_value().is_none_or(|(first, _)| key < *first);
        if is_first {
            poller.set_timer(due)?;
        }
        sleepers.by_time.insert(key, waker);
        Ok(key)
    }

    pub(super) fn remove(&self, key: Key) -> Option<Waker> {
        lock(&self.0).by_time.remove(&key)
    }

    /// Sets the waker of a sleeper. Returns the old waker. It may hold the last reference to a
    /// task, so the caller drops it without the lock.
    pub(super) fn set_waker(&self, key: Key, waker: Waker) -> Waker {
        match lock(&self.0).by_time.get_mut(&key) {
            Some(there) => std::mem::replace(there, waker),
            None => waker,
        }
    }

    /// Takes the sleepers that are due, and sets the kernel's timer to the next one.
    pub(crate) fn take_due(&self, poller: &Poller) -> Vec<Waker> {
        let mut sleepers = lock(&self.0);
        let later = sleepers.by_time.split_off(&(Instant::now(), u64::MAX));
        let due = std::mem::replace(&mut sleepers.by_time, later);
        if let Some(((next, _), _)) = sleepers.by_time.first_key_value() {
            poller.set_timer(*next).expect("a timer that was set before can be set again");
        }
        due.into_values().collect()
    }

    /// Wakes all sleepers. They then see that the scheduler has ended.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut lock(&self.0).by_time);
        all.into_values().for_each(wake);
    }
}
