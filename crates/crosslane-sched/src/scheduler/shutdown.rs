//! Ends a scheduler: waits for its tasks, cancels the tasks that do not end in time, and ends its
//! threads.

use super::group::Group;
use super::handle::Handle;
use crate::task::Tasks;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long cancelled tasks may take to leave their workers. After that, threads may take this long
/// to end.
const GRACE: Duration = Duration::from_secs(1);

/// The result of a shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "tasks may have been cancelled"]
pub struct Shutdown {
    /// How many tasks did not end in time and were cancelled.
    pub cancelled: usize,
    /// How many threads still ran two seconds later, because a task did not return.
    pub stuck: usize,
}

/// Waits for all tasks for at most `limit`, cancels the other tasks, and ends the threads.
pub(super) fn end(groups: &[Handle], limit: Duration) -> Shutdown {
    if groups.iter().any(|Handle(group)| !group.process.is_this()) {
        // The threads and the tasks are in another process.
        return Shutdown::default();
    }
    let groups = || groups.iter().map(|Handle(group)| &**group);
    let tasks = || Tasks::count_all(groups().map(|group| &group.tasks));
    let drain = |end| {
        // Tasks of one group may start tasks in another group. So all groups must be without tasks
        // at one moment.
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
    // It takes little time to drop a future. A running task has `GRACE` to return.
    drain(Instant::now() + GRACE);
    groups().for_each(Group::stop);
    let last = Instant::now() + GRACE;
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
