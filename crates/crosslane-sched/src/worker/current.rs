//! The role of the calling thread for schedulers: a worker, a thread for blocking calls, or a
//! thread in `block_on`.

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
    /// The group that made this thread for its blocking calls. This pointer is compared, and never
    /// read through.
    static BLOCKING: Cell<*const Group> = const { Cell::new(ptr::null()) };
}

/// The role of the calling thread for schedulers.
#[derive(Debug)]
pub(crate) struct Current;

impl Current {
    fn with_worker<R>(access: impl FnOnce(&Worker) -> R) -> Option<R> {
        let worker = WORKER.get();
        // SAFETY: `run` sets the pointer for its own thread, and only as long as the worker lives
        // there.
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

    /// Returns whether a task or a blocking call of this group runs on this thread. Then the group
    /// cannot end before the task or the call returns.
    pub(crate) fn is_held_by(group: &Group) -> bool {
        Current::worker_index(group).is_some() || ptr::eq(BLOCKING.get(), group)
    }

    /// Marks this thread as a thread for blocking calls of the group.
    pub(crate) fn set_blocking(group: &Group) {
        BLOCKING.set(group);
    }

    /// Makes the group own the tasks that this thread starts, until the result is dropped.
    pub(crate) fn enter(group: Arc<Group>) -> Entered {
        Entered(ENTERED.replace(Some(group)))
    }

    /// Lets the task run next on this worker. Gives the task back if this is no worker, or if
    /// another task is next. Also gives it back if [`FAIRNESS`] tasks have already started each
    /// other, because other tasks must run too.
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

    /// Puts the task into this worker's queue, or lets it run next. Gives the task back if this is
    /// no worker of the group.
    pub(crate) fn schedule(group: &Group, runnable: Runnable, yields: bool) -> Option<Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| worker.schedule(&mut runnable, yields));
        runnable
    }
}

/// The group of the thread before the thread entered another one. Dropping this restores it.
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
    // This is dropped before the worker, also by a panic.
    let leave = Leave;
    worker.run();
    // A dropped task may wake other tasks. They must find no worker here any more.
    drop(leave);
    worker.drop_queued();
}
