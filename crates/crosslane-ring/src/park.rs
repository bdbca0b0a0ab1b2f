//! Waiting for the other side: a short spin, then sleep. The crate's documentation has the protocol.

use crate::futex;
use crate::ring::{Consumer, Memory, Producer};
use crate::sync::{AtomicU32, Ordering, fence};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// How long a waiter yields before it sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Spin(pub Duration);

impl Default for Spin {
    /// 20 us: longer than a wake through the kernel takes, shorter than anyone notices.
    fn default() -> Self {
        Spin(Duration::from_micros(20))
    }
}

/// Up to so many rings are waited for without an allocation.
pub(crate) const FEW: usize = 16;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// There is something to do.
    Ready,
    /// The time is over.
    TimedOut,
}

/// Called after publishing a position: wakes the other side if it sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) == 1 {
        word.store(0, Ordering::Relaxed);
        futex::wake(word);
    }
}

fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Relaxed);
}

fn wait(word: &AtomicU32, spin: Spin, timeout: Duration, mut ready: impl FnMut() -> bool) -> Parked {
    if spun(spin, timeout, &mut ready) {
        return Parked::Ready;
    }
    let end = Instant::now() + timeout;
    loop {
        announce(word);
        fence(Ordering::SeqCst);
        if !ready() {
            futex::wait(word, 1, end.saturating_duration_since(Instant::now()));
        }
        word.store(0, Ordering::Relaxed);
        if ready() {
            return Parked::Ready;
        }
        // A wake that was meant for the wait before may come late. (The model has no time, and lets its
        // caller try again.)
        if cfg!(loom) || Instant::now() >= end {
            return Parked::TimedOut;
        }
    }
}

/// Sleeps once, until one of the words is woken.
fn sleep(words: &[&AtomicU32], timeout: Duration, mut ready: impl FnMut() -> bool) -> Parked {
    words.iter().for_each(|word| announce(word));
    fence(Ordering::SeqCst);
    if !ready() {
        futex::wait_any(words, timeout);
    }
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    if ready() { Parked::Ready } else { Parked::TimedOut }
}

#[cfg(not(loom))]
fn spun(spin: Spin, timeout: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if spin.0.is_zero() {
        return false;
    }
    let end = Instant::now() + spin.0.min(timeout);
    loop {
        for _ in 0..4 {
            std::thread::yield_now();
            if ready() {
                return true;
            }
        }
        if Instant::now() >= end {
            return false;
        }
    }
}

#[cfg(loom)]
fn spun(_: Spin, _: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    ready()
}

impl<M: Memory> Consumer<M> {
    /// Waits for a frame, `timeout` at most.
    pub fn wait(&mut self, spin: Spin, timeout: Duration) -> Parked {
        self.wait_or(spin, timeout, || false)
    }

    /// The same, or until `stop` says so. Who makes it say so must then sound the [`Alarm`].
    pub fn wait_or(&mut self, spin: Spin, timeout: Duration, stop: impl Fn() -> bool) -> Parked {
        wait(&self.memory.header().data_wait.0, spin, timeout, || self.has_news() || stop())
    }
}

impl<M: Memory + Clone> Consumer<M> {
    /// A way to end this consumer's waits from another thread.
    pub fn alarm(&self) -> Alarm<M> {
        Alarm(self.memory.clone())
    }
}

/// Ends a consumer's wait whose `stop` has changed: by the same fence and word as a published position does.
#[derive(Debug, Clone)]
pub struct Alarm<M>(M);

impl<M: Memory> Alarm<M> {
    /// Wakes the consumer, if it sleeps, so that it looks again.
    pub fn sound(&self) {
        wake(&self.0.header().data_wait.0);
    }
}

impl<M: Memory> Producer<M> {
    /// Waits until the consumer has taken something, `timeout` at most.
    pub fn wait(&mut self, spin: Spin, timeout: Duration) -> Parked {
        wait(&self.memory.header().space_wait.0, spin, timeout, || self.has_news())
    }
}

/// Waits for a frame on any of the rings, `timeout` at most. May say [`Parked::TimedOut`] early.
pub fn wait_any<M: Memory>(consumers: &mut [&mut Consumer<M>], spin: Spin, timeout: Duration) -> Parked {
    let mut ready = || consumers.iter().any(|consumer| consumer.has_news());
    if spun(spin, timeout, &mut ready) {
        return Parked::Ready;
    }
    let words: SmallVec<[&AtomicU32; FEW]> =
        consumers.iter().map(|c| &c.memory.header().data_wait.0).collect();
    sleep(&words, timeout, ready)
}

/// Waits until the consumer has a frame or the producer's frames are taken, `timeout` at most. `ready` is told whether
/// there is a frame, and says whether that, or anything else, ends the wait; who makes it say so must then sound the
/// consumer's [`Alarm`]. May say [`Parked::TimedOut`] early.
pub fn wait_either<M: Memory>(
    consumer: &Consumer<M>,
    producer: &Producer<M>,
    spin: Spin,
    timeout: Duration,
    ready: impl Fn(bool) -> bool,
) -> Parked {
    let mut ready = || producer.has_news() || ready(consumer.has_news());
    if spun(spin, timeout, &mut ready) {
        return Parked::Ready;
    }
    let words = [&consumer.memory.header().data_wait.0, &producer.memory.header().space_wait.0];
    sleep(&words, timeout, ready)
}
