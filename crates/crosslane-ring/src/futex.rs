//! Sleeps on a word of shared memory. Under loom, this is a model with the same contract.

#[cfg(not(loom))]
use std::time::Duration;

/// A wait for at most this many words and descriptors makes no allocation.
pub(crate) const FEW: usize = 16;

/// The longest sleep if the kernel cannot watch all words and descriptors of a wait.
#[cfg(not(loom))]
pub(crate) const BLIND: Duration = Duration::from_millis(1);

#[cfg(not(loom))]
pub(crate) use real::{wait, wait_any, wake};

#[cfg(loom)]
pub(crate) use model::{wait, wait_any, wake};

#[cfg(not(loom))]
mod real {
    use crate::futex::{BLIND, FEW};
    use crate::sync::AtomicU32;
    use smallvec::SmallVec;
    use std::time::Duration;

    fn timespec(duration: Duration) -> libc::timespec {
        libc::timespec {
            tv_sec: duration.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
        }
    }

    /// Sleeps until a thread wakes this one, for at most `timeout`, if the word is still
    /// `expected`. May return early.
    pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
        let timeout = timespec(timeout);
        // SAFETY: the word and the time live across the call. The futex is not private, because two
        // processes share the word.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const timeout);
        }
    }

    /// Wakes one thread that sleeps on the word.
    pub(crate) fn wake(word: &AtomicU32) {
        // SAFETY: the word lives across the call. A wake has no other requirement.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
        }
    }

    #[repr(C)]
    struct WaitV {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    const FUTEX2_SIZE_U32: u32 = 2;
    /// The kernel's limit of one call.
    const MOST: usize = 128;

    /// Sleeps until a thread wakes one of the words, or a word is no longer 1, for at most
    /// `timeout`. May return early. With more words than the kernel can watch (before Linux 5.16:
    /// one), it sleeps for at most [`BLIND`].
    pub(crate) fn wait_any(words: &[&AtomicU32], timeout: Duration) {
        match words {
            [] => std::thread::sleep(timeout),
            [word] => wait(word, 1, timeout),
            _ if words.len() > MOST => wait_some(&words[..MOST], timeout.min(BLIND)),
            _ => wait_some(words, timeout),
        }
    }

    fn wait_some(words: &[&AtomicU32], timeout: Duration) {
        let waiters: SmallVec<[WaitV; FEW]> = words
            .iter()
            .map(|word| WaitV {
                value: 1,
                address: word.as_ptr() as u64,
                flags: FUTEX2_SIZE_U32,
                reserved: 0,
            })
            .collect();
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid place for the result.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let end = timespec(Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + timeout);
        // SAFETY: the array and the words behind it live across the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                waiters.as_ptr(),
                waiters.len(),
                0,
                &raw const end,
                libc::CLOCK_MONOTONIC,
            )
        };
        let error = if result < 0 { std::io::Error::last_os_error().raw_os_error() } else { None };
        // An old kernel does not know the call, and the filter of an old container forbids it.
        if !matches!(error, None | Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)) {
            wait(words[0], 1, timeout.min(BLIND));
        }
    }
}

#[cfg(loom)]
mod model {
    use crate::sync::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};
    use std::collections::HashMap;
    use std::time::Duration;

    loom::lazy_static! {
        /// How often each word was woken.
        static ref QUEUE: (Mutex<HashMap<usize, u32>>, Condvar) = (Mutex::new(HashMap::new()), Condvar::new());
    }

    fn address(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word).addr()
    }

    pub(crate) fn wait(word: &AtomicU32, expected: u32, _timeout: Duration) {
        assert_eq!(expected, 1);
        wait_any(&[word], Duration::ZERO);
    }

    /// Works like the kernel: it compares and queues one word after the other, each in one step. It
    /// sleeps if no thread has woken one of the words since then. The model has no time, so loom
    /// reports a lost wake as a deadlock.
    pub(crate) fn wait_any(words: &[&AtomicU32], _timeout: Duration) {
        let mut queued = Vec::new();
        for word in words {
            let woken = QUEUE.0.lock().unwrap();
            if word.load(Ordering::SeqCst) != 1 {
                return;
            }
            queued.push((address(word), woken.get(&address(word)).copied()));
        }
        let mut woken = QUEUE.0.lock().unwrap();
        while queued.iter().all(|(word, times)| woken.get(word).copied() == *times) {
            woken = QUEUE.1.wait(woken).unwrap();
        }
    }

    pub(crate) fn wake(word: &AtomicU32) {
        *QUEUE.0.lock().unwrap().entry(address(word)).or_default() += 1;
        QUEUE.1.notify_all();
    }
}
