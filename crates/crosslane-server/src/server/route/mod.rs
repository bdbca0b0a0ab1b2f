//! The server's end of a client's lane: the messages that came, the exchanges in flight, and their
//! worker.
//!
//! The connection's task puts messages in ([`Route::take`]). The watcher takes replies out. Each of
//! these threads moves all that can be moved ([`Route::pump`]). The thread that finds replies
//! writes them to the connection. It sends those of several lanes together ([`outbox::gathered`]).
//!
//! A client numbers its exchanges itself. The worker's lane has numbers of its own, and they
//! continue from one client to the next. So each reply gets the number of the oldest exchange in
//! flight.
//!
//! What a client sends is not trusted. Numbers, order, entries, lengths and offsets are checked
//! before a worker sees them. A violation ends the connection. What a worker sends is passed on
//! unchecked: the client checks it, as it would in a ring. Results that the server keeps are checked
//! before ([`reuse`]).

mod borrow;
mod partly;
mod rate;
mod reuse;
mod spans;
mod state;
mod take;

use super::budget::Held;
use super::offer::Offer;
use super::outbox::{self, Outbox};
use super::served::{ServedFunction, Violation, violation};
use super::spans::Outcome;
use super::workers::{Borrower, Grant, Slot};
use crosslane::batch::{self, BATCH, CANCEL, FAILURE, Header, LAST};
use crosslane::lane::{Lane, LaneError};
use crosslane::pool::PooledLane;
use crosslane::trace::Relay;
use crosslane::{Address, Entry, Failure, Part, lock};
use crosslane_process::ProcessLane;
use state::{Flying, Item, Looked, State};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::warn;

/// How many exchanges a worker has at once. With two, the next one is there when the worker ends
/// one. Later exchanges wait here, and can still be cancelled.
const DEPTH: usize = 2;
/// A client ends late calls itself. The server ends them this much later.
const LATE: Duration = Duration::from_secs(2);

/// The header of the last message of an exchange that no worker answers.
fn last_message(entry: Entry) -> Header {
    Header { kind: BATCH, flags: LAST, entry: entry as u32, row: u32::MAX, ..Header::default() }
}

/// The server's end of a client's lane.
pub(crate) struct Route {
    lane: u32,
    offer: Arc<Offer>,
    outbox: Arc<Outbox>,
    state: Mutex<State>,
}

impl Route {
    pub(crate) fn new(lane: u32, offer: Arc<Offer>, outbox: Arc<Outbox>) -> Arc<Self> {
        Arc::new(Self { lane, offer, outbox, state: Mutex::new(State::new()) })
    }

    /// Takes a message of the client.
    pub(crate) fn take(self: &Arc<Self>, bytes: &[u8], room: Held) -> Result<(), Violation> {
        let header = batch::header(bytes).map_err(|error| Violation(error.to_string()))?;
        let (taken, grants) = self.with(|state, grants| {
            match header.kind {
                BATCH => self.take_batch(state, &header, bytes, room)?,
                CANCEL => self.take_cancel(state, &header)?,
                kind => return violation(format!("a message of kind {kind}")),
            }
            self.advance(state, grants)
        });
        Grant::deliver_all(grants);
        taken
    }

    /// Moves all that can be moved. Returns grants to other routes.
    fn pumped(self: &Arc<Self>) -> Vec<Grant> {
        self.gone_on(|_| Ok(()))
    }

