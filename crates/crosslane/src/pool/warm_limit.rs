//! The bound on the warm lanes of all libraries of an engine together.
//!
//! An unused lane is a process or an isolate that takes memory. A pool that was never used keeps
//! one lane, and a used pool keeps as many as its options say. Both keep them only while all pools
//! that share a bound have fewer idle lanes than the bound.
//!
//! More lanes come up when queries use several libraries at once. These lanes end when their
//! library was not used for [`SETTLED`]. The lanes of libraries that no query has called end first.
//! Then the lanes of the library that was used longest ago end.
//!
//! # Locks
//! The list of members is locked before a member's own state, and never after it. So a pool asks
//! the bound without holding its own lock.

use crate::lock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a library must be unused before its lanes may end in favour of others. A query uses its
/// libraries again for each chunk.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// What a pool reports about its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Census {
    /// Idle lanes.
    pub(crate) idle: usize,
    /// When a lane was used last; `None` if no lane was ever used.
    pub(crate) used: Option<Instant>,
}

/// A pool that shares a bound.
pub(crate) trait Member: Send + Sync {
    /// The pool's lanes now.
    fn census(&self) -> Census;
    /// Tells the pool that it may have more lanes again than [`Member::shed`] has left it.
    fn reconsider(&self);
    /// Tells the pool to end this many of its idle lanes soon. It keeps no more than the rest until
    /// a waiter finds no lane.
    fn shed(&self, lanes: usize);
}

/// A bound on the idle lanes that several pools have together.
#[derive(Debug)]
pub struct WarmLimit {
    limit: AtomicUsize,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

impl WarmLimit {
    /// A bound of `limit` lanes.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), members: Mutex::default() }
    }

    /// Changes the bound. Surplus lanes stay until one of the pools checks the bound again.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// Adds a pool, which shares the bound as long as it lives.
    pub(crate) fn join(&self, member: Weak<dyn Member>) {
        let mut members = lock(&self.members);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    /// Removes a pool that has ended, with its lanes.
    pub(crate) fn leave(&self) {
        lock(&self.members).iter().filter_map(Weak::upgrade).for_each(|member| member.reconsider());
    }

    /// Whether there may be another idle lane.
    pub(crate) fn has_room(&self) -> bool {
        let members = lock(&self.members);
        let idle: usize = members.iter().filter_map(Weak::upgrade).map(|member| member.census().idle).sum();
        idle < self.limit.load(Relaxed)
    }

    /// Tells pools to end the lanes that exceed the bound. False if too many of the lanes were used
    /// a moment ago.
    pub(crate) fn balance(&self) -> bool {
        let members = lock(&self.members);
        let mut counted: Vec<_> = members
            .iter()
            .filter_map(Weak::upgrade)
            .map(|member| (member.census(), member))
            .filter(|(census, _)| census.idle > 0)
            .collect();
        let idle: usize = counted.iter().map(|(census, _)| census.idle).sum();
        let mut excess = idle.saturating_sub(self.limit.load(Relaxed));
        counted.sort_by_key(|(census, _)| census.used);
        for (census, member) in counted {
            let rests = census.used.is_none_or(|used| used.elapsed() >= SETTLED);
            let lanes = if rests { census.idle.min(excess) } else { 0 };
            if lanes > 0 {
                member.shed(lanes);
                excess -= lanes;
            }
        }
        excess == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Pool(Mutex<Census>, AtomicUsize);

    impl Member for Pool {
        fn census(&self) -> Census {
            *self.0.lock().unwrap()
        }
        fn reconsider(&self) {}
        fn shed(&self, lanes: usize) {
            self.1.fetch_add(lanes, Relaxed);
            self.0.lock().unwrap().idle -= lanes;
        }
    }

    fn pools(warm_limit: &WarmLimit, all: &[(usize, Option<Duration>)]) -> Vec<Arc<Pool>> {
        let now = Instant::now();
        let made = all.iter().map(|(idle, ago)| {
            let used = ago.map(|ago| now.checked_sub(ago).expect("the machine runs for longer"));
            Arc::new(Pool(Mutex::new(Census { idle: *idle, used }), AtomicUsize::new(0)))
        });
        let made: Vec<_> = made.collect();
        for pool in &made {
            let member: Weak<Pool> = Arc::downgrade(pool);
            warm_limit.join(member);
        }
        made
    }

    fn shed(pools: &[Arc<Pool>]) -> Vec<usize> {
        pools.iter().map(|pool| pool.1.load(Relaxed)).collect()
    }

    #[test]
    fn those_that_were_used_longest_ago_end_first() {
        let warm_limit = WarmLimit::new(4);
        let (long, short) = (SETTLED * 3, SETTLED * 2);
        let all =
            pools(&warm_limit, &[(2, Some(short)), (2, Some(long)), (1, None), (2, Some(Duration::ZERO))]);
        assert!(!warm_limit.has_room());
        assert!(warm_limit.balance());
        assert_eq!(shed(&all), [0, 2, 1, 0]);
        assert!(!warm_limit.has_room());
        warm_limit.set_limit(5);
        assert!(warm_limit.has_room());
    }

    #[test]
    fn what_was_used_a_moment_ago_stays() {
        let warm_limit = WarmLimit::new(1);
        let all = pools(&warm_limit, &[(2, Some(Duration::ZERO)), (2, Some(SETTLED))]);
        assert!(!warm_limit.balance());
        assert_eq!(shed(&all), [0, 2]);
    }

    #[test]
    fn a_pool_that_is_gone_does_not_count() {
        let warm_limit = WarmLimit::new(1);
        drop(pools(&warm_limit, &[(3, None)]));
        assert!(warm_limit.has_room() && warm_limit.balance());
    }
}
