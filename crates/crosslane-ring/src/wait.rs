//! Waiting for the other side of a ring, and watching a ring from outside.

use crate::park::{Parked, Spin, Waiter, announce, wait, wait_any, wake};
use crate::ring::{Consumer, Memory, Producer};
use crate::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

impl<M: Memory> Consumer<M> {
    /// What a wait for a frame sleeps on. A wait can sleep on it together with others
    /// ([`wait_any`]).
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&self.memory.header().data_wait.0)
    }

    /// Waits for a frame, for at most `timeout`.
    pub fn wait(&mut self, spin: Spin, timeout: Duration) -> Parked {
        self.wait_or(spin, timeout, || false)
    }

    /// Waits for a frame or until `stop` is true. The thread that makes it true must then sound the
    /// [`Alarm`].
    pub fn wait_or(&mut self, spin: Spin, timeout: Duration, stop: impl Fn() -> bool) -> Parked {
        wait(&self.memory.header().data_wait.0, spin, timeout, || self.has_news() || stop())
    }
}

impl<M: Memory + Clone> Consumer<M> {
    /// Ends this consumer's waits from another thread.
    pub fn alarm(&self) -> Alarm<M> {
        Alarm(self.memory.clone())
    }
}

/// Ends a consumer's wait whose `stop` has changed. It uses the same fence and word as a published
/// position.
#[derive(Debug, Clone)]
pub struct Alarm<M>(M);

impl<M: Memory> Alarm<M> {
    /// Wakes the consumer if it sleeps, so that it checks `stop` again.
    pub fn sound(&self) {
        wake(&self.0.header().data_wait.0);
    }
}

impl<M: Memory + Clone> Consumer<M> {
    /// A view of the ring for a thread that waits for many consumers while other threads use them.
    pub fn watch(&self) -> Watch<M> {
        Watch(self.memory.clone())
    }
}

/// Sees from outside whether there is a frame for a consumer, and sleeps in its place. The consumer
/// itself must not sleep at the same time: a wake reaches only one of the two.
///
/// A thread that polls the ring anyway can [hush](Watch::hush) it, so that its producer need not
/// wake the sleeping thread for each frame. The wait word is 0 then, as if no thread slept.
/// [`Watch::unhush`] makes it 1 in the order in which a thread parks: store, fence, look. The
/// thread that hushed the ring must unhush it before it stops polling. Other threads may unhush it
/// at any time; if no thread sleeps then, one wake has no effect.
#[derive(Debug)]
pub struct Watch<M>(M);

impl<M: Memory> Watch<M> {
    fn word(&self) -> &AtomicU32 {
        &self.0.header().data_wait.0
    }

    /// What a wait for a frame sleeps on.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(self.word())
    }

    /// A thread that sleeps on the ring now is not woken for it until [`Watch::unhush`]. A thread
    /// that is about to sleep looks at the ring once more instead of sleeping, so do not call this
    /// all the time.
    pub fn hush(&self) {
        // Usually no thread sleeps; without a store the cache line stays with the other side.
        if self.word().load(Ordering::Relaxed) == 1 {
            self.word().store(0, Ordering::Relaxed);
        }
    }

    /// Threads that sleep on the ring are woken for it again: at once, if there is a frame.
    pub fn unhush(&self) {
        announce(self.word());
        fence(Ordering::SeqCst);
        if self.has_news() {
            wake(self.word());
        }
    }

    /// Whether a frame was published that was not released. A hint: the other side may have stored
    /// any position.
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
/// `timeout`. `ready` gets whether there is a frame that [`Consumer::ahead`] has not returned, and
/// tells whether the wait ends. The thread that changes its answer must then sound the consumer's
/// [`Alarm`]. May return [`Parked::TimedOut`] early.
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
