//! Waiting for the other side of a ring, and watching a ring from outside.

use crate::park::{Parked, Spin, Waiter, announce, wait, wait_any, wake};
use crate::ring::{Consumer, Memory, Producer};
use crate::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

impl<M: Memory> Consumer<M> {
    /// Returns the [`Waiter`] of a wait for a frame. [`wait_any`] can sleep on it together with
    /// others.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&self.memory.header().data_wait.0)
    }

    /// Waits for a frame, for at most `timeout`.
    pub fn wait(&mut self, spin: Spin, timeout: Duration) -> Parked {
        self.wait_or(spin, timeout, || false)
    }

    /// Waits for a frame, or until `stop` is true, for at most `timeout`. The thread that makes
    /// `stop` true must then call [`Alarm::sound`].
    pub fn wait_or(&mut self, spin: Spin, timeout: Duration, stop: impl Fn() -> bool) -> Parked {
        wait(&self.memory.header().data_wait.0, spin, timeout, || self.has_news() || stop())
    }
}

impl<M: Memory + Clone> Consumer<M> {
    /// Returns an [`Alarm`], which ends this consumer's waits from another thread.
    pub fn alarm(&self) -> Alarm<M> {
        Alarm(self.memory.clone())
    }
}

/// Ends a consumer's wait after its `stop` has changed. It uses the same fence and word as a
/// published position.
#[derive(Debug, Clone)]
pub struct Alarm<M>(M);

impl<M: Memory> Alarm<M> {
    /// Wakes the consumer if it sleeps. Then the consumer checks `stop` again.
    pub fn sound(&self) {
        wake(&self.0.header().data_wait.0);
    }
}

impl<M: Memory + Clone> Consumer<M> {
    /// Returns a [`Watch`] of the ring, for a thread that waits for many consumers while other
    /// threads use them.
    pub fn watch(&self) -> Watch<M> {
        Watch(self.memory.clone())
    }
}

/// Checks from another thread whether there is a frame for a consumer, and sleeps instead of the
/// consumer. The consumer itself must not sleep at the same time, because a wake reaches only one
/// of the two.
///
/// A thread that polls the ring can call [`Watch::suppress_wakes`]. Then the producer does not wake
/// the sleeping thread for each frame, because the wait word is 0, as if no thread slept.
/// [`Watch::resume_wakes`] makes the word 1 in the order in which a thread parks: store, fence,
/// look. The thread that suppressed wakes must resume them before it stops polling. Other threads
/// may resume them at any time. If no thread sleeps then, one wake has no effect.
#[derive(Debug)]
pub struct Watch<M>(M);

impl<M: Memory> Watch<M> {
    fn word(&self) -> &AtomicU32 {
        &self.0.header().data_wait.0
    }

    /// Returns the [`Waiter`] of a wait for a frame.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(self.word())
    }

    /// Stops wakes of the thread that sleeps on the ring, until [`Watch::resume_wakes`]. A thread that is
    /// about to sleep looks at the ring once more instead, so do not call this all the time.
    pub fn suppress_wakes(&self) {
        // Usually no thread sleeps. Without a store, the cache line stays with the other side.
        if self.word().load(Ordering::Relaxed) == 1 {
            self.word().store(0, Ordering::Relaxed);
        }
    }

    /// Allows wakes of the thread that sleeps on the ring again. Wakes it at once if there is a
    /// frame.
    pub fn resume_wakes(&self) {
        announce(self.word());
        fence(Ordering::SeqCst);
        if self.has_news() {
            wake(self.word());
        }
    }

    /// Returns whether the ring has a published frame that was not released. This is a hint,
    /// because the other side may have stored any position.
    pub fn has_news(&self) -> bool {
        let header = self.0.header();
        header.write.0.load(Ordering::Acquire) != header.read.0.load(Ordering::Acquire)
    }
}

impl<M: Memory> Producer<M> {
    /// Waits until the consumer has released a frame, for at most `timeout`.
    pub fn wait(&mut self, spin: Spin, timeout: Duration) -> Parked {
        wait(&self.memory.header().space_wait.0, spin, timeout, || self.has_news())
    }
}

/// Waits until the consumer has a frame or the producer's frames are released, for at most
/// `timeout`. The argument of `ready` is whether there is a frame that [`Consumer::ahead`] has not
/// returned. `ready` returns whether the wait ends. The thread that changes its answer must then
/// call [`Alarm::sound`] of the consumer. May return [`Parked::TimedOut`] early.
pub fn wait_either<M: Memory>(
    consumer: &Consumer<M>,
    producer: &Producer<M>,
    spin: Spin,
    timeout: Duration,
    ready: impl Fn(bool) -> bool,
) -> Parked {
    let waiters = [consumer.waiter(), Waiter::Word(&producer.memory.header().space_wait.0)];
    wait_any(waiters, spin, timeout, || producer.has_news() || ready(consumer.has_more()))
}
