//! Tasks: futures that a group runs.
//!
//! The cell of a task, its wakers and its cancellation are those of the crate `async-task`. Here is what
//! a scheduler adds: where a task goes that has to run, panics that stay inside, and the list of all tasks, which
//! shutdown needs to cancel those that wait.

use crate::scheduler::Group;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::worker::{Current, Start};
use async_task::{FallibleTask, Runnable, ScheduleInfo};
use slab::Slab;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

type Payload = Box<dyn Any + Send>;

/// Wakes. A waker may be a user's, and its panic is none of a worker.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// Runs the code of a user of which nobody awaits a result. The panic hook has told of a panic.
fn contain(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        drop(Contained::new(payload));
    }
}

/// A value of a user whose drop may panic.
#[derive(Debug)]
struct Contained<T>(ManuallyDrop<T>);

impl<T> Contained<T> {
    fn new(value: T) -> Self {
        Contained(ManuallyDrop::new(value))
    }

    fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is taken once, and `this` is not dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        // SAFETY: this is the only drop of the value, which is not moved, as it may be pinned.
        let dropped = catch_unwind(AssertUnwindSafe(|| unsafe { ManuallyDrop::drop(&mut self.0) }));
        // What a panic in a drop leaves behind may panic as well when it is dropped, and so on.
        std::mem::forget(dropped);
    }
}

/// Why a task has no result.
pub enum JoinError {
    /// It was cancelled, by its handle or by the end of the scheduler.
    Cancelled,
    /// It panicked.
    Panicked(Panic),
}

/// What a task panicked with.
///
/// Payloads are `Send` only. The lock makes this `Sync` too, as errors have to be.
pub struct Panic(std::sync::Mutex<Payload>);

impl Panic {
    /// The payload, as [`std::panic::resume_unwind`] takes it.
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        out.write_str(text.unwrap_or("(no text)"))
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => out.write_str("the task was cancelled"),
            JoinError::Panicked(panic) => write!(out, "the task panicked: {panic}"),
        }
    }
}

impl std::error::Error for JoinError {}

/// A task's handle: a future of its result. The task goes on when the handle is dropped.
#[derive(Debug)]
pub struct JoinHandle<T>(Option<FallibleTask<Output<T>>>);

type Output<T> = Contained<Result<T, JoinError>>;

impl<T> JoinHandle<T> {
    /// Cancels the task, unless it has ended, and waits until its future is dropped. Dropping what this returns
    /// cancels the task too, without waiting.
    ///
    /// A task is cancelled where it waits; one that runs goes on until it waits.
    ///
    /// # Errors
    /// [`JoinError::Cancelled`], unless the task ended before; [`JoinError::Panicked`] if it panicked before.
    pub fn cancel(mut self) -> impl Future<Output = Result<T, JoinError>> {
        let task = self.0.take().expect("a handle has its task until it is dropped");
        let mut cancelled = Box::pin(task.cancel());
        // The first poll cancels, which shall not wait for somebody who awaits this.
        let first = cancelled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        async move {
            joined(match first {
                Poll::Ready(output) => output,
                Poll::Pending => cancelled.await,
            })
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(FallibleTask::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.0.as_mut().expect("a handle has its task until it is dropped");
        Pin::new(task).poll(context).map(joined)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

fn joined<T>(output: Option<Output<T>>) -> Result<T, JoinError> {
    output.ok_or(JoinError::Cancelled)?.into_inner()
}

/// The tasks of a group that have not ended, each with a waker. In shards, by the thread that started the task.
#[derive(Debug)]
pub(crate) struct Tasks {
    shards: Vec<Shard>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Slab<Waker>>);

impl Tasks {
    pub(crate) fn new(shards: usize) -> Self {
        Tasks { shards: (0..shards).map(|_| Shard::default()).collect() }
    }

    /// How many tasks have not ended.
    pub(crate) fn count(&self) -> usize {
        Tasks::count_all([self])
    }

    /// How many tasks of all these groups have not ended, at one moment: one task may start another in a shard or in
    /// a group that was counted before, and end.
    pub(crate) fn count_all<'a>(groups: impl IntoIterator<Item = &'a Tasks>) -> usize {
        let locked: Vec<MutexGuard<'a, _>> =
            groups.into_iter().flat_map(|tasks| &tasks.shards).map(|shard| lock(&shard.0)).collect();
        locked.iter().map(|shard| shard.len()).sum()
    }

    /// Wakes all tasks of a group that is being stopped, so that they run once more and end.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            let wakers: Vec<_> = lock(&shard.0).iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// A future in the list of tasks, whose panics are results, and which ends when its group is being stopped.
struct Listed<F> {
    future: Contained<F>,
    entry: Entry,
}

impl<F: Future> Future for Listed<F> {
    type Output = Output<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A wake counts from before this step on. So the task sees here that its group is being stopped, or the wake
        // that follows brings it back.
        if self.entry.group.is_cancelling() {
            return Poll::Ready(Contained::new(Err(JoinError::Cancelled)));
        }
        // SAFETY: the future is pinned as the whole is: it is never moved out.
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

/// A task's place in the list. Declared behind the future, so that the future is dropped first.
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
        let waker = lock(&self.group.tasks.shards[self.shard].0).try_remove(self.key);
        drop(waker);
        self.group.task_ended();
    }
}

/// Makes a task of the group, without starting it. `schedule` brings it to a thread whenever it was woken.
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
    let shards = &group.tasks.shards;
    let shard = Current::worker_index(group).unwrap_or_else(|| OUTSIDE.fetch_add(1, Ordering::Relaxed))
        % shards.len();
    let mut tasks = lock(&shards[shard].0);
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

/// Starts a task in the background: it goes into the queue of the worker that runs the current task, from which other
/// workers take it too.
///
/// # Panics
/// Outside of a task or of `block_on` of a scheduler ([`Handle::spawn`](crate::Handle::spawn) works anywhere), and in a
/// process that was forked from the scheduler's.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Current::group().expect("spawn is called in a task or in block_on of a scheduler").spawn(future)
}

/// Makes a call that blocks, or computes for long, on a thread for such calls, so that it holds no worker. The tag's
/// threads for this are made when they are needed, at most as many as
/// [`Builder::blocking`](crate::Builder::blocking) says, and end when they have had nothing to do for ten seconds.
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

/// Starts a task in the foreground: the worker runs it at once, and the current task waits in the worker's queue until
/// the new one lets go of the worker, or until an idle worker takes it from there.
///
/// Awaiting this gives the new task's handle; the new task has begun by then. Called outside of a worker (in
/// `block_on`), it starts the task in the background; so does the 61st task in a row of which each was started in the
/// foreground by the one before, so that others have their turns.
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

/// A start in the foreground; see [`foreground`].
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

// The future is moved into its own task before it is ever polled.
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
                        // The current task is queued when its run ends, which is now.
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

/// Lets other tasks of the group go first, once.
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
