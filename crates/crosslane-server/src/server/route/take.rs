//! What clients send: batches and cancels. They are checked here.

use super::Route;
use super::state::{Item, Looked, State};
use crate::server::budget::Held;
use crate::server::served::{ServedFunction, Violation, violation};
use crosslane::batch::{Frame, Header, LAST};
use crosslane::lane::Lane as _;
use crosslane::{Entry, Part, lock};
use std::sync::Arc;
use std::time::Instant;

impl Route {
    pub(super) fn take_batch(
        &self,
        state: &mut State,
        header: &Header,
        bytes: &[u8],
        room: Held,
    ) -> Result<(), Violation> {
        if header.flags & !LAST != 0 {
            return violation(format!("a message with the flags {:#x}", header.flags));
        }
        let (opened, ..) = state.opened;
        // A function may end an exchange first. Then more of the client's batches may still come,
        // or the last one may never come.
        let opens = header.exchange == opened + 1 && (!state.sending || opened <= state.ended);
        let continues = header.exchange == opened && state.sending;
        if !opens && !continues {
            return violation(format!(
                "a batch of exchange {}, where {opened} was the last that was opened",
                header.exchange
            ));
        }
        let (exchange, served) = (header.exchange, header.function as usize);
        let Some(ServedFunction { function, .. }) = self.offer.functions.get(served) else {
            return violation(format!("there is no function {served}"));
        };
        let known = Entry::of(header.entry).filter(|entry| function.entry(*entry).is_ok());
        let Some(entry) = known else {
            return violation(format!("{} has no entry {}", function.name(), header.entry));
        };
        if !opens && state.opened != (exchange, served, entry) {
            return violation("an exchange with batches for different functions");
        }
        let last = header.flags & LAST != 0;
        state.opened = (exchange, served, entry);
        state.sending = !last;
        let part = match (opens, last) {
            (true, true) => Part::Whole,
            (true, false) => Part::First,
            (false, true) => Part::Last,
            (false, false) => Part::Next,
        };
        if !last && entry != Entry::Iterate {
            return violation(format!("a batch for the entry {entry:?} that is not the last"));
        }
        if exchange <= state.ended {
            // The function has ended the exchange first.
            return Ok(());
        }
        let message = Arc::new(Frame::of(bytes));
        let calls = self.offer.functions[served].calls(message.bytes(), entry)?;
        let keeps = entry == Entry::Call && function.keeps_results();
        let looked = if keeps { Looked::Due } else { Looked::Done(None) };
        state.bytes += bytes.len();
        let came = Instant::now();
        state.queue.push_back(Item::Batch {
            message,
            exchange,
            served,
            entry,
            part,
            came,
            calls,
            context: state.context.clone(),
            looked,
            _room: room,
        });
        Ok(())
    }

    /// Takes a cancel: the client wants nothing more of the exchanges that it has opened until now.
    pub(super) fn take_cancel(&self, state: &mut State, header: &Header) -> Result<(), Violation> {
        let (opened, ..) = state.opened;
        if header.exchange > opened {
            return violation(format!("a cancel of exchange {}, which was not opened", header.exchange));
        }
        if header.exchange < opened || header.exchange <= state.ended {
            // Exchanges that have ended meanwhile need nothing.
            return Ok(());
        }
        state.sending = false;
        state.bytes = 0;
        for item in std::mem::take(&mut state.queue) {
            match item {
                Item::Batch { part: Part::Next | Part::Last, .. } => {}
                Item::Batch { exchange, served, entry, .. }
                | Item::Answer { exchange, served, entry, .. } => {
                    state.queue.push_back(Item::Answer { exchange, served, entry, failure: None });
                }
            }
        }
        if state.flying.is_empty() {
            return Ok(());
        }
        let Some(slot) = state.slot.clone() else { return Ok(()) };
        let mut lane = lock(&slot.lane);
        let cancelled = lane.as_mut().map_or(Ok(()), |lane| lane.cancel());
        drop(lane);
        if let Err(error) = cancelled {
            self.lose(state, &slot, &error.to_string());
        }
        Ok(())
    }
}
