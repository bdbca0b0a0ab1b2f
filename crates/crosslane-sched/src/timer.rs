//! Sleeping: the sleepers of a group by the time at which they are due.

use crate::poller::Poller;
use crate::scheduler::Group;
use crate::worker::Current;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What cannot be added to the time of today is as good as for ever.
pub(crate) const FAR_AWAY: Duration = Duration::from_secs(100 * 365 * 86400);

/// When a sleeper is due, and a number that tells those of the same instant apart.
type Key = (Instant, u64);

#[derive(Debug, Default)]
struct Sleepers {
    by_time: BTreeMap<Key, Waker>,
    next: u64,
}

/// The timers of a group. The kernel's timer is set to the first of them.
#[derive(Debug, Default)]
pub(crate) struct Timers(Mutex<Sleepers>);

impl Timers {
    fn add(&self, due: Instant, waker: Waker, poller: &Poller) -> io::Result<Key> {
        let mut sleepers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (due, sleepers.next);
        sleepers.next += 1;
        let is_first = sleepers.by_time.first_key_value().is_none_or(|(first, _)| key < *first);
        if is_first {
            poller.set_timer(due)?;
        }
        sleepers.by_time.insert(key, waker);
        Ok(key)
    }

    fn remove(&self, key: Key) -> Option<Waker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_time.remove(&key)
    }

    /// Returns the old waker, which may hold the last reference to a task, and so goes outside of the lock.
    fn set_waker(&self, key: Key, waker: Waker) -> Waker {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).by_time.get_mut(&key) {
            Some(there) => std::mem::replace(there, waker),
            None => waker,
        }
    }

    /// Takes those that are due, and sets the kernel's timer to the next.
    pub(crate) fn take_due(&self, poller: &Poller) -> Vec<Waker> {
        let mut sleepers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = sleepers.by_time.split_off(&(Instant::now(), u64::MAX));
        let due = std::mem::replace(&mut sleepers.by_time, later);
        if let Some(((next, _), _)) = sleepers.by_time.first_key_value() {
            poller.set_timer(*next).expect("a timer that was set before can be set again");
        }
        due.into_values().collect()
    }
}

/// Waits for some time.
///
/// # Panics
/// If it is polled outside of a task of a scheduler.
pub fn sleep(duration: Duration) -> Sleep {
    let now = Instant::now();
    Sleep { due: now.checked_add(duration).unwrap_or(now + FAR_AWAY), timer: None }
}

/// A future that is ready at some time; see [`sleep`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    due: Instant,
    timer: Option<(Arc<Group>, Key)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.due <= Instant::now() {
            return Poll::Ready(());
        }
        if let Some((group, key)) = &self.timer {
            drop(group.timers.set_waker(*key, context.waker().clone()));
        } else {
            let group = Current::group().expect("sleep is awaited in a task of a scheduler");
            let key = group.timers.add(self.due, context.waker().clone(), &group.poller);
            let key = key.expect("the kernel's timer can be set");
            self.timer = Some((group, key));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((group, key)) = self.timer.take() {
            // The waker may hold the last reference to its task, so it goes outside of the lock.
            drop(group.timers.remove(key));
        }
    }
}