    /// Runs `body` under the lock. Also returns grants to other routes, to be delivered without a
    /// lock.
    fn with(
        self: &Arc<Self>,
        body: impl FnOnce(&mut State, &mut Vec<Grant>) -> Result<(), Violation>,
    ) -> (Result<(), Violation>, Vec<Grant>) {
        let mut grants = Vec::new();
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(_) => {
                // The thread that holds the lock may be giving a large batch to a worker. Answers
                // to other clients do not wait for that.
                outbox::send_gathered();
                lock(&self.state)
            }
        };
        let outcome = if state.closed { Ok(()) } else { body(&mut state, &mut grants) };
        let has_room = state.has_room();
        drop(state);
        if has_room {
            self.outbox.room.notify(usize::MAX);
        }
        (outcome, grants)
    }

    /// Whether the client may send more.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.state).has_room()
    }

    /// Whether nothing is left that has begun. What waits for the `rate` of its function has not begun, and
    /// could wait for hours.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.closed || state.flying.is_empty() && (state.queue.is_empty() || state.held.is_some())
    }

    /// Counts for each function the exchanges that wait here, and those that a worker has.
    pub(crate) fn count(&self, waiting: &mut [u32], flying: &mut [u32]) {
        let state = lock(&self.state);
        for item in &state.queue {
            if let Item::Batch { served, part: Part::Whole | Part::First, .. } = item {
                waiting[*served] += 1;
            }
        }
        state.flying.iter().for_each(|exchange| flying[exchange.served] += 1);
    }

    fn advance(self: &Arc<Self>, state: &mut State, grants: &mut Vec<Grant>) -> Result<(), Violation> {
        loop {
            self.collect(state);
            if !self.submit(state, grants)? {
                break;
            }
        }
        let waits = state.queue.is_empty() || state.held.is_some();
        let idle = state.flying.is_empty() && waits && state.states.is_empty();
        if let Some(slot) = state.slot.take_if(|_| idle) {
            grants.extend(self.offer.workers[slot.workers].release(slot));
        }
        Ok(())
    }

    /// Passes on the messages that the worker has sent.
    fn collect(self: &Arc<Self>, state: &mut State) {
        let Some(slot) = state.slot.clone() else { return };
        let mut guard = lock(&slot.lane);
        let Some(lane) = guard.as_mut() else { return };
        let lost = loop {
            if state.is_keeping {
                slot.stalled.store(true, Relaxed);
                break None;
            }
            if !self.outbox.has_room() {
                slot.stalled.store(true, Relaxed);
                // The outbox may have got room before this lane was marked as stalled.
                if !self.outbox.has_room() {
                    break None;
                }
                slot.stalled.store(false, Relaxed);
            }
            match lane.try_collect() {
                Ok(Some(header)) => {
                    if let Err(why) = self.pass(state, header, lane) {
                        break Some(why);
                    }
                }
                Ok(None) => {
                    self.settle(state, lane.in_flight());
                    if !lane.has_news() {
                        break None;
                    }
                }
                Err(LaneError::TooLarge(what)) => {
                    let failure = Failure { class: "TooLarge".into(), message: what, ..Failure::default() };
                    match state.flying.len() > lane.in_flight() {
                        true => self.answer_oldest(state, Some(&failure)),
                        false => break Some(failure.message),
                    }
                }
                Err(error) => break Some(error.to_string()),
            }
        };
        drop(guard);
        if let Some(why) = lost {
            self.lose(state, &slot, &why);
        }
    }

    /// Where to record what happens to a call of a function, if a trace is on.
    fn relay<'a>(&'a self, served: &'a ServedFunction) -> Option<Relay<'a>> {
        let library = &self.offer.workers[served.workers].library;
        library.relay(&served.function, self.outbox.number)
    }

    /// Passes a reply on.
    ///
    /// # Errors
    /// What is wrong with the reply, if the server has read it.
    fn pass(
        self: &Arc<Self>,
        state: &mut State,
        header: Header,
        lane: &PooledLane<ProcessLane>,
    ) -> Result<(), String> {
        let Some(oldest) = state.flying.front_mut() else { return Ok(()) };
        let (served, frame) = (&self.offer.functions[oldest.served], lane.frame());
        let relay = self.relay(served);
        let rows = if oldest.entry.is_answered_once() { oldest.rows } else { header.rows as usize };
        if let Some(relay) = relay {
            relay.answered(lane.stats(), &header, frame, rows, oldest.arguments.as_deref());
        }
        if let Some(record) = &mut oldest.record {
            record.answer(&header, frame);
        }
        let relay = relay.filter(|_| header.kind == BATCH);
        let mut row = header.row;
        if let Some(partly) = &oldest.partly {
            if header.kind == BATCH {
                let partly = Arc::clone(partly);
                let completed = self.complete(state, partly, header, frame);
                relay.iter().for_each(|relay| relay.passed_on(lane.stats(), rows));
                return completed;
            }
            row = partly.row(row);
        }
        let told = Header { exchange: oldest.exchange, function: oldest.served as u32, row, ..header };
        match self.offer.seal.seal(served, oldest.entry, &told, frame) {
            Some(sealed) => self.outbox.send(self.lane, &[&sealed]),
            None => self.outbox.send(self.lane, &[bytemuck::bytes_of(&told), &frame[size_of::<Header>()..]]),
        }
        relay.iter().for_each(|relay| relay.passed_on(lane.stats(), rows));
        self.count_reply(oldest, &header, frame.len());
        if header.flags & LAST != 0 {
            self.end_oldest(state);
        }
        Ok(())
    }

    /// Counts a reply of this many bytes.
    fn count_reply(&self, oldest: &Flying, header: &Header, bytes: usize) {
        let served = &self.offer.functions[oldest.served];
        served.learn(oldest.entry, Duration::from_nanos(header.worked));
        served.counters.sent.add(bytes as u64);
        served.count(oldest.entry, header);
        served.function.count_tries(header.retries, oldest.rows);
    }

    fn end_oldest(&self, state: &mut State) {
        let Some(ended) = state.flying.pop_front() else { return };
        state.ended = ended.exchange;
        self.report(&ended, None);
        let (served, now) = (&self.offer.functions[ended.served], Instant::now());
        served.ended.fetch_add(1, Relaxed);
        served.function.stats.here().calls.add(1);
        served.counters.record(now - ended.came);
        // The worker begins the next exchange now.
        state.seen.since = now;
    }

    /// Ends the exchanges that the worker has ended after they were cancelled.
    fn settle(&self, state: &mut State, in_flight: usize) {
        while state.flying.len() > in_flight {
            self.answer_oldest(state, None);
        }
    }

    fn answer_oldest(&self, state: &mut State, failure: Option<&Failure>) {
        if let Some(Flying { exchange, served, entry, since, record, .. }) = state.flying.front_mut() {
            if let Some(record) = record {
                record.outcome = failure.map_or(Outcome::Cancelled, Outcome::failed);
            }
            self.answer(*exchange, *served, *entry, failure);
            // The reply was thrown away. The time since the exchange began is the best estimate.
            self.offer.functions[*served].learn(*entry, since.elapsed());
        }
        self.end_oldest(state);
    }

    /// Sends the last message of an exchange that no worker answers.
    fn answer(&self, exchange: u64, served: usize, entry: Entry, failure: Option<&Failure>) {
        let header = Header { function: served as u32, exchange, ..last_message(entry) };
        let frame = match failure {
            Some(failure) => {
                self.offer.functions[served].counters.failures.add(1);
                let text = serde_json::to_vec(&failure.bounded()).unwrap_or_default();
                batch::failure_frame(Header { kind: FAILURE, ..header }, &text)
            }
            None => bytemuck::bytes_of(&header).to_vec(),
        };
        self.outbox.send(self.lane, &[&frame]);
    }

    /// Gives the worker as much as it has room for. Returns whether something was moved.
    fn submit(self: &Arc<Self>, state: &mut State, grants: &mut Vec<Grant>) -> Result<bool, Violation> {
        let mut moved = false;
        while !state.closed {
            let (workers, is_long) = match state.queue.front() {
                None => break,
                Some(Item::Answer { .. }) if !state.flying.is_empty() => break,
                Some(Item::Answer { exchange, served, entry, failure }) => {
                    self.answer(*exchange, *served, *entry, failure.as_ref());
                    state.ended = *exchange;
                    state.queue.pop_front();
                    moved = true;
                    continue;
                }
                Some(Item::Batch { exchange, .. }) if *exchange <= state.ended => {
                    state.forget_front();
                    continue;
                }
                Some(Item::Batch { looked: Looked::Due, .. }) => match self.look_up(state)? {
                    true => continue,
                    false => break,
                },
                Some(Item::Batch { looked: Looked::Running, .. }) => break,
                Some(Item::Batch { looked: Looked::Done(Some(partly)), .. }) if partly.called() == 0 => {
                    if !state.flying.is_empty() || !self.answer_known(state) {
                        break;
                    }
                    moved = true;
                    continue;
                }
                Some(Item::Batch { part: Part::Whole | Part::First, .. }) if state.flying.len() >= DEPTH => {
                    break;
                }
                Some(Item::Batch { served, .. }) => {
                    let served = &self.offer.functions[*served];
                    (served.workers, served.is_long())
                }
            };
            if !self.may_begin(state, false) {
                break;
            }
            let slot = match &state.slot {
                Some(slot) if slot.workers == workers => Arc::clone(slot),
                Some(_) if !state.flying.is_empty() => break,
                Some(_) if !state.states.is_empty() => {
                    return violation("a function of other workers on a lane that has states");
                }
                held => {
                    if state.waiting.is_some() {
                        break;
                    }
                    if held.is_some()
                        && let Some(slot) = state.slot.take()
                    {
                        grants.extend(self.offer.workers[slot.workers].release(slot));
                    }
                    match self.offer.workers[workers].acquire(self.clone(), is_long) {
                        Some(slot) => state.slot = Some(slot),
                        None => state.waiting = Some(workers),
                    }
                    continue;
                }
            };
            if !self.may_begin(state, true) || !self.send(state, &slot)? {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Sends the oldest batch to the worker. Returns false if there is no room for it.
    fn send(&self, state: &mut State, slot: &Arc<Slot>) -> Result<bool, Violation> {
        let Some(Item::Batch { message, exchange, served, entry, part, came, context, looked, .. }) =
            state.queue.front()
        else {
            return Ok(false);
        };
        let partly = if let Looked::Done(partly) = looked { partly.clone() } else { None };
        let (exchange, served, entry, part, came) = (*exchange, *served, *entry, *part, *came);
        let bytes = message.bytes().len();
        let rows = batch::header(message.bytes()).map_or(0, |header| header.rows as usize);
        if bytes > outbox::PIECE {
            // The worker takes a while to get a large batch. Other answers do not wait for that.
            outbox::send_gathered();
        }
        let mut guard = lock(&slot.lane);
        let Some(lane) = guard.as_mut() else { return Ok(false) };
        let function = self.offer.functions[served].function.index;
        let address = Address { function, entry, part };
        let opens = matches!(part, Part::Whole | Part::First);
        let function_served = &self.offer.functions[served];
        let states = &mut state.states;
        let (relay, mut arguments) = (self.relay(function_served), None);
        let submitted = function_served.read(
            &self.offer.seal,
            message.bytes(),
            entry,
            states,
            |rows, columns, first| {
                arguments =
                    relay.filter(|_| entry == Entry::Call && rows > 0).map(|relay| relay.arguments(first));
                lane.submit(address, rows, columns)
            },
        )?;
        if let (Some(relay), Ok(Some(_))) = (relay, &submitted) {
            // Batches of a lane wait one after the other.
            let waited = opens.then(|| state.flying.back().map_or(came, |last| came.max(last.since)));
            relay.given(lane.stats(), rows, waited);
        }
        drop(guard);
        if entry != Entry::Call {
            self.offer.workers[slot.workers].hold(slot);
        }
        match submitted {
            Ok(None) => return Ok(false),
            Ok(Some(local)) if opens => {
                let since = Instant::now();
                if state.flying.is_empty() {
                    state.seen.since = since;
                }
                let record = self.record(context, entry, rows, bytes);
                state.flying.push_back(Flying {
                    exchange,
                    local,
                    served,
                    entry,
                    rows,
                    partly,
                    came,
                    since,
                    arguments,
                    record,
                });
            }
            Ok(Some(_)) => {
                if let Some(record) = state.flying.back_mut().and_then(|last| last.record.as_mut()) {
                    record.received += bytes as u64;
                }
            }
            Err(LaneError::TooLarge(message)) if opens => {
                function_served.function.stats.here().calls.add(1);
                let failure = Some(Failure { class: "TooLarge".into(), message, ..Failure::default() });
                state.forget_front();
                state.queue.push_front(Item::Answer { exchange, served, entry, failure });
                return Ok(true);
            }
            Err(error) => {
                self.lose(state, slot, &error.to_string());
                return Ok(false);
            }
        }
        function_served.counters.received.add(bytes as u64);
        state.forget_front();
        Ok(true)
    }

    /// Ends the worker, and the client's lane. The client repeats the calls that can be repeated.
    fn lose(&self, state: &mut State, slot: &Arc<Slot>, why: &str) {
        let late = state.late.take();
        let why = late.as_deref().unwrap_or(why);
        let lane = lock(&slot.lane).take();
        // The client repeats what was not begun. So it must know the worker's last progress.
        if let Some(progress) = lane.as_ref().map(|lane| lane.progress()) {
            self.tell_progress(state, progress, Duration::ZERO);
        }
        if let (Some(oldest), Some(lane)) = (state.flying.front(), &lane)
            && let Some(relay) = self.relay(&self.offer.functions[oldest.served])
        {
            relay.lost(lane.stats());
        }
        // Dropping it ends its process.
        drop(lane);
        self.offer.workers[slot.workers].forget(slot);
        state.slot = None;
        if let Some(oldest) = state.flying.front() {
            let function = &self.offer.functions[oldest.served].function;
            function.stats.here().deaths.add(1);
            warn!(
                connection = self.outbox.number,
                lane = self.lane,
                function = function.name(),
                why,
                "worker lost"
            );
        }
        for flying in &state.flying {
            self.report(flying, Some(Outcome::lost(why)));
            self.offer.functions[flying.served].lose();
        }
        state.close();
        self.outbox.end_lane(self.lane, why);
    }

    /// Goes on with a stalled lane when the connection has room again.
    pub(crate) fn resume(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let waits = std::mem::take(&mut state.waits_for_room);
        let slot = state.slot.clone();
        drop(state);
        if slot.is_some_and(|slot| slot.stalled.swap(false, Relaxed)) || waits {
            Arc::clone(self).pump();
            self.offer.watcher.wake();
        }
    }

    /// Tells the client how far the worker is. Returns false if the worker is at no exchange of this lane.
    fn tell_progress(&self, state: &State, (local, row): (u32, u32), rest: Duration) -> bool {
        let flying = state.flying.iter().find(|flying| flying.local as u32 == local);
        if let Some(Flying { exchange, partly, .. }) = flying {
            let row = partly.as_ref().map_or(row, |partly| partly.row(row));
            self.outbox.tell_progress(self.lane, (*exchange, row), rest, state.held);
        }
        flying.is_some()
    }

    /// Ends the route: the client does not use the lane any more.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let (slot, waiting, flying) = (state.slot.take(), state.waiting.take(), state.flying.len());
        let has_states = !state.states.is_empty();
        state.flying.iter().for_each(|flying| self.report(flying, Some(Outcome::Cancelled)));
        state.close();
        drop(state);
        self.outbox.room.notify(usize::MAX);
        if let Some(workers) = waiting {
            self.offer.workers[workers].leave(&**self);
        }
        let Some(slot) = slot else { return };
        let workers = &self.offer.workers[slot.workers];
        if flying == 0 && !has_states {
            if let Some(grant) = workers.release(slot) {
                grant.deliver();
            }
            return;
        }
        // A worker that keeps states for the client is ended, so that no other client finds them.
        // Any other worker is ended if it does not end the cancelled calls soon.
        let mut lane = lock(&slot.lane);
        if !has_states && lane.as_mut().is_some_and(|lane| lane.cancel().is_ok()) {
            drop(lane);
            workers.retire(slot);
            return;
        }
        drop(lane.take());
        drop(lane);
        workers.forget(&slot);
    }
}
