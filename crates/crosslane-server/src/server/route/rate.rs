//! Batches that wait for the `rate` of their function.

use super::Route;
use super::state::{Item, State};
use crate::server::served::ServedFunction;
use crosslane::lane::{Lane as _, rest_until};
use crosslane::lock;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Route {
    /// Whether the oldest batch may go to a worker now, by the `rate` of its function. If not, the
    /// watcher tries it again, and the client knows that it has not begun.
    pub(super) fn may_begin(
        self: &Arc<Self>,
        state: &mut State,
        served: &ServedFunction,
        exchange: u64,
        calls: usize,
    ) -> bool {
        let begins = served.function.begin(calls, Instant::now()).is_ok();
        if let Some(Item::Batch { calls, .. }) = state.queue.front_mut().filter(|_| begins) {
            *calls = 0;
        }
        if !begins && !std::mem::replace(&mut state.is_retried, true) {
            self.offer.retry_later(self.clone());
        }
        let held = (!begins).then_some(exchange);
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
