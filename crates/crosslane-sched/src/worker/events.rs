//! How a worker waits for events, and what it does with them.

use super::job::{Job, Start};
use super::run::Worker;
use crate::dispatcher::Event;
use crate::idle::{Busy, Harvest};
use crate::task::wake;
use crosslane_ring::Slice;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;

/// What a worker has found that polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Events,
    /// Something beside events, and maybe these.
    Polled,
}

impl Worker {
    /// Handles events without waiting for them, if nobody else waits for them.
    pub(super) fn look(&self, harvest: &mut Harvest) {
        if !self.group.idle.any() {
            self.group.idle.enter();
            self.group.poller.harvest(false, harvest);
            self.receive(harvest);
        }
    }

    pub(super) fn sleep(&self, harvest: &mut Harvest, slice: &Slice) {
        self.ticks.set(0);
        if self.has_permit.take() {
            self.group.permits.fetch_add(1, Ordering::SeqCst);
        }
        if self.searching.take() {
            self.group.idle.stop_searching();
        }
        self.group.idle.enter();
        if self.has_to_stay() {
            self.group.idle.leave();
            return;
        }
        self.counters().parks.count();
        if self.group.idle.enter_poll() {
            slice.shorten();
            let found = self.busy_poll(harvest);
            if found == Found::Nothing {
                self.rest();
                self.group.poller.harvest(true, harvest);
            }
            self.group.idle.leave_poll();
            if self.group.idle.is_eager() {
                slice.restore();
            }
            // If this takes long, somebody else has to poll.
            self.group.monitor.watch();
            self.receive(harvest);
            if found == Found::Polled {
                self.handle();
            }
        } else {
            self.rest();
            if self.group.idle.sleep(|| self.has_to_stay()) {
                self.group.idle.woken();
                self.was_woken();
            } else {
                self.group.idle.leave();
            }
        }
    }

    /// Looks for events for a moment.
    fn busy_poll(&self, harvest: &mut Harvest) -> Found {
        let Some(turn) = self.group.busy.as_ref().and_then(Busy::begin) else { return Found::Nothing };
        self.has_polled.set(true);
        loop {
            let is_there = turn.look();
            self.group.poller.harvest(false, harvest);
            if is_there {
                return Found::Polled;
            }
            if harvest.has_any() {
                return Found::Events;
            }
            if self.group.is_stopped() || !turn.goes_on() {
                return Found::Nothing;
            }
        }
    }

    /// Handles what was found beside events. This worker runs the tasks that are woken.
    fn handle(&self) {
        let Some(busy) = &self.group.busy else { return };
        self.stop_searching();
        self.start.set(Start::Behind);
        let handled = panic::catch_unwind(AssertUnwindSafe(|| busy.source().handle()));
        self.start.set(Start::Background);
        // The hook has reported a panic.
        drop(handled);
    }

    /// If this worker has polled, what it polled must wake somebody from now on.
    fn rest(&self) {
        if let Some(busy) = self.group.busy.as_ref().filter(|_| self.has_polled.take()) {
            busy.source().rest();
        }
    }

    /// Whether there is a reason not to sleep.
    fn has_to_stay(&self) -> bool {
        self.group.is_stopped() || self.group.has_work() || self.sees_dispatcher()
    }

    fn was_woken(&self) {
        self.counters().wakes.count();
        self.searching.set(true);
    }

    /// Handles what a poller brought. It counts as idle before, and does not after.
    fn receive(&self, harvest: &mut Harvest) {
        if harvest.woken {
            self.group.idle.poller_woken();
            self.was_woken();
        } else {
            self.group.idle.leave();
        }
        if harvest.timers {
            // The worker's queue gives the newest task first, which shall be the one that was due first.
            for waker in self.group.timers.take_due(&self.group.poller).into_iter().rev() {
                wake(waker);
            }
        }
        if !harvest.events.is_empty() {
            self.stop_searching();
            self.hand_out(harvest);
        }
    }

    /// Brings the events to their dispatchers, and runs the first of them that needs somebody.
    fn hand_out(&self, harvest: &mut Harvest) {
        let dispatchers = self.dispatchers();
        let mut first = None;
        for events in harvest.events.chunk_by(|(one, _), (other, _)| one.dispatcher == other.dispatcher) {
            let Some(Some(dispatcher)) = dispatchers.all.get(events[0].0.dispatcher as usize) else {
                continue;
            };
            let events = events.iter().map(|(token, flags)| Event { source: token.source, flags: *flags });
            let Some(turn) = dispatcher.queue.post(events) else { continue };
            if first.is_none() {
                first = Some((dispatcher.clone(), turn));
            } else if self.group.priority {
                turn.queue();
                self.group.wake_one();
            } else {
                self.queue.push(Job::Dispatch(dispatcher.clone(), turn));
                self.group.wake_one();
            }
        }
        harvest.events.clear();
        drop(dispatchers);
        if let Some((dispatcher, turn)) = first {
            self.give_permit_back();
            self.dispatch(&dispatcher, turn);
        }
    }
}
