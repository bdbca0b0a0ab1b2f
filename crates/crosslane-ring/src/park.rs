//! Waiting for the other side: a short spin, then sleep. The crate's documentation has the protocol.

use crate::futex;
use crate::ring::{Consumer, Memory, Producer};
use crate::sync::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;
#[cfg(not(loom))]
use std::os::fd::BorrowedFd;
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

/// Where the kernel cannot watch all that is waited for, a sleep is no longer than this.
#[cfg(not(loom))]
pub(crate) const BLIND: Duration = Duration::from_millis(1);

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

/// What a wait sleeps on.
#[derive(Debug, Clone, Copy)]
pub enum Waiter<'a> {
    /// The word of a ring, or one that is used like it: who has news wakes who has stored 1 in it.
    Word(&'a AtomicU32),
    /// A descriptor that can be read, or is at its end, when there is news.
    #[cfg(not(loom))]
    Descriptor(BorrowedFd<'a>),
}

/// Words and descriptors that are slept on together.
#[derive(Default)]
struct Sleep<'a> {
    words: SmallVec<[&'a AtomicU32; FEW]>,
    #[cfg(not(loom))]
    descriptors: SmallVec<[PollFd<'a>; FEW]>,
}

impl<'a> Extend<Waiter<'a>> for Sleep<'a> {
    fn extend<I: IntoIterator<Item = Waiter<'a>>>(&mut self, waiters: I) {
        for waiter in waiters {
            match waiter {
                Waiter::Word(word) => self.words.push(word),
                #[cfg(not(loom))]
                Waiter::Descriptor(descriptor) => {
                    self.descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
                }
            }
        }
    }
}

impl Sleep<'_> {
    /// Sleeps once, until one of them has news.
    fn once(mut self, timeout: Duration, mut ready: impl FnMut() -> bool) -> Parked {
        self.words.iter().for_each(|word| announce(word));
        fence(Ordering::SeqCst);
        if !ready() {
            self.doze(timeout);
        }
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        if ready() { Parked::Ready } else { Parked::TimedOut }
    }

    #[cfg(loom)]
    fn doze(&mut self, timeout: Duration) {
        futex::wait_any(&self.words, timeout);
    }

    /// The kernel watches words or descriptors. Where there are both, it watches the words for a moment.
    #[cfg(not(loom))]
    fn doze(&mut self, timeout: Duration) {
        match (&self.words[..], &mut self.descriptors[..]) {
            (words, []) => futex::wait_any(words, timeout),
            ([], descriptors) => {
                let timeout = Timespec {
                    tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
                    tv_nsec: timeout.subsec_nanos().into(),
                };
                // An error, such as a signal, is an early end.
                let _ = rustix::event::poll(descriptors, Some(&timeout));
            }
            (words, _) => futex::wait_any(words, timeout.min(BLIND)),
        }
    }
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
    /// What a wait for a frame sleeps on, beside other things that are waited for.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&self.memory.header().data_wait.0)
    }

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

impl<M: Memory + Clone> Consumer<M> {
    /// A view of the ring for who waits for many consumers while others use them.
    pub fn watch(&self) -> Watch<M> {
        Watch(self.memory.clone())
    }
}

/// Sees from outside whether there is something for a consumer, and sleeps in its place. The consumer itself must not sleep
/// meanwhile: a wake is for one of the two.
///
/// Who looks again and again anyway can [hush](Watch::hush) the ring, so that its producer need not wake the sleeper for each frame: the
/// wait word is 0 then, as if nobody slept. [`Watch::unhush`] makes it 1, by the protocol of who parks: store, fence, look. Whoever has
/// hushed the ring must unhush it before it looks no more; others may do so as well, at any time. If nobody sleeps then, one wake is in
/// vain.
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

    /// Who sleeps on the ring now is not woken for it until [`Watch::unhush`]. One who is about to sleep looks once more instead: so this
    /// is not to be called all the time.
    pub fn hush(&self) {
        // Mostly nobody sleeps, and the other side need not give the cache line away.
        if self.word().load(Ordering::Relaxed) == 1 {
            self.word().store(0, Ordering::Relaxed);
        }
    }

    /// Who sleeps on the ring is woken again: at once, if there is something.
    pub fn unhush(&self) {
        announce(self.word());
        fence(Ordering::SeqCst);
        if self.has_news() {
            wake(self.word());
        }
    }

    /// Whether something was published that was not given back. A hint: both positions may be nonsense.
    pub fn has_news(&self) -> bool {
        let header = self.0.header();
        header.write.0.load(Ordering::Acquire) != header.read.0.load(Ordering::Acquire)
    }
}

/// Ends a [`wait_any`] that sleeps on it beside rings, in this process.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Wakes who sleeps on it. Whoever does must have made its `ready` say so before.
    pub fn ring(&self) {
        wake(&self.0);
    }

    /// What the wait sleeps on.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&self.0)
    }
}

impl<M: Memory> Producer<M> {
    /// Waits until the consumer has taken something, `timeout` at most.
    pub fn wait(&mut self, spin: Spin, timeout: Duration) -> Parked {
        wait(&self.memory.header().space_wait.0, spin, timeout, || self.has_news())
    }
}

/// Waits until `ready` says so, `timeout` at most: it is asked again when one of the waiters has news. They may be of any make,
/// and are asked for when the wait sleeps. May say [`Parked::TimedOut`] early; so it does after a millisecond where there are
/// words and descriptors, which the kernel does not watch together.
pub fn wait_any<'a>(
    waiters: impl IntoIterator<Item = Waiter<'a>>,
    spin: Spin,
    timeout: Duration,
    mut ready: impl FnMut() -> bool,
) -> Parked {
    if spun(spin, timeout, &mut ready) {
        return Parked::Ready;
    }
    let mut sleep = Sleep::default();
    sleep.extend(waiters);
    sleep.once(timeout, ready)
}

/// Waits until the consumer has a frame or the producer's frames are taken, `timeout` at most. `ready` is told whether
/// there is a frame that was not looked at ([`Consumer::ahead`]), and says whether that, or anything else, ends the wait; who makes it say so must then sound the
/// consumer's [`Alarm`]. May say [`Parked::TimedOut`] early.
pub fn wait_either<M: Memory>(
    consumer: &Consumer<M>,
    producer: &Producer<M>,
    spin: Spin,
    timeout: Duration,
    ready: impl Fn(bool) -> bool,
) -> Parked {
    let mut ready = || producer.has_news() || ready(consumer.has_more());
    if spun(spin, timeout, &mut ready) {
        return Parked::Ready;
    }
    let mut sleep = Sleep::default();
    sleep.extend([consumer.waiter(), Waiter::Word(&producer.memory.header().space_wait.0)]);
    sleep.once(timeout, ready)
}
