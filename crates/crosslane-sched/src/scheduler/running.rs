//! A scheduler that runs.

use super::group::Group;
use super::handle::Handle;
use super::options::Options;
use super::shutdown::{Shutdown, end};
use crate::worker::{self, Current, Worker, monitor};
use crossbeam_deque::Worker as Deque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Groups of workers that run tasks. Dropping the scheduler shuts it down at once. A task that
/// drops it does not wait for the end.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) handles: Vec<Handle>,
}

impl Scheduler {
    /// Starts the group of one more tag.
    pub(super) fn start_group(&mut self, options: &Options) -> io::Result<()> {
        let count = options.workers + options.reserve();
        let queues: Vec<_> = (0..count).map(|_| Deque::new_lifo()).collect();
        let stealers = queues.iter().map(Deque::stealer).collect();
        let group = Arc::new(Group::new(options, stealers)?);
        // From here on, an error drops the scheduler, and this stops the started threads.
        self.handles.push(Handle(group.clone()));
        for (index, queue) in queues.into_iter().enumerate() {
            let worker = Worker::new(group.clone(), index, queue);
            group.start_thread(&index.to_string(), move || worker::run(worker))?;
        }
        let watched = group.clone();
        group.start_thread("monitor", move || monitor::run(&watched))
    }

    /// Returns the handle of the first tag.
    pub fn handle(&self) -> &Handle {
        &self.handles[0]
    }

    /// Returns the handle of this tag.
    pub fn tag(&self, tag: &str) -> Option<&Handle> {
        self.handles.iter().find(|handle| handle.0.tag == tag)
    }

    /// Runs a future on this thread. The tasks that it spawns run on the workers of the first tag.
    ///
    /// # Panics
    /// On a worker, because it would wait for itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle().block_on(future)
    }

    /// Waits until all tasks have ended, for at most `limit`. Then it cancels the other tasks and
    /// ends the threads. It does nothing in a process that was forked from the scheduler's process.
    ///
    /// # Panics
    /// On a worker, or in a call that blocks, because the thread would wait for itself.
    pub fn shut_down(mut self, limit: Duration) -> Shutdown {
        assert!(!self.holds_thread(), "shut_down is not called in a task, for which it would wait");
        end(&std::mem::take(&mut self.handles), limit)
    }

    /// Returns whether a task holds this thread. Then a shutdown would wait for that task, or for
    /// other tasks of its worker.
    fn holds_thread(&self) -> bool {
        Current::is_worker() || self.handles.iter().any(|Handle(group)| Current::is_held_by(group))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let holds_thread = self.holds_thread();
        let handles = std::mem::take(&mut self.handles);
        let end = move || {
            let _ = end(&handles, Duration::ZERO);
        };
        if holds_thread {
            // This thread would wait for itself, so another thread ends the scheduler. If that
            // thread cannot start, the scheduler goes on, because a drop must not panic.
            let _ = thread::Builder::new().name("scheduler-end".into()).spawn(end);
        } else {
            end();
        }
    }
}
