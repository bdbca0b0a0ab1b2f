//! Checks whether this is still the process that started a scheduler.
//!
//! After a fork, the child has a copy of the parent's memory, but none of its threads. No thread of
//! the child runs the scheduler's tasks, and a lock that another thread held stays locked. The
//! child shares the epoll, the timer and the wakes with the parent, so a change in the child is a
//! change for the parent. So each scheduler remembers its process, and checks it before it takes a
//! lock or uses the epoll.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that started a scheduler.
#[derive(Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns this process. An error means that the C library has no memory to register the hook
    /// for forks.
    pub(crate) fn this() -> io::Result<Process> {
        static WATCHED: OnceLock<i32> = OnceLock::new();
        // SAFETY: the function is static. It adds to a number, and this is allowed after a fork.
        let error = *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(Process(FORKS.load(Ordering::Relaxed)))
    }

    /// Returns whether this code runs in that process.
    pub(crate) fn is_this(&self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
