//! A scheduler and its groups of workers.

use crate::dispatcher::{Dispatcher, Dispatchers};
use crate::idle::Idle;
use crate::io::Io;
use crate::monitor::{self, Monitor};
use crate::poller::Poller;
use crate::stats::{Counters, WorkerStats};
use crate::task::{self, JoinHandle, Tasks};
use crate::timer::Timers;
use crate::worker::{Current, Job, Worker};
use async_task::Runnable;
use crossbeam_deque::{Injector, Steal, Stealer, Worker as Deque};
use rustix::fd::AsFd;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The workers of one tag and what they share. Workers never take tasks of another group.
#[derive(Debug)]
pub(crate) struct Group {
    tag: String,
    pub(crate) poller: Poller,
    pub(crate) timers: Timers,
    pub(crate) idle: Idle,
    pub(crate) monitor: Monitor,
    /// Tasks that were added from outside of the group.
    pub(crate) injector: Injector<Job>,
    pub(crate) stealers: Vec<Stealer<Job>>,
    pub(crate) dispatchers: Dispatchers,
    /// Whether dispatchers go first.
    pub(crate) priority: bool,
    /// How many more threads may take ordinary tasks.
    pub(crate) permits: AtomicUsize,
    pub(crate) tasks: Tasks,
    pub(crate) counters: Vec<Counters>,
    /// Tasks that are met are dropped.
    cancelling: AtomicBool,
    stopped: AtomicBool,
    draining: AtomicBool,
    drained: Condvar,
    drain: Mutex<()>,
    /// How many threads run.
    threads: AtomicUsize,
}

