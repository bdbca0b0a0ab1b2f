//! Batches of functions that keep results (`memoize`, `cache`). The results are those of all clients.
//!
//! When such a batch is the oldest of its lane, the server looks for its results. A worker gets only
//! the rows without one. A batch without such rows needs no worker. When the worker has answered, the
//! server keeps the results, and the client gets those of all rows.
//!
//! A store of results may block. So a blocking thread looks for results there, and keeps them.
//! Meanwhile the lane waits: it begins nothing behind a batch whose results are looked for, and takes
//! no replies behind one whose results are kept. So a lane has at most one batch in each of the two
//! states.
//!
//! A client's values are checked before they are looked for. A reply is checked before it is kept.

use super::partly::Partly;
use super::state::{Item, Looked, State};
use super::{Route, last_message};
use crate::server::budget::Held;
use crate::server::served::{Called, ServedFunction, Violation};
use crate::server::workers::Grant;
use crosslane::batch::{self, Frame, Header};
use crosslane::{Entry, Failure};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What was found for a batch. `None` if all rows are called and nothing is kept.
type Found = Option<(Partly, Called)>;

impl Route {
    /// Changes the state, and moves all that can be moved then. Returns grants to other routes.
    pub(super) fn gone_on(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State) -> Result<(), Violation>,
    ) -> Vec<Grant> {
        let (moved, grants) = self.with(|state, grants| {
            change(state)?;
            self.advance(state, grants)
        });
        if let Err(violation) = moved {
            self.outbox.break_off(violation);
        }
        grants
    }

    /// Looks for the results of the oldest batch. Returns false if a blocking thread does so.
    pub(super) fn look_up(self: &Arc<Self>, state: &mut State) -> Result<bool, Violation> {
        let Some(Item::Batch { message, exchange, served, looked, .. }) = state.queue.front_mut() else {
            return Ok(false);
        };
        let (exchange, served) = (*exchange, *served);
        let function = &self.offer.functions[served];
        if !function.function.keeps_in_store() {
            let found = self.found(served, message.bytes())?;
            self.note(state, found);
            return Ok(true);
        }
        *looked = Looked::Running;
        let (route, message) = (Arc::downgrade(self), Arc::clone(message));
        function.turns.add(&self.offer.handle, move || {
            let Some(route) = route.upgrade() else { return };
            let found = route.found(served, message.bytes());
            Grant::deliver_all(route.gone_on(|state| {
                let front = state.queue.front();
                // The client may have cancelled it.
                if matches!(front, Some(Item::Batch { exchange: front, .. }) if *front == exchange) {
                    route.note(state, found?);
                }
                Ok(())
            }));
        });
        Ok(false)
    }

    fn found(&self, served: usize, message: &[u8]) -> Result<Found, Violation> {
        let function = &self.offer.functions[served];
        let Some((reuse, called)) = function.look(message, self.offer.largest)? else { return Ok(None) };
        // Without room for the results that were found, all rows are called.
        let room = self.outbox.account.hold(reuse.size()).map(Held::complete);
        Ok(room.map(|room| (Partly::new(reuse, room), called)))
    }

    /// Notes what was found for the oldest batch.
    fn note(&self, state: &mut State, found: Found) {
        let Some(Item::Batch { message, served, looked, calls, .. }) = state.queue.front_mut() else {
            return;
        };
        let Some((partly, called)) = found else {
            *looked = Looked::Done(None);
            return;
        };
        let reused = partly.rows() - partly.called();
        self.offer.functions[*served].function.stats.here().reused.add(reused as u64);
        *looked = Looked::Done(Some(Arc::new(partly)));
        if let Some((frame, count)) = called {
            state.bytes = state.bytes - message.bytes().len() + frame.bytes().len();
            (*message, *calls) = (Arc::new(frame), count);
        }
    }

    /// Answers the oldest batch, whose results are all known. Returns false if the client has to read
    /// what was sent before.
    pub(super) fn answer_known(&self, state: &mut State) -> bool {
        if !self.outbox.has_room() {
            state.waits_for_room = true;
            // The outbox may have got room before this was noted.
            if !self.outbox.has_room() {
                return false;
            }
        }
        let Some(Item::Batch { exchange, served, looked: Looked::Done(Some(partly)), .. }) =
            state.queue.front()
        else {
            return false;
        };
        let (exchange, served, most) = (*exchange, *served, self.offer.largest);
        let header = last_message(Entry::Call);
        let answer = partly.known(most);
        self.send_answer(exchange, served, &header, answer);
        state.ended = exchange;
        state.forget_front();
        true
    }

    /// Sends the answer to a call.
    fn send_answer(&self, exchange: u64, served: usize, header: &Header, answer: Result<Frame, Failure>) {
        match answer.as_ref().map(|frame| (frame, batch::header(frame.bytes()))) {
            Ok((frame, Ok(made))) => {
                let Header { rows, nodes, buffers, .. } = made;
                let told = Header { exchange, function: served as u32, rows, nodes, buffers, ..*header };
                let rest = &frame.bytes()[size_of::<Header>()..];
                self.outbox.send(self.lane, &[bytemuck::bytes_of(&told), rest]);
            }
            Ok((_, Err(malformed))) => unreachable!("a batch of the server's own: {malformed}"),
            Err(failure) => self.answer(exchange, served, Entry::Call, Some(failure)),
        }
    }

    /// Takes the reply to the oldest exchange, of which some rows were called.
    ///
    /// # Errors
    /// What is wrong with the reply.
    pub(super) fn complete(
        self: &Arc<Self>,
        state: &mut State,
        partly: Arc<Partly>,
        header: Header,
        frame: &[u8],
    ) -> Result<(), String> {
        let Some(served) = state.flying.front().map(|oldest| oldest.served) else { return Ok(()) };
        if header.rows as usize != partly.called() {
            return Err(format!("a reply of {} rows to {}", header.rows, partly.called()));
        }
        let (most, length) = (self.offer.largest, frame.len());
        let ServedFunction { function, turns, .. } = &self.offer.functions[served];
        if !function.keeps_in_store() {
            let answer = partly.completed(frame, &function.signature.returns, most)?;
            self.pass_completed(state, &header, length, answer);
            return Ok(());
        }
        state.is_keeping = true;
        let (route, frame, function) = (Arc::downgrade(self), Frame::of(frame), Arc::clone(function));
        turns.add(&self.offer.handle, move || {
            // The results are kept also if the client has gone.
            let completed = partly.completed(frame.bytes(), &function.signature.returns, most);
            let Some(route) = route.upgrade() else { return };
            Grant::deliver_all(route.gone_on(|state| {
                state.is_keeping = false;
                let Some(slot) = state.slot.clone() else { return Ok(()) };
                match completed {
                    Ok(answer) => route.pass_completed(state, &header, length, answer),
                    Err(why) => route.lose(state, &slot, &why),
                }
                slot.stalled.store(false, Relaxed);
                Ok(())
            }));
            route.offer.watcher.wake();
        });
        Ok(())
    }

    /// Answers the oldest exchange. Its worker's reply had this header and length.
    fn pass_completed(
        &self,
        state: &mut State,
        header: &Header,
        length: usize,
        answer: Result<Frame, Failure>,
    ) {
        let Some(oldest) = state.flying.front() else { return };
        self.send_answer(oldest.exchange, oldest.served, header, answer);
        self.count_reply(oldest, header, length);
        self.end_oldest(state);
    }
}
