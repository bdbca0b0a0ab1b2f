//! What the calling thread does for schedulers: it is a worker, a thread for blocking calls, or in
//! `block_on`.

use super::job::Start;
use super::run::{FAIRNESS, Worker};
use crate::scheduler::Group;
use async_task::Runnable;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

thread_local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(ptr::null()) };
    /// The group whose `block_on` runs on this thread.
    static ENTERED: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
    /// The group that made this thread for its blocking calls. The pointer is only compared.
    static BLOCKING: Cell<*const Group> = const { Cell::new(ptr::null()) };
}

/// What the calling thread does for schedulers.
#[derive(Debug)]
pub(crate) struct Current;

impl Current {
    fn with_worker<R>(access: impl FnOnce(&Worker) -> R) -> Option<R> {
        let worker = WORKER.get();
        // SAFETY: `run` sets the pointer for its own thread, and as long as the worker lives there.
        (!worker.is_null()).then(|| access(unsafe { &*worker }))
    }

    fn with_worker_of<R>(group: &Group, access: impl FnOnce(&Worker) -> R) -> Option<R> {
        Current::with_worker(|worker| ptr::eq(&*worker.group, group).then(|| access(worker))).flatten()
    }

    pub(crate) fn group() -> Option<Arc<Group>> {
        Current::with_worker(|worker| worker.group.clone()).or_else(|| ENTERED.with_borrow(Option::clone))
    }

    pub(crate) fn worker_index(group: &Group) -> Option<usize> {
        Current::with_worker_of(group, |worker| worker.index)
    }

    pub(crate) fn is_worker() -> bool {
        !WORKER.get().is_null()
    }

    /// Whether a task or a blocking call of this group runs here. Then the group cannot end before
    /// it returns.
    pub(crate) fn is_held_by(group: &Group) -> bool {
        Current::worker_index(group).is_some() || ptr::eq(BLOCKING.get(), group)
    }

    /// Marks this thread as one for blocking calls of the group.
    pub(crate) fn set_blocking(group: &Group) {
        BLOCKING.set(group);
    }

    /// Tasks that this thread starts belong to the group, until the result is dropped.
    pub(crate) fn enter(group: Arc<Group>) -> Entered {
        Entered(ENTERED.replace(Some(group)))
    }

    /// Lets the task run next on this worker. Gives it back if this is no worker, if another task
    /// is next, or if [`FAIRNESS`] tasks have already started each other, so that other tasks run
    /// too.
    pub(crate) fn start_next(group: &Group, runnable: Runnable) -> Result<(), Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| {
            if worker.chain.get() < FAIRNESS {
                worker.start_next(&mut runnable);
            }
        });
        runnable.map_or(Ok(()), Err)
    }

    /// Takes one from the current task's budget. Returns false if none is left.
    pub(crate) fn spend() -> bool {
        let spend = |worker: &Worker| {
            let left = worker.budget.get().checked_sub(1)?;
            worker.budget.set(left);
            Some(())
        };
        Current::with_worker(spend).is_none_or(|spent| spent.is_some())
    }

    pub(crate) fn set_start(start: Start) {
        Current::with_worker(|worker| worker.start.set(start));
    }

    /// Puts the task into this worker's queue, or lets it run next. Gives it back if this is no
    /// worker of the group.
    pub(crate) fn schedule(group: &Group, runnable: Runnable, yields: bool) -> Option<Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| worker.schedule(&mut runnable, yields));
        runnable
    }
}

/// The group that the thread was in before it entered another. Dropping this restores it.
#[derive(Debug)]
pub(crate) struct Entered(Option<Arc<Group>>);

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(self.0.take());
    }
}

/// Dropping this ends the thread's time as a worker.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        WORKER.set(ptr::null());
    }
}

/// Runs a worker on the calling thread, until its group is stopped.
pub(crate) fn run(worker: Worker) {
    WORKER.set(&raw const worker);
    // Dropped before the worker is, also by a panic.
    let leave = Leave;
    worker.run();
    // Tasks that are dropped wake others, which find no worker here any more.
    drop(leave);
    worker.drop_queued();
}
