//! How a guest waits for space in its reply ring.

use super::call::{Call, Emitted, Room};
use super::guest_lane::{ANNOUNCEMENT, GuestLane, LOOK, broken};
use crosslane::stats::now;
use crosslane_ring::{Ends, Parked, wait_either};
use std::io;

impl GuestLane {
    /// Waits until a message of `size` bytes fits into the ring. The arguments are gone then.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn wait_for_room(&mut self, size: usize) -> io::Result<()> {
        self.wait_for_room_or(size, || false).map(drop)
    }

    /// The same, or until `stop` returns true, as [`GuestLane::next_call_or`] does. Returns whether
    /// the message fits.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn wait_for_room_or(&mut self, size: usize, stop: impl Fn() -> bool) -> io::Result<bool> {
        self.release();
        let inline = size <= self.ends.producer.most();
        self.make_room(if inline { size } else { ANNOUNCEMENT }, stop)
    }

    /// Waits until there is space for a batch of results, or, for guests that make results on
    /// demand, until the engine has taken all messages. Also ends when `stop` returns true, as
    /// [`GuestLane::next_call_or`] does. The arguments are gone then.
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
        // The next batch reports the work before and after this wait.
        let waited = now().saturating_sub(begun);
        self.mark += waited;
        self.waited += waited;
        Ok(ended.unwrap_or(Emitted::Sent))
    }

    /// Notes that the guest goes on with its exchange after a wait.
    pub(super) fn resume(&mut self) {
        let now = now();
        self.waited = now.saturating_sub(self.mark);
        self.mark = now;
    }

    /// Waits for space for results, until the exchange is cancelled, or `stop` returns true.
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

    /// Waits until the reply ring has space for a frame of `size` bytes, or until `stop` returns
    /// true. Returns whether it has.
    pub(super) fn make_room(&mut self, size: usize, stop: impl Fn() -> bool) -> io::Result<bool> {
        while self.ends.producer.reserve(size).map_err(broken)?.is_none() {
            if stop() {
                return Ok(false);
            }
            let Ends { consumer, producer, .. } = &self.ends;
            // The guest takes new messages later.
            let parked = wait_either(consumer, producer, self.spin, LOOK, |_| stop());
            if parked == Parked::TimedOut && self.engine_is_gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(true)
    }
}
