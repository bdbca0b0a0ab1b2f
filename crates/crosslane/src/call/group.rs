//! The calls of a connection, which are cancelled together. All calls of an engine share its slots:
//! one for each lane at work.
//!
//! A cancellation has a time, and ends only calls that began before it. Each zygote reports a
//! Ctrl-C in the terminal, and some report it late. A late report does not end calls that began
//! after the Ctrl-C.

use super::spent::Spent;
use crate::error::Error;
use crate::function::{Function, Library};
use crate::lock;
use crate::pool::per_thread::{Gauge, Taken};
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

/// The state that all calls of one engine instance share.
#[derive(Debug, Default)]
struct Slots {
    /// Lanes at work. Engines bring one thread per worker; idle threads may lend their share.
    busy: Gauge,
    /// Whether each call uses only its own lane.
    alone: AtomicBool,
}

/// The calls that are cancelled together: those of one connection.
#[derive(Default)]
pub struct CallGroup {
    slots: Arc<Slots>,
    /// When the calls were cancelled last.
    cancelled: AtomicU64,
    /// Waiting calls ask this whether a call that began at a moment should end.
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

    /// Whether a call that began at this moment ([`now`]) should end. The first call that learns of
    /// a cancellation from `stop` cancels the others, which may be unable to learn of it.
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

    /// Lanes at work in the whole engine instance, as far as this thread knows. It sees changes by
    /// other threads a little later.
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

/// The call groups of an engine instance's connections, by the engine's numbers of the connections.
#[derive(Debug, Default)]
pub struct CallGroups {
    slots: Arc<Slots>,
    groups: Mutex<HashMap<u64, Weak<CallGroup>>>,
}

impl CallGroups {
    /// The group of a connection, which lasts as long as a caller holds it. The first caller that asks
    /// for the group provides its `stop`. Waiting calls ask `stop`, each on its own thread, whether a
    /// call that began at a moment should end.
    pub fn of(&self, connection: u64, stop: impl Fn(u64) -> bool + Send + Sync + 'static) -> Arc<CallGroup> {
        let mut groups = lock(&self.groups);
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

    /// Ends the calls of a connection that are running now. False if the connection has no group.
    pub fn cancel(&self, connection: u64) -> bool {
        let group = lock(&self.groups).get(&connection).and_then(Weak::upgrade);
        group.is_some_and(|group| {
            group.cancel();
            true
        })
    }

    /// Ends the calls of all connections that began before a moment. A moment after now counts as
    /// now.
    pub fn cancel_all_before(&self, moment: u64) {
        let moment = moment.min(now());
        lock(&self.groups).values().filter_map(Weak::upgrade).for_each(|group| group.cancel_before(moment));
    }

    /// Sets whether calls may use idle lanes in addition to their own.
    pub fn set_fan_out(&self, fan_out: bool) {
        self.slots.alone.store(!fan_out, Relaxed);
    }
}

/// The caller of a function: its group, its width and its begin, and the calls that its query has made
/// at this place.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    pub(super) group: &'a CallGroup,
    pub(super) width: usize,
    pub(super) begun: u64,
    /// Without it, each call is a query of its own.
    pub(super) spent: Option<&'a Spent>,
}

impl<'a> Caller<'a> {
    /// A caller that uses up to `width` lanes at once, and that begins now.
    pub fn new(group: &'a CallGroup, width: usize) -> Self {
        Self::since(group, width, now())
    }

    /// A caller whose query began at this moment. A query is cancelled as a whole, also between its
    /// calls.
    pub fn since(group: &'a CallGroup, width: usize, begun: u64) -> Self {
        let width = if group.slots.alone.load(Relaxed) { 1 } else { width };
        Self { group, width, begun, spent: None }
    }

    /// The same caller, whose calls count for the budget of its query.
    #[must_use]
    pub fn spending(self, spent: &'a Spent) -> Self {
        Self { spent: Some(spent), ..self }
    }

    /// Whether a cancellation came after the query's begin. This only reads a number.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.group.was_cancelled(self.begun)
    }

    pub(crate) fn should_end(&self) -> bool {
        self.group.should_end(self.begun)
    }

    /// Waits for a lane of a library, to call a function of it.
    ///
    /// # Errors
    /// As [`Pool::check_out`], and [`Error::Cancelled`].
    ///
    /// [`Pool::check_out`]: crate::pool::Pool::check_out
    pub(crate) fn check_out<Z: Zygote>(
        self,
        library: &Library<Z>,
        function: &Function,
    ) -> Result<PooledLane<Z::Lane>, Error> {
        let log = library.log(function);
        let begun = log.is_on().then(now);
        let lane = library.pool.of(function).check_out(|| self.should_end())?;
        let lane = lane.ok_or_else(|| Self::cancelled(function))?;
        if let Some(begun) = begun {
            log.waited(begun, lane.stats());
        }
        Ok(lane)
    }

    pub(crate) fn cancelled(function: &Function) -> Error {
        Error::Cancelled { function: function.name().into() }
    }
}
