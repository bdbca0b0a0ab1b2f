//! A group of workers, and their shared state.

use super::options::Options;
use crate::blocking::Blocking;
use crate::dispatcher::Dispatchers;
use crate::idle::{Busy, Idle, Monitor, Poller};
use crate::process::Process;
use crate::stats::Counters;
use crate::sync::{Condvar, Mutex, lock};
use crate::task::Tasks;
use crate::timer::Timers;
use crate::worker::Job;
use crossbeam_deque::{Injector, Steal, Stealer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// The shared state of the workers of one tag. Workers never take tasks of another group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(super) tag: String,
    pub(crate) process: Process,
    pub(crate) poller: Poller,
    pub(crate) timers: Timers,
    pub(crate) idle: Idle,
    pub(crate) monitor: Monitor,
    /// Tasks from threads that are not the group's workers.
    pub(crate) injector: Injector<Job>,
    pub(crate) stealers: Vec<Stealer<Job>>,
    pub(crate) dispatchers: Dispatchers,
    /// Whether dispatchers go first.
    pub(crate) priority: bool,
    /// How many more threads may take ordinary tasks now.
    pub(crate) permits: AtomicUsize,
    pub(crate) tasks: Tasks,
    pub(crate) blocking: Blocking,
    pub(crate) counters: Vec<Counters>,
    pub(crate) busy: Option<Busy>,
    /// Tasks are dropped when they run next.
    pub(super) cancelling: AtomicBool,
    stopped: AtomicBool,
    pub(super) draining: AtomicBool,
    drained: Condvar,
    drain: Mutex<()>,
    /// How many threads of the group run.
    pub(super) threads: AtomicUsize,
}

impl Group {
    /// Makes a group without threads. `stealers` are those of its workers' queues.
    pub(super) fn new(options: &Options, stealers: Vec<Stealer<Job>>) -> io::Result<Self> {
        let count = stealers.len();
        let group = Group {
            tag: options.tag.clone(),
            process: Process::this()?,
            poller: Poller::new()?,
            timers: Timers::default(),
            idle: Idle::new(),
            monitor: Monitor::default(),
            injector: Injector::new(),
            stealers,
            dispatchers: Dispatchers::default(),
            priority: options.priority,
            permits: AtomicUsize::new(options.workers),
            tasks: Tasks::new(count),
            blocking: Blocking::new(options.blocking, options.keep),
            counters: (0..count).map(|_| Counters::default()).collect(),
            busy: options.polled.clone().map(Busy::new),
            cancelling: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            drained: Condvar::new(),
            drain: Mutex::new(()),
            threads: AtomicUsize::new(0),
        };
        for _ in 0..options.dispatchers {
            group.dispatchers.add();
        }
        Ok(group)
    }

    /// Wakes a worker for work that was added before, if needed.
    pub(crate) fn wake_one(&self) {
        self.idle.wake_one(|| self.poller.wake());
    }

    /// Returns whether a task waits in a queue.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.injector.is_empty() || self.stealers.iter().any(|stealer| !stealer.is_empty())
    }

    /// Returns whether a task waits and one more worker may take it.
    pub(crate) fn has_work(&self) -> bool {
        self.permits.load(Ordering::SeqCst) > 0 && self.has_tasks()
    }

    pub(crate) fn has_dispatchers(&self) -> bool {
        !self.dispatchers.is_empty()
    }

    /// Returns an error in a process that was forked from the group's process, and after the end.
    /// There, no thread would wake a waiting task.
    pub(crate) fn check(&self) -> io::Result<()> {
        if !self.process.is_this() {
            Err(io::Error::other(FORKED))
        } else if self.is_stopped() {
            Err(io::Error::other("the scheduler has shut down"))
        } else {
            Ok(())
        }
    }

    pub(crate) fn assert_not_forked(&self) {
        assert!(self.process.is_this(), "{FORKED}");
    }

    /// Ends the process if a task forked it. The child's copy of the worker would go on and take
    /// events of the original worker.
    pub(crate) fn abort_if_forked(&self) {
        if !self.process.is_this() {
            let text = format!("crosslane-sched: a task that forks has to end the child itself: {FORKED}\n");
            // This does not take the standard library's lock, because another thread may have held
            // it during the fork.
            let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
            std::process::abort();
        }
    }

    pub(crate) fn is_cancelling(&self) -> bool {
        self.cancelling.load(Ordering::SeqCst)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    pub(crate) fn task_ended(&self) {
        if self.draining.load(Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Lets the thread that shuts the group down check again.
    fn notify(&self) {
        drop(lock(&self.drain));
        self.drained.notify_all();
    }

    /// Waits until `left` returns 0, at most until `end`. Returns the last result of `left`.
    pub(super) fn wait_until_zero(&self, left: impl Fn() -> usize, end: Instant) -> usize {
        let mut guard = lock(&self.drain);
        loop {
            let left = left();
            let time = end.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() {
                return left;
            }
            let waited = self.drained.wait_timeout(guard, time);
            guard = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Drops the queued tasks, because no worker will run them any more.
    pub(crate) fn drop_queued(&self) {
        loop {
            match self.injector.steal() {
                Steal::Success(job) => drop(job),
                Steal::Retry => {}
                Steal::Empty => return,
            }
        }
    }

    /// Stops the group. No task runs any more, and no task waits for events or timers.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.blocking.end();
        self.dispatchers.end();
        self.timers.end();
    }

    /// Lets all threads see that the group is stopped.
    pub(super) fn wake_all(&self) {
        // A wake reaches one poller. Callers repeat this until all threads have ended.
        self.poller.wake();
        self.idle.wake_sleepers();
        self.monitor.unpark();
    }

    /// Starts a thread of the group. It counts as one of the group's threads as long as it runs.
    pub(crate) fn start_thread(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.threads.fetch_add(1, Ordering::SeqCst);
        let running = Running(self.clone());
        thread::Builder::new().name(format!("{}-{name}", self.tag)).spawn(move || {
            run();
            drop(running);
        })?;
        Ok(())
    }
}

/// The reason why a group does not work in a child process.
const FORKED: &str = "this process was forked from the one in which the scheduler runs";

/// Counts a thread as one of the group's threads until it is dropped.
struct Running(Arc<Group>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.notify();
    }
}
