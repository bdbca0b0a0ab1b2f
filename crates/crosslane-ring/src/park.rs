//! Waiting for the other side: a short spin, then sleep. The crate's documentation has the
//! protocol.

#[cfg(not(loom))]
use crate::futex::BLIND;
use crate::futex::{self, FEW};
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

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// What the thread waited for is there.
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

pub(crate) fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Relaxed);
}

pub(crate) fn wait(
    word: &AtomicU32,
    spin: Spin,
    timeout: Duration,
    mut ready: impl FnMut() -> bool,
) -> Parked {
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
        // A wake for an earlier wait may come late. (The model has no time; its caller tries
        // again.)
        if cfg!(loom) || Instant::now() >= end {
            return Parked::TimedOut;
        }
    }
}

/// What a wait sleeps on.
#[derive(Debug, Clone, Copy)]
pub enum Waiter<'a> {
    /// The wait word of a ring, or a word with the same protocol: a thread stores 1 in it before it
    /// sleeps, and the thread that has news wakes it.
    Word(&'a AtomicU32),
    /// A descriptor that becomes readable, or reaches its end, when there is news.
    #[cfg(not(loom))]
    Descriptor(BorrowedFd<'a>),
}

/// The words and descriptors on which one sleep waits.
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

    /// The kernel can watch words or descriptors, not both. Given both, it watches the words, for
    /// [`BLIND`].
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

/// Ends a [`wait_any`] of this process that sleeps on it together with rings.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Wakes the thread that sleeps on it. Before the call, make that thread's `ready` true.
    pub fn ring(&self) {
        wake(&self.0);
    }

    /// What the wait sleeps on.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&self.0)
    }
}

/// Waits until `ready` is true, for at most `timeout`. It checks `ready` again when one of the
/// waiters has news. The waiters are collected when the wait sleeps. May return
/// [`Parked::TimedOut`] early; with both words and descriptors, which the kernel cannot watch
/// together, it does so after a millisecond.
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
