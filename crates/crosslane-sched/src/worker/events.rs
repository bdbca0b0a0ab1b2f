//! How a worker waits for events and handles them.

use super::job::{Job, Start};
use super::run::Worker;
use crate::dispatcher::Event;
use crate::idle::{Busy, Ready};
use crate::task::wake;
use crosslane_ring::Slice;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;

/// The result of busy polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Events,
    /// The polled source has work to handle, and there may be events too.
    Polled,
}

impl Worker {
    /// Handles events without waiting for them, if no other worker is idle.
    pub(super) fn look(&self, ready: &mut Ready) {
        if !self.group.idle.any() {
            self.group.idle.enter();
            self.group.poller.poll(false, ready);
            self.receive(ready);
        }
    }

    pub(super) fn sleep(&self, ready: &mut Ready, slice: &Slice) {
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
            let found = self.busy_poll(ready);
            if found == Found::Nothing {
                self.rest();
                self.group.poller.poll(true, ready);
            }
            self.group.idle.leave_poll();
            if self.group.idle.is_eager() {
                slice.restore();
            }
            // If the events take long, another worker has to poll.
            self.group.monitor.watch();
            self.receive(ready);
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

    /// Polls for a short time.
    fn busy_poll(&self, ready: &mut Ready) -> Found {
        let Some(turn) = self.group.busy.as_ref().and_then(Busy::begin) else { return Found::Nothing };
        self.has_polled.set(true);
        loop {
            let is_there = turn.look();
            self.group.poller.poll(false, ready);
            if is_there {
                return Found::Polled;
            }
            if ready.has_any() {
                return Found::Events;
            }
            if self.group.is_stopped() || !turn.goes_on() {
                return Found::Nothing;
            }
        }
    }

    /// Handles the work of the polled source. This worker runs the tasks that the source wakes.
    fn handle(&self) {
        let Some(busy) = &self.group.busy else { return };
        self.stop_searching();
        self.start.set(Start::Behind);
        let handled = panic::catch_unwind(AssertUnwindSafe(|| busy.source().handle()));
        self.start.set(Start::Background);
        // The panic hook has reported a panic.
        drop(handled);
    }

    /// Calls the source's `rest` if this worker has polled. Then the source must wake a thread for
    /// new work.
    fn rest(&self) {
        if let Some(busy) = self.group.busy.as_ref().filter(|_| self.has_polled.take()) {
            busy.source().rest();
        }
    }

    /// Returns whether there is a reason not to sleep.
    fn has_to_stay(&self) -> bool {
        self.group.is_stopped() || self.group.has_work() || self.sees_dispatcher()
    }

    fn was_woken(&self) {
        self.counters().wakes.count();
        self.searching.set(true);
    }

    /// Handles the kernel's report. The worker counts as idle before this, and not after it.
    fn receive(&self, ready: &mut Ready) {
        if ready.woken {
            self.group.idle.poller_woken();
            self.was_woken();
        } else {
            self.group.idle.leave();
        }
        if ready.timers {
            // The worker's queue returns the newest task first. So the task that was due first must
            // come last.
            for waker in self.group.timers.take_due(&self.group.poller).into_iter().rev() {
                wake(waker);
            }
        }
        if !ready.events.is_empty() {
            self.stop_searching();
            self.dispatch_events(ready);
        }
    }

    /// Passes the events to their dispatchers. Runs the first dispatcher whose turn this worker
    /// gets.
    fn dispatch_events(&self, ready: &mut Ready) {
        let dispatchers = self.dispatchers();
        let mut first = None;
        for events in ready.events.chunk_by(|(one, _), (other, _)| one.dispatcher == other.dispatcher) {
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
        ready.events.clear();
        drop(dispatchers);
        if let Some((dispatcher, turn)) = first {
            self.give_permit_back();
            self.dispatch(&dispatcher, turn);
        }
    }
}