impl Group {
    pub(crate) fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (runnable, handle) = task::create(self, future);
        // After the end nobody would run it: it is cancelled at once.
        if !self.is_stopped() {
            runnable.schedule();
        }
        handle
    }

    /// Puts a task that has to run where a worker finds it.
    pub(crate) fn schedule(&self, runnable: Runnable, yields: bool) {
        if let Some(runnable) = Current::schedule(self, runnable, yields) {
            self.injector.push(Job::Task(runnable));
            self.wake_one();
            if self.is_stopped() {
                self.drop_queued();
            }
        }
    }

    /// Wakes a worker for work that was added before, if one has to be woken.
    pub(crate) fn wake_one(&self) {
        self.idle.wake_one(|| self.poller.wake());
    }

    /// Whether a task waits in a queue.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.injector.is_empty() || self.stealers.iter().any(|stealer| !stealer.is_empty())
    }

    /// Whether a task waits that one more worker might take.
    pub(crate) fn has_work(&self) -> bool {
        self.permits.load(Ordering::SeqCst) > 0 && self.has_tasks()
    }

    pub(crate) fn has_dispatchers(&self) -> bool {
        !self.dispatchers.is_empty()
    }

    pub(crate) fn is_cancelling(&self) -> bool {
        self.cancelling.load(Ordering::Relaxed)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    pub(crate) fn task_ended(&self) {
        if self.draining.load(Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Lets the thread that shuts the group down look again.
    fn notify(&self) {
        drop(self.drain.lock().unwrap_or_else(PoisonError::into_inner));
        self.drained.notify_all();
    }

    /// Waits until nothing is left, at most until `end`. Returns how much is.
    fn wait_until_zero(&self, left: impl Fn() -> usize, end: Instant) -> usize {
        let mut guard = self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = left();
            let time = end.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() {
                return left;
            }
            guard = self.drained.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops the tasks that no worker will meet any more.
    fn drop_queued(&self) {
        loop {
            match self.injector.steal() {
                Steal::Success(job) => drop(job),
                Steal::Retry => {}
                Steal::Empty => return,
            }
        }
    }

    /// Lets the tasks end until `end`, cancels the others, and ends the workers.
    fn shut_down(&self, end: Instant) -> Shutdown {
        self.draining.store(true, Ordering::SeqCst);
        let cancelled = self.wait_until_zero(|| self.tasks.count(), end);
        self.cancelling.store(true, Ordering::SeqCst);
        self.tasks.wake_all();
        // Dropping a future is short; one that runs has this time to let go of its worker.
        self.wait_until_zero(|| self.tasks.count(), Instant::now() + LAST_CALL);
        self.stopped.store(true, Ordering::SeqCst);
        let last = Instant::now() + LAST_CALL;
        let threads = || self.threads.load(Ordering::SeqCst);
        let stuck = loop {
            // A wake reaches one poller, and they may be several.
            self.poller.wake();
            self.idle.wake_sleepers();
            self.monitor.unpark();
            let step = Instant::now() + Duration::from_millis(1);
            let left = self.wait_until_zero(threads, step);
            if left == 0 || Instant::now() > last {
                break left;
            }
        };
        self.drop_queued();
        Shutdown { cancelled, stuck }
    }
}

/// How long tasks have to be dropped after the time for draining is over, and how long threads have to end after that.
const LAST_CALL: Duration = Duration::from_secs(1);

/// What became of a scheduler's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "tasks may have been cancelled"]
pub struct Shutdown {
    /// How many tasks had not ended in time, and were cancelled.
    pub cancelled: usize,
    /// How many threads were left behind, because a task did not let go of them within two seconds more.
    pub stuck: usize,
}

/// The options of one tag.
#[derive(Clone, Debug)]
struct Options {
    tag: String,
    workers: usize,
    reserve: Option<usize>,
    dispatchers: usize,
    priority: bool,
}

impl Options {
    fn new(tag: &str) -> Self {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        Options { tag: tag.into(), workers, reserve: None, dispatchers: 1, priority: true }
    }
}

/// Says how a scheduler is made. Each option is one of the tag that was named last.
#[derive(Clone, Debug)]
#[must_use = "nothing runs before `start`"]
pub struct Builder(Vec<Options>);

impl Builder {
    /// Begins another tag: a group of workers of its own, which share no tasks with other groups.
    pub fn tag(mut self, tag: &str) -> Self {
        self.0.push(Options::new(tag));
        self
    }

    /// How many ordinary tasks run at a time; the number of processors unless set.
    pub fn workers(mut self, workers: usize) -> Self {
        self.last().workers = workers;
        self
    }

    /// How many further threads there are, which dispatch while all workers are busy with long tasks; four for each
    /// worker unless set, and none without dispatchers.
    pub fn reserve(mut self, reserve: usize) -> Self {
        self.last().reserve = Some(reserve);
        self
    }

    /// How many event dispatchers share the sockets; 1 unless set. Without one, the group's tasks wait for no sockets.
    pub fn dispatchers(mut self, dispatchers: usize) -> Self {
        self.last().dispatchers = dispatchers;
        self
    }

    /// Whether dispatchers go first; true unless set. It can be switched off to measure what it is worth.
    pub fn priority(mut self, priority: bool) -> Self {
        self.last().priority = priority;
        self
    }

    fn last(&mut self) -> &mut Options {
        self.0.last_mut().expect("a builder begins with a tag")
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a tag has no workers or stands twice; otherwise those of the kernel, which
    /// may have no descriptors or threads left.
    pub fn start(self) -> io::Result<Scheduler> {
        let mut scheduler = Scheduler { handles: Vec::new() };
        for options in self.0 {
            if options.workers == 0 {
                let text = format!("the tag {:?} needs at least one worker", options.tag);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            if scheduler.tag(&options.tag).is_some() {
                let text = format!("the tag {:?} stands twice", options.tag);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            scheduler.start_group(options)?;
        }
        Ok(scheduler)
    }
}

/// Groups of workers that run tasks. Dropping it shuts it down at once; a task that drops it does not wait for that.
#[derive(Debug)]
pub struct Scheduler {
    handles: Vec<Handle>,
}

impl Scheduler {
    /// Begins with the tag `default`.
    pub fn builder() -> Builder {
        Builder(vec![Options::new("default")])
    }

    fn start_group(&mut self, options: Options) -> io::Result<()> {
        let reserve =
            if options.dispatchers == 0 { 0 } else { options.reserve.unwrap_or(4 * options.workers) };
        let count = options.workers + reserve;
        let queues: Vec<_> = (0..count).map(|_| Deque::new_lifo()).collect();
        let group = Arc::new(Group {
            tag: options.tag,
            poller: Poller::new()?,
            timers: Timers::default(),
            idle: Idle::new(),
            monitor: Monitor::default(),
            injector: Injector::new(),
            stealers: queues.iter().map(Deque::stealer).collect(),
            dispatchers: Dispatchers::default(),
            priority: options.priority,
            permits: AtomicUsize::new(options.workers),
            tasks: Tasks::new(count),
            counters: (0..count).map(|_| Counters::default()).collect(),
            cancelling: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            drained: Condvar::new(),
            drain: Mutex::new(()),
            threads: AtomicUsize::new(0),
        });
        for _ in 0..options.dispatchers {
            group.dispatchers.add();
        }
        // From here on an error stops what was started.
        self.handles.push(Handle(group.clone()));
        for (index, queue) in queues.into_iter().enumerate() {
            let worker = Worker::new(group.clone(), index, queue);
            start_thread(&group, &format!("{}-{index}", group.tag), move || worker.run())?;
        }
        let watched = group.clone();
        start_thread(&group, &format!("{}-monitor", group.tag), move || monitor::run(&watched))
    }

    /// The handle of the first tag.
    pub fn handle(&self) -> &Handle {
        &self.handles[0]
    }

    /// The handle of this tag.
    pub fn tag(&self, tag: &str) -> Option<&Handle> {
        self.handles.iter().find(|handle| handle.0.tag == tag)
    }

    /// Runs a future on this thread; what it spawns runs on the workers of the first tag.
    ///
    /// # Panics
    /// On a worker, which would wait for itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle().block_on(future)
    }

    /// Waits until all tasks have ended, for at most `limit`; then cancels the others and ends the workers.
    ///
    /// # Panics
    /// On a worker, which would wait for itself.
    pub fn shut_down(mut self, limit: Duration) -> Shutdown {
        assert!(!Current::is_worker(), "shut_down is not called in a task, for which it would wait");
        end(std::mem::take(&mut self.handles), limit)
    }
}

fn end(handles: Vec<Handle>, limit: Duration) -> Shutdown {
    let now = Instant::now();
    let end = now.checked_add(limit).unwrap_or(now + crate::timer::FAR_AWAY);
    let mut all = Shutdown::default();
    for Handle(group) in handles {
        let one = group.shut_down(end);
        all.cancelled += one.cancelled;
        all.stuck += one.stuck;
    }
    all
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let handles = std::mem::take(&mut self.handles);
        let end = || {
            let _ = end(handles, Duration::ZERO);
        };
        if Current::is_worker() {
            // The worker would wait for itself. If no thread can be made the scheduler goes on: a drop does not panic.
            let _ = thread::Builder::new().name("scheduler-end".into()).spawn(end);
        } else {
            end();
        }
    }
}

/// Counts the thread as one of the group's as long as it runs.
struct Running(Arc<Group>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.notify();
    }
}

fn start_thread(group: &Arc<Group>, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    group.threads.fetch_add(1, Ordering::SeqCst);
    let running = Running(group.clone());
    thread::Builder::new().name(name.into()).spawn(move || {
        run();
        drop(running);
    })?;
    Ok(())
}

/// A way to the workers of one tag, from any thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Group>);

impl Handle {
    /// The handle of the tag whose task runs here, or whose `block_on` this thread is in.
    pub fn current() -> Option<Handle> {
        Current::group().map(Handle)
    }

    /// Starts a task in the background. After the scheduler has ended it is cancelled at once.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.spawn(future)
    }

    /// Runs a future on this thread; what it spawns runs on the workers of this tag.
    ///
    /// # Panics
    /// On a worker, which would wait for itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(!Current::is_worker(), "block_on is not called in a task: await the future there");
        let _entered = Entered(Current::enter(Some(self.0.clone())));
        let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
        let waker = Waker::from(unpark.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            // The future may have parked the thread itself, and so have taken what unparks it.
            while !unpark.is_woken.swap(false, Ordering::SeqCst) {
                thread::park();
            }
        }
    }

    /// Registers the descriptor with a dispatcher of this tag; see [`Io::new`].
    ///
    /// # Errors
    /// As [`Io::new`].
    ///
    /// # Panics
    /// If the tag has no dispatcher.
    pub fn io<T: AsFd>(&self, descriptor: T) -> io::Result<Io<T>> {
        Io::register(descriptor, self.0.clone(), None)
    }

    /// Adds an event dispatcher.
    pub fn dispatcher(&self) -> Dispatcher {
        Dispatcher { group: self.0.clone(), inner: self.0.dispatchers.add() }
    }

    /// What each worker did so far.
    pub fn stats(&self) -> Vec<WorkerStats> {
        self.0.counters.iter().map(Counters::read).collect()
    }

    /// How many tasks have not ended.
    pub fn tasks(&self) -> usize {
        self.0.tasks.count()
    }
}

/// What the thread was in before it entered a group.
struct Entered(Option<Arc<Group>>);

impl Drop for Entered {
    fn drop(&mut self) {
        Current::enter(self.0.take());
    }
}

struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}
