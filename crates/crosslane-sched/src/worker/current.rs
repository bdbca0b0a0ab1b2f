//! What the calling thread is to the schedulers: a worker, a thread for calls that block, or one that is in `block_on`.

use super::job::Start;
use super::run::{FAIRNESS, Worker};
use crate::scheduler::Group;
use async_task::Runnable;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

thread_local! {
    static WORKER: Cell<*const Worker> = const { Cell::new(ptr::null()) };
    /// The group whose `block_on` this thread is in.
    static ENTERED: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
    /// The group for whose calls that block this thread was made. It is only compared.
    static BLOCKING: Cell<*const Group> = const { Cell::new(ptr::null()) };
}

/// What the calling thread is to the schedulers.
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

    /// Whether a task or a call of this group runs here: the group cannot end before this thread lets go of it.
    pub(crate) fn is_held_by(group: &Group) -> bool {
        Current::worker_index(group).is_some() || ptr::eq(BLOCKING.get(), group)
    }

    /// This thread is one for calls that block, until it ends.
    pub(crate) fn set_blocking(group: &Group) {
        BLOCKING.set(group);
    }

    /// What is started on this thread belongs to the group, until the answer is dropped.
    pub(crate) fn enter(group: Arc<Group>) -> Entered {
        Entered(ENTERED.replace(Some(group)))
    }

    /// Lets the task run next on this worker; gives it back if there is none, if another task comes next, or if as many
    /// tasks as [`FAIRNESS`] says have started each other already: others would never have a turn.
    pub(crate) fn start_next(group: &Group, runnable: Runnable) -> Result<(), Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| {
            if worker.chain.get() < FAIRNESS {
                worker.start_next(&mut runnable);
            }
        });
        runnable.map_or(Ok(()), Err)
    }

    /// Takes one from the current task's budget. False if there is none left.
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

    /// Puts the task into this worker's queue, or lets it run next; gives it back if there is no worker here.
    pub(crate) fn schedule(group: &Group, runnable: Runnable, yields: bool) -> Option<Runnable> {
        let mut runnable = Some(runnable);
        Current::with_worker_of(group, |worker| worker.schedule(&mut runnable, yields));
        runnable
    }
}

/// What the thread was in before it entered a group. It is in it again when this is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Option<Arc<Group>>);

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(self.0.take());
    }
}

/// The thread is no worker any more when this is dropped.
struct Left;

impl Drop for Left {
    fn drop(&mut self) {
        WORKER.set(ptr::null());
    }
}

/// Runs a worker on the calling thread, until its group is stopped.
pub(crate) fn run(worker: Worker) {
    WORKER.set(&raw const worker);
    // Dropped before the worker is, also by a panic.
    let left = Left;
    worker.run();
    // Tasks that are dropped wake others, which find no worker here any more.
    drop(left);
    worker.drop_queued();
}
