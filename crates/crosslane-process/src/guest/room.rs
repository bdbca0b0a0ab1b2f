//! How a guest waits for space in its reply ring.

use super::call::{Call, Emitted, Room};
use super::guest_lane::{ANNOUNCEMENT, GuestLane, LOOK, broken};
use crosslane::stats::now;
use crosslane_ring::{Ends, Parked, wait_either};
use std::io;

impl GuestLane {
    /// Waits until a message of so many bytes fits into the ring. The arguments are gone then.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn wait_for_room(&mut self, size: usize) -> io::Result<()> {
        self.wait_for_room_or(size, || false).map(drop)
    }

    /// The same, or until `stop` says so, as [`GuestLane::next_call_or`]. Returns whether they fit.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn wait_for_room_or(&mut self, size: usize, stop: impl Fn() -> bool) -> io::Result<bool> {
        self.release();
        let inline = size <= self.ends.producer.most();
        self.make_room(if inline { size } else { ANNOUNCEMENT }, stop)
    }

    /// Waits until there is room for a batch of results, or the engine has taken all that was sent (for guests that make
    /// results as they are wanted), or until `stop` says so, as [`GuestLane::next_call_or`]. The arguments are gone then.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn await_room(&mut self, call: &Call, room: Room, stop: impl Fn() -> bool) -> io::Result<Emitted> {
        self.release();
        let begun = now();
        let room = match room {
            Room::Of(size) if size > self.ends.producer.most() => Room::All,
            room => room,
        };
        let ended = self.room_or_end(call, room, &stop)?;
        // What is worked before this wait and after it is told with the next batch.
        let waited = now().saturating_sub(begun);
        self.mark += waited;
        self.waited += waited;
        Ok(ended.unwrap_or(Emitted::Sent))
    }

    /// The guest goes on with its exchange, after it waited.
    pub(super) fn resume(&mut self) {
        let now = now();
        self.waited = now.saturating_sub(self.mark);
        self.mark = now;
    }

    /// Waits for room for results, unless something comes before it.
    pub(super) fn room_or_end(
        &mut self,
        call: &Call,
        room: Room,
        stop: &impl Fn() -> bool,
    ) -> io::Result<Option<Emitted>> {
        loop {
            if self.is_cancelled(call)? {
                return Ok(Some(Emitted::Cancelled));
            }
            let has_room = match room {
                Room::Of(size) => self.ends.producer.reserve(size).map_err(broken)?.is_some(),
                Room::All => self.ends.producer.is_empty().map_err(broken)?,
            };
            if has_room {
                return Ok(None);
            }
            if stop() {
                return Ok(Some(Emitted::Stopped));
            }
            let Ends { consumer, producer, .. } = &self.ends;
            let parked = wait_either(consumer, producer, self.spin, LOOK, |news| news || stop());
            if parked == Parked::TimedOut && self.engine_is_gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Waits until the reply ring has room for a frame of so many bytes, or until `stop` says so; whether it has.
    pub(super) fn make_room(&mut self, size: usize, stop: impl Fn() -> bool) -> io::Result<bool> {
        while self.ends.producer.reserve(size).map_err(broken)?.is_none() {
            if stop() {
                return Ok(false);
            }
            let Ends { consumer, producer, .. } = &self.ends;
            // What is to be taken is taken later.
            let parked = wait_either(consumer, producer, self.spin, LOOK, |_| stop());
            if parked == Parked::TimedOut && self.engine_is_gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(true)
    }
}
