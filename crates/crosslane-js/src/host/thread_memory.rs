//! Reads the kernel's counters of memory and of threads. They include the memory that V8 does not
//! count.
//!
//! The host uses no huge pages. So each page causes one page fault of the thread that touches it
//! first.
//!
//! The host opens no files while functions run. So it opens the counters of its memory before that. The
//! kernel tells the page faults of a thread only to this thread, unless a file is opened. So the watch
//! asks the thread with a signal, whose handler answers.

use crosslane_process::guest::keep_counts;
use libc::{c_int, clockid_t};
use rustix::process::Pid;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The signal that asks a thread for its page faults. Without a handler, the kernel ignores it.
const ASK: c_int = libc::SIGURG;

/// How long a question waits for its answer. A thread that does not run meanwhile fills no memory.
const PATIENCE: Duration = Duration::from_millis(1);

/// The bits of an answer that hold page faults. Those above hold the thread's number, which has at most
/// 22 bits.
const FAULTS: u32 = 42;

/// The last answer of a thread. 0 while there is none.
static ANSWER: AtomicU64 = AtomicU64::new(0);

/// The thread that asks locks this, because there is one place for answers.
static ASKING: Mutex<()> = Mutex::new(());

/// Opens the counts of this process's memory, and lets its threads answer questions.
///
/// # Errors
/// If the system refuses the answers.
pub(crate) fn prepare() -> io::Result<()> {
    // Without these counts, the watch ends no call for pages that V8 does not count.
    keep_counts();
    let handler: extern "C" fn(c_int) = answer;
    // SAFETY: the structure is plain data that the call copies, and the handler makes only calls that
    // handlers may make.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        match libc::sigaction(ASK, &raw const action, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Answers how many page faults the current thread has had.
extern "C" fn answer(_: c_int) {
    // SAFETY: the structure is a valid place for the result.
    let faults = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_minflt as u64
    };
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
    ANSWER.store(thread << FAULTS | faults & ((1 << FAULTS) - 1), Relaxed);
}

/// A thread of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    number: Pid,
    clock: clockid_t,
}

impl Thread {
    pub(crate) fn current() -> Self {
        let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: the thread is the current one, and `clock` is a valid place for the result.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        Self { number: rustix::thread::gettid(), clock }
    }

    /// Returns the bytes of all pages on which the thread had a page fault. Some of the pages may be
    /// free again. `None` if the thread does not answer, for example because it waits for a processor.
    pub(crate) fn faulted_bytes(self) -> Option<u64> {
        let number = self.number.as_raw_nonzero().get();
        let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        ANSWER.store(0, Relaxed);
        // SAFETY: the call takes numbers, and `answer` handles the signal.
        if unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, ASK) } != 0 {
            return None;
        }
        let asked = Instant::now();
        loop {
            let answer = ANSWER.load(Relaxed);
            if answer >> FAULTS == number as u64 {
                let faults = answer & ((1 << FAULTS) - 1);
                return Some(faults * rustix::param::page_size() as u64);
            }
            if asked.elapsed() > PATIENCE {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Returns how long the thread has run. Time in which the thread waited for a processor does not
    /// count.
    pub(crate) fn cpu_time(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place for the result. A thread that has ended has no clock, and then
        // the time stays 0.
        unsafe { libc::clock_gettime(self.clock, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane_process::limits::own_size;

    #[test]
    fn threads_that_wait_do_not_work() {
        let me = Thread::current();
        let before = me.cpu_time();
        let other = std::thread::spawn(|| {
            let me = Thread::current();
            while me.cpu_time() < Duration::from_millis(200) {}
        });
        other.join().expect("it only works");
        assert!(me.cpu_time() < before + Duration::from_millis(100));
    }

    /// Asks until there is an answer.
    fn faulted_bytes(thread: Thread) -> u64 {
        std::iter::repeat_with(|| thread.faulted_bytes()).flatten().next().expect("it repeats for ever")
    }

    #[test]
    fn pages_count_for_the_thread_that_fills_them() {
        const SIZE: u64 = 64 << 20;
        rustix::thread::disable_transparent_huge_pages(true).expect("a setting of this process");
        prepare().expect("the counts of this process");
        let me = Thread::current();
        let before = (faulted_bytes(me), own_size().unwrap());
        let filled = std::thread::spawn(move || {
            let before = faulted_bytes(Thread::current());
            let filled = vec![1u8; SIZE as usize];
            assert!(faulted_bytes(Thread::current()) >= before + SIZE);
            filled
        });
        let filled = filled.join().expect("the thread asserts what is so");
        assert!(own_size().unwrap() >= before.1 + SIZE / 2);
        assert!(faulted_bytes(me) < before.0 + SIZE / 2);
        drop(filled);
    }

    #[test]
    fn a_thread_at_work_answers_another_one() {
        prepare().expect("the counts of this process");
        let (send, receive) = std::sync::mpsc::channel();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_done = std::sync::Arc::clone(&done);
        let other = std::thread::spawn(move || {
            // Its stack may be that of a thread that has ended, on which it has no page fault.
            std::hint::black_box(vec![1u8; 1 << 20]);
            send.send(Thread::current()).expect("the test receives it");
            while !is_done.load(Relaxed) {}
        });
        let other_thread = receive.recv().expect("the thread sends it");
        assert!(faulted_bytes(other_thread) > 0);
        done.store(true, Relaxed);
        other.join().expect("it only works");
        assert_eq!(other_thread.faulted_bytes(), None, "it has ended");
    }
}
