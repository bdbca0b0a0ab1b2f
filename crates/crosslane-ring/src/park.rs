//! Waits for the other side: a short spin, then sleep. The crate's documentation has the protocol.

#[cfg(not(loom))]
use crate::futex::BLIND;
use crate::futex::{self, FEW};
use crate::sync::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;
#[cfg(not(loom))]
use std::cell::Cell;
#[cfg(not(loom))]
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a waiter yields before it sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Spin(pub Duration);

impl Default for Spin {
    /// 20 us: longer than a wake through the kernel takes, and too short for a user to notice.
    fn default() -> Self {
        Spin(Duration::from_micros(20))
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// The event of the wait has come.
    Ready,
    /// The time is over.
    TimedOut,
}

/// Wakes the other side if it sleeps on `word`. Call this after publishing a position.
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
        // A wake for an earlier wait may come late. (Loom's model has no time, so the caller tries
        // again.)
        if cfg!(loom) || Instant::now() >= end {
            return Parked::TimedOut;
        }
    }
}

/// A word or a descriptor that a wait sleeps on.
#[derive(Debug, Clone, Copy)]
pub enum Waiter<'a> {
    /// The wait word of a ring, or a word with the same protocol. A thread stores 1 in it before
    /// the thread sleeps. The thread that has news wakes the sleeping thread.
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
    /// Sleeps once, until one of the words or descriptors has news.
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

    /// Sleeps. The kernel can watch words or descriptors, but not both. If there are both, the
    /// kernel watches the words, for at most [`BLIND`].
    #[cfg(not(loom))]
    fn doze(&mut self, timeout: Duration) {
        match (&self.words[..], &mut self.descriptors[..]) {
            (words, []) => futex::wait_any(words, timeout),
            ([], descriptors) => {
                let timeout = Timespec {
                    tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
                    tv_nsec: timeout.subsec_nanos().into(),
                };
                // An error, such as a signal, ends the sleep early.
                let _ = rustix::event::poll(descriptors, Some(&timeout));
            }
            (words, _) => futex::wait_any(words, timeout.min(BLIND)),
        }
    }
}

/// A yield that takes as long let another program compute for a whole time slice.
#[cfg(not(loom))]
const CROWDED: Duration = Duration::from_millis(1);

/// How long a thread sleeps without a spin before, after it has lost a time slice. A spin is worth
/// some microseconds, and a lost slice costs milliseconds.
#[cfg(not(loom))]
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(not(loom))]
thread_local! {
    /// When this thread may spin again.
    static RESUMES: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[cfg(not(loom))]
fn spun(spin: Spin, timeout: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if spin.0.is_zero() {
        return false;
    }
    let begun = Instant::now();
    if RESUMES.get().is_some_and(|resumes| begun < resumes) {
        return false;
    }
    let end = begun + spin.0.min(timeout);
    let mut before = begun;
    loop {
        std::thread::yield_now();
        let now = Instant::now();
        if now - before >= CROWDED {
            RESUMES.set(Some(now + PAUSE));
        }
        if ready() {
            return true;
        }
        if now >= end {
            return false;
        }
        before = now;
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
    /// Wakes the thread that sleeps on the bell. Before the call, make that thread's `ready` true.
    pub fn ring(&self) {
        wake(&self.0);
    }

    /// Returns the [`Waiter`] of the bell.
    pub fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&self.0)
    }
}

/// Waits until `ready` is true, for at most `timeout`. It checks `ready` again when one of the
/// waiters has news. It collects the waiters only if it sleeps. It may return [`Parked::TimedOut`]
/// early. With both words and descriptors it does so after a millisecond, because the kernel cannot
/// watch both together.
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
