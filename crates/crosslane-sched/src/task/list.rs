//! The list of a group's tasks.

use crate::sync::{Mutex, MutexGuard, lock};
use slab::Slab;
use std::task::Waker;

/// The tasks of a group that have not ended, each with a waker. The thread that started a task
/// determines the task's shard.
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

    /// Locks the shard of a thread's number. Returns the shard's own number, and its tasks.
    pub(super) fn shard(&self, thread: usize) -> (usize, MutexGuard<'_, Slab<Waker>>) {
        let shard = thread % self.shards.len();
        (shard, lock(&self.shards[shard].0))
    }

    /// Removes the task of this key, and returns its waker. The caller must drop the waker without
    /// the lock.
    pub(super) fn remove(&self, shard: usize, key: usize) -> Option<Waker> {
        lock(&self.shards[shard].0).try_remove(key)
    }

    /// Returns how many tasks have not ended.
    pub(crate) fn count(&self) -> usize {
        Tasks::count_all([self])
    }

    /// Returns how many tasks of all these groups have not ended. It counts them at one moment.
    /// Otherwise a task could start another task in a shard or group that was already counted, and
    /// end.
    pub(crate) fn count_all<'a>(groups: impl IntoIterator<Item = &'a Tasks>) -> usize {
        let locked: Vec<MutexGuard<'a, _>> =
            groups.into_iter().flat_map(|tasks| &tasks.shards).map(|shard| lock(&shard.0)).collect();
        locked.iter().map(|shard| shard.len()).sum()
    }

    /// Wakes all tasks of a group that stops. So they run once more and end.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            let wakers: Vec<_> = lock(&shard.0).iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
