//! A scheduler and its groups of workers.

use crate::blocking::{self, Blocking};
use crate::busy::{Busy, BusyPoll, Polled};
use crate::dispatcher::{Dispatcher, Dispatchers};
use crate::idle::Idle;
use crate::io::Io;
use crate::monitor::{self, Monitor};
use crate::poller::Poller;
use crate::process::Process;
use crate::stats::{BlockingStats, Counters, WorkerStats};
use crate::sync::{Condvar, Mutex, lock};
use crate::task::{self, JoinHandle, Tasks};
use crate::timer::Timers;
use crate::worker::{Current, Job, Worker};
use async_task::{Runnable, ScheduleInfo};
use crossbeam_deque::{Injector, Steal, Stealer, Worker as Deque};
use rustix::fd::AsFd;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The workers of one tag and what they share. Workers never take tasks of another group.
#[derive(Debug)]
pub(crate) struct Group {
    tag: String,
    pub(crate) process: Process,
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
    pub(crate) blocking: Blocking,
    pub(crate) counters: Vec<Counters>,
    pub(crate) busy: Option<Busy>,
    /// Tasks that run are dropped.
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
        let (runnable, handle) = task::create(self, future, Group::schedule);
        // After the end nobody would run it: it is cancelled at once.
        if !self.is_stopped() {
            runnable.schedule();
        }
        handle
    }

    /// Puts a task that has to run where a worker finds it.
    pub(crate) fn schedule(&self, runnable: Runnable, info: ScheduleInfo) {
        if !self.process.is_this() {
            // Nobody runs it here, and dropping it might run code that waits for somebody.
            return std::mem::forget(runnable);
        }
        if let Some(runnable) = Current::schedule(self, runnable, info.woken_while_running) {
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

    /// An error in a process that was forked from the group's, and after the end: nothing would wake who waits.
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

    /// Ends a process that a task forked, and in which that task has let go of its worker: there would be a second
    /// worker in its place, which takes the events of the first one.
    pub(crate) fn leave_forked(&self) {
        if !self.process.is_this() {
            let text = format!("crosslane-sched: a task that forks has to end the child itself: {FORKED}\n");
            // Without the lock of the standard library, which another thread may have held.
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

    /// Lets the thread that shuts the group down look again.
    fn notify(&self) {
        drop(lock(&self.drain));
        self.drained.notify_all();
    }

    /// Waits until nothing is left, at most until `end`. Returns how much is.
    fn wait_until_zero(&self, left: impl Fn() -> usize, end: Instant) -> usize {
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

    /// Nothing runs any more, and nobody waits for something that will not come.
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.blocking.end();
        self.dispatchers.end();
        self.timers.end();
    }

    /// Lets all threads see that the group is stopped.
    fn wake_all(&self) {
        // A wake reaches one poller, and they may be several.
        self.poller.wake();
        self.idle.wake_sleepers();
        self.monitor.unpark();
    }

    /// Starts a thread of the group, which counts as one of its threads as long as it runs.
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

/// Why a group is of no use in a child process.
const FORKED: &str = "this process was forked from the one in which the scheduler runs";

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
    blocking: usize,
    /// How long a thread for calls that block waits for the next one.
    keep: Duration,
    polled: Option<Polled>,
}

/// As many threads as Linux lets a process have, unless it was told otherwise; it cannot have more dispatchers of use.
const MOST: usize = 1 << 15;

impl Options {
    fn new(tag: &str) -> Self {
        Options {
            tag: tag.into(),
            workers: thread::available_parallelism().map_or(1, usize::from),
            reserve: None,
            dispatchers: 1,
            priority: true,
            blocking: blocking::LIMIT,
            keep: blocking::KEEP,
            polled: None,
        }
    }

    fn reserve(&self) -> usize {
        if self.dispatchers == 0 { 0 } else { self.reserve.unwrap_or(4 * self.workers) }
    }

    fn check(&self) -> io::Result<()> {
        let Options { tag, workers, reserve, dispatchers, blocking, .. } = self;
        let fault = if tag.contains('\0') {
            "has a NUL in its name, which threads get".into()
        } else if *workers == 0 {
            "needs at least one worker".into()
        } else if *blocking == 0 {
            "needs at least one thread for calls that block".into()
        } else if let Some(number) = [*workers, reserve.unwrap_or(0), *dispatchers, *blocking]
            .into_iter()
            .find(|number| *number > MOST)
        {
            format!("cannot have {number} threads or dispatchers; {MOST} are the most")
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the tag {tag:?} {fault}")))
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

    /// How many threads there are at most for calls that block ([`spawn_blocking`](crate::spawn_blocking)); 512 unless
    /// set.
    pub fn blocking(mut self, threads: usize) -> Self {
        self.last().blocking = threads;
        self
    }

    /// For how long after the last event the worker that waits for events polls before it sleeps, and what it polls beside its sockets;
    /// not at all unless set. It yields meanwhile, and sleeps at once where others need the processor.
    pub fn busy_poll(mut self, time: Duration, source: Arc<dyn BusyPoll>) -> Self {
        self.last().polled = Some(Polled { time, source });
        self
    }

    fn last(&mut self) -> &mut Options {
        self.0.last_mut().expect("a builder begins with a tag")
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a tag stands twice, has a NUL in its name, no workers, no thread for calls
    /// that block, or more than 32,768 of something; otherwise those of the kernel, which may have no descriptors or
    /// threads left.
    pub fn start(self) -> io::Result<Scheduler> {
        let mut scheduler = Scheduler { handles: Vec::new() };
        for options in self.0 {
            options.check()?;
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
        let count = options.workers + options.reserve();
        let queues: Vec<_> = (0..count).map(|_| Deque::new_lifo()).collect();
        let group = Arc::new(Group {
            tag: options.tag,
            process: Process::this()?,
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
            blocking: Blocking::new(options.blocking, options.keep),
            counters: (0..count).map(|_| Counters::default()).collect(),
            busy: options.polled.map(Busy::new),
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
            group.start_thread(&index.to_string(), move || worker.run())?;
        }
        let watched = group.clone();
        group.start_thread("monitor", move || monitor::run(&watched))
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

    /// Waits until all tasks have ended, for at most `limit`; then cancels the others and ends the threads. In a process
    /// that was forked from the scheduler's there is nothing to end.
    ///
    /// # Panics
    /// On a worker, or in a call that blocks: it would wait for itself.
    pub fn shut_down(mut self, limit: Duration) -> Shutdown {
        assert!(!self.holds_thread(), "shut_down is not called in a task, for which it would wait");
        end(&std::mem::take(&mut self.handles), limit)
    }

    /// Whether this thread is held by a task that would wait for itself, or in vain for others of its worker.
    fn holds_thread(&self) -> bool {
        Current::is_worker() || self.handles.iter().any(|Handle(group)| Current::is_held_by(group))
    }
}

/// Lets all tasks end for at most `limit`, cancels the others, and ends the threads.
fn end(groups: &[Handle], limit: Duration) -> Shutdown {
    if groups.iter().any(|Handle(group)| !group.process.is_this()) {
        // The threads and the tasks are in another process.
        return Shutdown::default();
    }
    let groups = || groups.iter().map(|Handle(group)| &**group);
    let tasks = || Tasks::count_all(groups().map(|group| &group.tasks));
    let drain = |end| {
        // The tasks of one group may start some in another, so all have to be without tasks at one moment.
        loop {
            for group in groups() {
                group.wait_until_zero(|| group.tasks.count(), end);
            }
            let left = tasks();
            if left == 0 || end <= Instant::now() {
                return left;
            }
        }
    };
    groups().for_each(|group| group.draining.store(true, Ordering::SeqCst));
    let now = Instant::now();
    let cancelled = drain(now.checked_add(limit).unwrap_or(now + crate::timer::FAR_AWAY));
    for group in groups() {
        group.cancelling.store(true, Ordering::SeqCst);
        group.tasks.wake_all();
    }
    // Dropping a future is short; one that runs has this time to let go of its worker.
    drain(Instant::now() + LAST_CALL);
    groups().for_each(Group::stop);
    let last = Instant::now() + LAST_CALL;
    let stuck = loop {
        groups().for_each(Group::wake_all);
        let step = Instant::now() + Duration::from_millis(1);
        let threads = |group: &Group| group.wait_until_zero(|| group.threads.load(Ordering::SeqCst), step);
        let left = groups().map(threads).sum();
        if left == 0 || last < Instant::now() {
            break left;
        }
    };
    groups().for_each(Group::drop_queued);
    Shutdown { cancelled, stuck }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let holds_thread = self.holds_thread();
        let handles = std::mem::take(&mut self.handles);
        let end = move || {
            let _ = end(&handles, Duration::ZERO);
        };
        if holds_thread {
            // The thread would wait for itself. If no thread can be made the scheduler goes on: a drop does not panic.
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

/// A way to the workers of one tag, from any thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Group>);

impl Handle {
    /// The handle of the tag whose task runs here, or whose `block_on` this thread is in.
    pub fn current() -> Option<Handle> {
        Current::group().map(Handle)
    }

    /// Makes a call that blocks on one of this tag's threads for such calls; see [`spawn_blocking`](crate::spawn_blocking).
    ///
    /// # Panics
    /// If no thread can be made and there is none yet, and in a process that was forked from the scheduler's.
    pub fn spawn_blocking<F, T>(&self, call: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.spawn_blocking(call)
    }

    /// Starts a task in the background. After the scheduler has ended it is cancelled at once.
    ///
    /// # Panics
    /// In a process that was forked from the scheduler's.
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
    /// On a worker, which would wait for itself, and in a process that was forked from the scheduler's.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(!Current::is_worker(), "block_on is not called in a task: await the future there");
        self.0.assert_not_forked();
        let _entered = Current::enter(self.0.clone());
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

    /// What the threads for calls that block do.
    pub fn blocking(&self) -> BlockingStats {
        self.0.blocking.stats()
    }

    /// How many tasks have not ended. Calls that block count too.
    pub fn tasks(&self) -> usize {
        self.0.tasks.count()
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_for_calls_that_block_ends_when_it_has_nothing_to_do() {
        let mut builder = Scheduler::builder().workers(1);
        builder.last().keep = Duration::from_millis(1);
        let scheduler = builder.start().unwrap();
        for number in 1..3 {
            scheduler.block_on(scheduler.handle().spawn_blocking(|| ())).unwrap();
            while scheduler.handle().blocking() != (BlockingStats { runs: number, ..Default::default() }) {
                thread::yield_now();
            }
        }
    }
}
