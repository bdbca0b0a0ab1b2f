//! What a route does with a worker that it has, or waits for.

use super::state::Seen;
use super::{LATE, Route};
use crate::server::workers::{Borrower, Grant, Slot};
use crosslane::lane::{Lane, rest_until};
use crosslane::{Error, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Borrower for Route {
    fn pump(self: Arc<Self>) {
        Grant::deliver_all(self.pumped());
    }

    fn retry(self: Arc<Self>) {
        lock(&self.state).is_retried = false;
        self.pump();
    }

    fn granted(self: Arc<Self>, slot: Arc<Slot>) -> Vec<Grant> {
        let mut state = lock(&self.state);
        if state.closed || state.slot.is_some() || state.waiting.take() != Some(slot.workers) {
            drop(state);
            return Vec::from_iter(self.offer.workers[slot.workers].release(slot));
        }
        state.slot = Some(slot);
        drop(state);
        self.pumped()
    }

    fn refused(&self, error: &Error) {
        let mut state = lock(&self.state);
        if state.closed {
            // The client may use the lane's number again.
            return;
        }
        state.waiting = None;
        state.close();
        drop(state);
        self.outbox.end_lane(self.lane, &error.to_string());
        self.outbox.room.notify(usize::MAX);
    }

    fn look(self: Arc<Self>, slot: &Arc<Slot>) {
        // Messages that the worker sent before its end come first.
        Arc::clone(&self).pump();
        let mut state = lock(&self.state);
        // While results are kept, the lane's next message waits.
        if !state.slot.as_ref().is_some_and(|held| Arc::ptr_eq(held, slot)) || state.is_keeping {
            return;
        }
        let mut guard = lock(&slot.lane);
        let Some(lane) = guard.as_mut() else { return };
        let mut why = lane.check().err().map(|error| error.to_string());
        let (progress, rests_until) = (lane.progress(), lane.rests_until());
        // More messages may have come before its end.
        let is_left = why.is_some() && lane.has_news() && !slot.stalled.load(Relaxed);
        drop(guard);
        if is_left {
            return;
        }
        let Some(oldest) = state.flying.front() else {
            if let Some(why) = why {
                self.lose(&mut state, slot, &why);
            }
            return;
        };
        let served = &self.offer.functions[oldest.served];
        if (progress, rests_until) != (state.seen.progress, state.seen.rests_until) {
            state.seen = Seen::now(progress, rests_until);
        } else if let Some(limit) = served.function.patience()
            && state.seen.since.elapsed() > limit + LATE
            && !slot.stalled.load(Relaxed)
            && state.late.is_none()
        {
            let late = format!(
                "{}: made no progress for {:.1} s, and its worker was ended",
                served.function.name(),
                state.seen.since.elapsed().as_secs_f64()
            );
            // The worker may begin more before it ends. A later look finds its end.
            if lock(&slot.lane).as_ref().is_some_and(|lane| lane.kill()) {
                state.late = Some(late);
                return;
            }
            why = Some(late);
        }
        // A client that does not read is told when it reads again.
        if !state.seen.told && self.outbox.has_room() {
            state.seen.told = true;
            self.tell_progress(&state, progress, rest_until(rests_until));
        }
        if let Some(why) = why {
            self.lose(&mut state, slot, &why);
            drop(state);
            self.outbox.room.notify(usize::MAX);
        }
    }
}
