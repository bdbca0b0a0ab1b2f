//! Batches that wait for the `rate` of their function.

use super::Route;
use super::state::{Item, State};
use crosslane::lane::{Lane as _, rest_until};
use crosslane::lock;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Route {
    /// Whether the oldest batch may go to a worker now, by the `rate` of its function. If not, the
    /// watcher tries it again, and the client knows that it has not begun. The calls of the batch
    /// count when it `has_worker`. A wait for a worker is no call.
    pub(super) fn may_begin(self: &Arc<Self>, state: &mut State, has_worker: bool) -> bool {
        let Some(Item::Batch { served, exchange, calls, .. }) = state.queue.front_mut() else { return false };
        let (function, now) = (&self.offer.functions[*served].function, Instant::now());
        let begins = if has_worker {
            let begins = function.begin(*calls, now).is_ok();
            *calls = if begins { 0 } else { *calls };
            begins
        } else {
            function.may_begin(*calls, now)
        };
        let held = (!begins).then_some(*exchange);
        if !begins && !std::mem::replace(&mut state.is_retried, true) {
            self.offer.retry_later(self.clone());
        }
        if state.held != held {
            state.held = held;
            self.tell_held(state);
        }
        begins
    }

    /// Tells the client which exchange waits for the `rate` of its function, or that none does. The
    /// message also says how far the worker is: the client keeps only the last one.
    fn tell_held(&self, state: &State) {
        let slot = state.slot.as_ref().map(|slot| lock(&slot.lane));
        let lane = slot.as_ref().and_then(|lane| lane.as_ref());
        let far = lane.map(|lane| (lane.progress(), rest_until(lane.rests_until())));
        if !far.is_some_and(|(progress, rest)| self.tell_progress(state, progress, rest)) {
            self.outbox.tell_progress(self.lane, (state.ended, u32::MAX), Duration::ZERO, state.held);
        }
    }
}
