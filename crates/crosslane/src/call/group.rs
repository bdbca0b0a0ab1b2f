//! The calls of a connection: they are cancelled together. All calls of an engine share its slots, one for each lane
//! at work.
//!
//! A cancellation has a time and ends what began before it. Each zygote reports a terminal's Ctrl-C, some of them late;
//! such a late report does not end what began since.

use crate::error::Error;
use crate::function::Function;
use crate::pool::per_thread::{Gauge, Taken};
use crate::stats::now;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What all calls of one engine instance share.
#[derive(Debug, Default)]
struct Slots {
    /// Lanes at work. Engines bring one thread per worker; idle ones may lend their share.
    busy: Gauge,
    /// Whether each call stays on its own lane.
    alone: AtomicBool,
}

/// The calls that are cancelled together: those of one connection.
#[derive(Default)]
pub struct CallGroup {
    slots: Arc<Slots>,
    /// When they were cancelled last.
    cancelled: AtomicU64,
    /// Asked by waiting calls whether what began at a moment should end.
    stop: Option<Box<dyn Fn(u64) -> bool + Send + Sync>>,
}

impl fmt::Debug for CallGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallGroup").field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl CallGroup {
    /// A group whose waiting calls ask `stop`, each on its own thread, whether they should end.
    pub fn with_stop(stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { stop: Some(Box::new(move |_| stop())), ..Self::default() }
    }

    /// Another group of the same engine instance, with a `stop` of its own.
    #[must_use]
    pub fn beside(&self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { slots: Arc::clone(&self.slots), ..Self::with_stop(stop) }
    }

    /// Whether what began at this moment ([`now`]) should end. The first call that learns it from `stop` cancels the others, which may
    /// be unable to learn it.
    pub fn should_end(&self, begun: u64) -> bool {
        if self.was_cancelled(begun) {
            return true;
        }
        let stops = self.stop.as_ref().is_some_and(|stop| stop(begun));
        if stops {
            self.cancel();
        }
        stops
    }

    fn was_cancelled(&self, begun: u64) -> bool {
        self.cancelled.load(Relaxed) > begun
    }

    /// Ends all calls that are running now.
    pub fn cancel(&self) {
        self.cancel_before(now());
    }

    fn cancel_before(&self, moment: u64) {
        self.cancelled.fetch_max(moment, Relaxed);
    }

    /// Lanes at work in the whole engine instance, as far as this thread knows. What others do it sees a little later.
    pub(super) fn busy(&self) -> usize {
        self.slots.busy.about(now())
    }

    /// Takes a slot for another lane, if fewer than `width` are taken.
    pub(super) fn try_join(&self, width: usize) -> Option<Taken<'_>> {
        self.slots.busy.try_take(width)
    }

    pub(super) fn join(&self) -> Taken<'_> {
        self.slots.busy.take()
    }
}

/// The groups of an engine instance's connections, by the engine's numbers of these.
#[derive(Debug, Default)]
pub struct CallGroups {
    slots: Arc<Slots>,
    groups: Mutex<HashMap<u64, Weak<CallGroup>>>,
}

impl CallGroups {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<CallGroup>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group of a connection, which lasts as long as somebody holds it. Its waiting calls ask the `stop` of the first who asks for
    /// the group, each on its own thread, whether what began at a moment should end.
    pub fn of(&self, connection: u64, stop: impl Fn(u64) -> bool + Send + Sync + 'static) -> Arc<CallGroup> {
        let mut groups = self.lock();
        if let Some(group) = groups.get(&connection).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let group = Arc::new(CallGroup {
            slots: Arc::clone(&self.slots),
            stop: Some(Box::new(stop)),
            ..CallGroup::default()
        });
        groups.insert(connection, Arc::downgrade(&group));
        group
    }

    /// Ends what runs for a connection now. False if nothing does.
    pub fn cancel(&self, connection: u64) -> bool {
        let group = self.lock().get(&connection).and_then(Weak::upgrade);
        group.is_some_and(|group| {
            group.cancel();
            true
        })
    }

    /// Ends what began on any connection before a moment, which is no later than now.
    pub fn cancel_all_before(&self, moment: u64) {
        let moment = moment.min(now());
        self.lock().values().filter_map(Weak::upgrade).for_each(|group| group.cancel_before(moment));
    }

    /// Whether calls may use idle lanes beside their own.
    pub fn set_fan_out(&self, fan_out: bool) {
        self.slots.alone.store(!fan_out, Relaxed);
    }
}

/// Who makes a call.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    pub(super) group: &'a CallGroup,
    pub(super) width: usize,
    pub(super) begun: u64,
}

impl<'a> Caller<'a> {
    /// One that uses up to `width` lanes at once, for something that begins now.
    pub fn new(group: &'a CallGroup, width: usize) -> Self {
        Self::since(group, width, now())
    }

    /// The same for something that began at this moment: a query is cancelled as a whole, also between its calls.
    pub fn since(group: &'a CallGroup, width: usize, begun: u64) -> Self {
        let width = if group.slots.alone.load(Relaxed) { 1 } else { width };
        Self { group, width, begun }
    }

    /// Whether a cancellation came after the query's begin. It costs no more than to read a number.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.group.was_cancelled(self.begun)
    }

    pub(crate) fn should_end(&self) -> bool {
        self.group.should_end(self.begun)
    }

    pub(crate) fn cancelled(function: &Function) -> Error {
        Error::Cancelled { function: function.name().into() }
    }
}
