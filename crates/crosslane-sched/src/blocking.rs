//! Threads for calls that block or compute for long. So such calls hold no worker.
//!
//! A call waits in a queue. If the waiting calls outnumber the idle threads, the caller starts a
//! thread, up to a limit. A thread that has been idle for [`KEEP`] ends. A call is a task: shutdown
//! waits for it, and its handle has its result or its panic. A call has no await, so it cannot be
//! cancelled after it has begun.

use crate::stats::BlockingStats;
use crate::sync::{Condvar, Mutex, lock};
use async_task::Runnable;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// The most threads, unless the builder sets another number.
pub(crate) const LIMIT: usize = 512;
/// How long a thread waits for the next call.
pub(crate) const KEEP: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Blocking {
    limit: usize,
    keep: Duration,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Runnable>,
    threads: usize,
    idle: usize,
    runs: u64,
    /// The scheduler has ended, so new calls are dropped.
    is_over: bool,
}

impl Blocking {
    pub(crate) fn new(limit: usize, keep: Duration) -> Self {
        Blocking { limit, keep, state: Mutex::default(), wake: Condvar::new() }
    }

    pub(crate) fn stats(&self) -> BlockingStats {
        let state = lock(&self.state);
        BlockingStats {
            threads: state.threads,
            idle: state.idle,
            waiting: state.queue.len(),
            runs: state.runs,
        }
    }

    /// Drops the calls that have not begun, and ends the idle threads.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        self.wake.notify_all();
        drop(queue);
    }

    /// Brings a call to a thread. `start_thread` starts one more thread that calls
    /// [`Blocking::run`].
    ///
    /// # Errors
    /// The error of `start_thread`, if there is no other thread.
    pub(crate) fn add(
        &self,
        runnable: Runnable,
        start_thread: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = lock(&self.state);
        if state.is_over {
            // The call is dropped without the lock, because it may own values of a user.
            drop(state);
            return Ok(());
        }
        state.queue.push_back(runnable);
        if state.queue.len() <= state.idle {
            self.wake.notify_one();
            return Ok(());
        }
        if state.threads == self.limit {
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let Err(error) = start_thread() else { return Ok(()) };
        state = lock(&self.state);
        state.threads -= 1;
        if state.threads > 0 {
            return Ok(());
        }
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        drop(queue);
        Err(error)
    }

    /// Runs calls on the calling thread, until the thread has been idle for long or the scheduler
    /// ends.
    pub(crate) fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(runnable) = state.queue.pop_front() {
                drop(state);
                runnable.run();
                state = lock(&self.state);
                state.runs += 1;
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let waited = self.wake.wait_timeout(state, self.keep);
            let (again, waited) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}
