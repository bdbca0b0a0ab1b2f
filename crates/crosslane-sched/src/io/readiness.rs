//! The readiness of a descriptor, and the tasks that wait for it.
//!
//! The kernel reports a change once (edge-triggered), so a [`Source`] stores it. A socket counts as
//! ready until an operation finds that it is not. The same word counts the events. So if an event
//! comes during such an operation, its readiness is not cleared.

use crate::sync::{Mutex, MutexGuard, lock};
use crate::task::wake;
use rustix::event::epoll::EventFlags;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// The event of a descriptor that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// The descriptor has bytes to read, or the other side has closed it.
    Read,
    /// The descriptor has space to write, or the other side has closed it.
    Write,
}

pub(super) const READ: u64 = 1;
const WRITE: u64 = 2;
/// The other side has closed, or there is an error. Then a short transfer does not show that the
/// next operation would wait.
const READ_CLOSED: u64 = 4;
const WRITE_CLOSED: u64 = 8;
/// The rest of the word counts events.
const EVENT: u64 = 16;

impl Interest {
    pub(super) fn ready(self) -> u64 {
        match self {
            Interest::Read => READ | READ_CLOSED,
            Interest::Write => WRITE | WRITE_CLOSED,
        }
    }
}

/// One waiting future.
#[derive(Debug)]
struct Waiter {
    key: u64,
    waker: Waker,
}

/// The waiting futures. Most sockets have one reader and one writer.
#[derive(Debug, Default)]
struct Waiters {
    reader: Option<Waiter>,
    writer: Option<Waiter>,
    more: Vec<Waiter>,
    last_key: u64,
}

impl Waiters {
    fn first(&mut self, interest: Interest) -> &mut Option<Waiter> {
        match interest {
            Interest::Read => &mut self.reader,
            Interest::Write => &mut self.writer,
        }
    }

    fn add(&mut self, interest: Interest, waker: Waker) -> u64 {
        self.last_key += 1;
        let key = self.last_key;
        let waiter = Waiter { key, waker };
        let first = self.first(interest);
        if first.is_none() {
            *first = Some(waiter);
        } else {
            self.more.push(waiter);
        }
        key
    }

    fn remove(&mut self, interest: Interest, key: u64) -> Option<Waiter> {
        if let Some(waiter) = self.first(interest).take_if(|waiter| waiter.key == key) {
            return Some(waiter);
        }
        let at = self.more.iter().position(|waiter| waiter.key == key)?;
        Some(self.more.swap_remove(at))
    }
}

/// The readiness of one descriptor.
#[derive(Debug)]
pub(crate) struct Source {
    readiness: AtomicU64,
    waiters: Mutex<Waiters>,
}

impl Source {
    /// Makes the source of a new descriptor. It counts as ready. A successful operation needs no
    /// event, and an operation that would wait corrects this.
    pub(super) fn new() -> Self {
        Source { readiness: AtomicU64::new(READ | WRITE), waiters: Mutex::default() }
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        lock(&self.waiters)
    }

    /// Stores the readiness that an event reports, and wakes the tasks that wait for it.
    pub(crate) fn deliver(&self, flags: EventFlags) {
        let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let mut news = 0;
        if flags.contains(EventFlags::IN) {
            news |= READ;
        }
        if flags.contains(EventFlags::OUT) {
            news |= WRITE;
        }
        if ended || flags.contains(EventFlags::RDHUP) {
            news |= READ_CLOSED;
        }
        if ended {
            news |= WRITE_CLOSED;
        }
        let noted = |word: u64| Some((word | news).wrapping_add(EVENT));
        let _ = self.readiness.fetch_update(Ordering::AcqRel, Ordering::Acquire, noted);

        let mut waiters = self.waiters();
        let reader = if news & Interest::Read.ready() != 0 { waiters.reader.take() } else { None };
        let writer = if news & Interest::Write.ready() != 0 { waiters.writer.take() } else { None };
        let more = std::mem::take(&mut waiters.more);
        // A waker may run code of a user, and this code may call this source again.
        drop(waiters);
        for waiter in [reader, writer].into_iter().flatten().chain(more) {
            wake(waiter.waker);
        }
    }

    /// Returns the word of readiness, if the descriptor is ready.
    pub(super) fn ready(&self, interest: Interest) -> Option<u64> {
        let word = self.readiness.load(Ordering::Acquire);
        (word & interest.ready() != 0).then_some(word)
    }

    /// Puts a waker into the list of waiting tasks, unless the descriptor has become ready. `key`
    /// is its place in the list.
    pub(super) fn wait(&self, interest: Interest, key: &mut Option<u64>, waker: Waker) -> Poll<u64> {
        let mut waiters = self.waiters();
        // `deliver` stores the readiness before it takes the waiters under the lock. So either this
        // sees the event, or `deliver` finds the waker.
        if let Some(word) = self.ready(interest) {
            drop(waiters);
            return Poll::Ready(word);
        }
        *key = Some(waiters.add(interest, waker));
        Poll::Pending
    }

    /// Leaves the list of waiting tasks.
    pub(super) fn leave(&self, interest: Interest, key: &mut Option<u64>) {
        if let Some(key) = key.take() {
            let waiter = self.waiters().remove(interest, key);
            // A waker may run code of a user, so it is dropped without the lock.
            drop(waiter);
        }
    }

    /// Clears readiness bits, unless an event came after `seen` was read.
    pub(super) fn clear(&self, bits: u64, seen: u64) {
        let _ = self.readiness.compare_exchange(seen, seen & !bits, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn poll(source: &Source, interest: Interest, key: &mut Option<u64>) -> Poll<u64> {
        source.leave(interest, key);
        source.wait(interest, key, Waker::noop().clone())
    }

    /// Two sockets may have the same number, one after the other.
    #[test]
    fn a_late_event_of_another_socket_is_forgotten() {
        let source = Source::new();
        source.deliver(EventFlags::HUP | EventFlags::ERR);
        for interest in [Interest::Read, Interest::Write] {
            let Poll::Ready(seen) = poll(&source, interest, &mut None) else {
                panic!("the event made it ready");
            };
            source.clear(interest.ready(), seen);
            assert!(poll(&source, interest, &mut None).is_pending());
        }
    }

    #[test]
    fn a_task_that_stops_waiting_leaves_the_list() {
        let source = Source::new();
        source.clear(READ, READ | WRITE);
        for _ in 0..100 {
            let (mut one, mut other) = (None, None);
            assert!(poll(&source, Interest::Read, &mut one).is_pending());
            assert!(poll(&source, Interest::Read, &mut other).is_pending());
            // Polling again leaves the list and enters it anew.
            assert!(poll(&source, Interest::Read, &mut one).is_pending());
            source.leave(Interest::Read, &mut one);
            source.leave(Interest::Read, &mut other);
        }
        let waiters = source.waiters();
        assert!(waiters.reader.is_none() && waiters.more.is_empty());
    }
}
