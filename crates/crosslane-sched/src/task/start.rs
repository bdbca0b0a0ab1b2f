//! Starts tasks.

use super::contain::Contained;
use super::join::{JoinError, JoinHandle, Output, Panic};
use crate::scheduler::Group;
use crate::worker::{Current, Job, Start};
use async_task::{Runnable, ScheduleInfo};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// A future in the list of tasks. A panic becomes its result, and it ends when its group cancels
/// its tasks.
struct Listed<F> {
    future: Contained<F>,
    entry: Entry,
}

impl<F: Future> Future for Listed<F> {
    type Output = Output<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A wake during this poll counts. So either the task sees here that its group is
        // cancelling, or the wake that follows runs it once more.
        if self.entry.group.is_cancelling() {
            return Poll::Ready(Contained::new(Err(JoinError::Cancelled)));
        }
        // SAFETY: the future is pinned together with `self`, and never moved out.
        let future = unsafe { self.map_unchecked_mut(|listed| &mut *listed.future.0) };
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(poll) => poll.map(|output| Contained::new(Ok(output))),
            Err(payload) => {
                let panic = Panic(std::sync::Mutex::new(payload));
                Poll::Ready(Contained::new(Err(JoinError::Panicked(panic))))
            }
        }
    }
}

/// A task's entry in the list. [`Listed`] declares it after the future, so the future is dropped
/// first.
struct Entry {
    group: Arc<Group>,
    shard: usize,
    key: usize,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // In another process the lock may be held for ever.
        if !self.group.process.is_this() {
            return;
        }
        let waker = self.group.tasks.remove(self.shard, self.key);
        drop(waker);
        self.group.task_ended();
    }
}

/// Makes a task of the group without starting it. `schedule` brings the task to a thread each time
/// the task is woken.
///
/// # Panics
/// In a process that was forked from the group's.
pub(crate) fn create<F, S>(group: &Arc<Group>, future: F, schedule: S) -> (Runnable, JoinHandle<F::Output>)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
    S: Fn(&Group, Runnable, ScheduleInfo) + Send + Sync + 'static,
{
    group.assert_not_forked();
    static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
    let thread = Current::worker_index(group).unwrap_or_else(|| OUTSIDE.fetch_add(1, Ordering::Relaxed));
    let (shard, mut tasks) = group.tasks.shard(thread);
    let slot = tasks.vacant_entry();
    let entry = Entry { group: group.clone(), shard, key: slot.key() };
    let schedule = {
        let group = group.clone();
        async_task::WithInfo(move |runnable, info| schedule(&group, runnable, info))
    };
    let (runnable, task) = async_task::spawn(Listed { future: Contained::new(future), entry }, schedule);
    slot.insert(runnable.waker());
    (runnable, JoinHandle(Some(task.fallible())))
}

impl Group {
    pub(crate) fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (runnable, handle) = create(self, future, Group::schedule);
        // After the end of the scheduler no worker would run the task, so it is cancelled at once.
        if !self.is_stopped() {
            runnable.schedule();
        }
        handle
    }

    /// Queues a task that has to run.
    pub(crate) fn schedule(&self, runnable: Runnable, info: ScheduleInfo) {
        if !self.process.is_this() {
            // No worker runs the task in this process. Dropping the task might run code that waits
            // for another thread.
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

    pub(crate) fn spawn_blocking<F, T>(self: &Arc<Self>, call: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // The task runs once. Only a wake would schedule it again, and no code has its waker while
        // it runs.
        let (runnable, handle) = create(self, async move { call() }, |_, runnable, _| drop(runnable));
        let start = || {
            let group = Arc::clone(self);
            self.start_thread("blocking", move || {
                let _entered = Current::enter(group.clone());
                Current::set_blocking(&group);
                group.blocking.run();
            })
        };
        let added = self.blocking.add(runnable, start);
        added.unwrap_or_else(|error| panic!("there is no thread for a call that blocks: {error}"));
        handle
    }
}

/// Starts a task in the background. The task goes into the queue of the current worker. Other
/// workers may take it from this queue.
///
/// # Panics
/// Outside of a task or of `block_on` of a scheduler ([`Handle::spawn`](crate::Handle::spawn) works
/// anywhere), and in a process that was forked from the scheduler's.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Current::group().expect("spawn is called in a task or in block_on of a scheduler").spawn(future)
}

/// Makes a call that blocks or computes for long on a thread for such calls. So the call holds no
/// worker. The tag makes these threads when they are needed, at most
/// [`Builder::blocking`](crate::Builder::blocking). A thread that has been idle for ten seconds
/// ends.
///
/// The call counts as a task: shutdown waits for it. It can be cancelled until it has begun.
///
/// # Panics
/// As [`spawn`], and if no thread can be made and there is none yet.
pub fn spawn_blocking<F, T>(call: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let group = Current::group().expect("spawn_blocking is called in a task or in block_on of a scheduler");
    group.spawn_blocking(call)
}

/// Starts a task in the foreground: the worker runs it at once. The current task waits in the
/// worker's queue until the new task waits or ends. An idle worker may take the current task from
/// the queue earlier.
///
/// Awaiting this returns the new task's handle. The new task has begun by then. In two cases the
/// task starts in the background instead. The first case is a call outside of a worker (in
/// `block_on`). The second case is the 61st start in a chain of tasks that each start the next in
/// the foreground. Then other tasks must run, too.
///
/// # Panics
/// As [`spawn`].
pub fn foreground<F>(future: F) -> Foreground<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Foreground(State::New(future))
}

/// The future of a start in the foreground. See [`foreground`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Foreground<F: Future>(State<F>);

enum State<F: Future> {
    New(F),
    Started(JoinHandle<F::Output>),
    Done,
}

impl<F: Future> fmt::Debug for Foreground<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Foreground")
    }
}

// The future moves into its own task before it is polled.
impl<F: Future> Unpin for Foreground<F> {}

impl<F> Future for Foreground<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    type Output = JoinHandle<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.0, State::Done) {
            State::New(future) => {
                let group =
                    Current::group().expect("foreground is awaited in a task or in block_on of a scheduler");
                let (runnable, handle) = create(&group, future, Group::schedule);
                match Current::start_next(&group, runnable) {
                    Ok(()) => {
                        self.0 = State::Started(handle);
                        // The current task is queued when its run ends, right after this.
                        Current::set_start(Start::Behind);
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Err(runnable) => {
                        runnable.schedule();
                        Poll::Ready(handle)
                    }
                }
            }
            State::Started(handle) => Poll::Ready(handle),
            State::Done => panic!("a future is not polled after it is ready"),
        }
    }
}

/// Lets other tasks of the group run before the current one continues.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
