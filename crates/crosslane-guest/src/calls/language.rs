//! The parts of a guest beside calls: waits, limits and errors.

use super::batch::Batch;
use super::call_error::CallError;
use super::invoke::Invoke;
use crosslane::{ColumnBuilder, Failure};
use crosslane_process::guest::{Call, Emitted, GuestLane, Room, RowCounts};
use crosslane_process::limits::MemoryLimit;
use std::io;

/// How a language waits, limits memory, and describes errors.
///
/// An error of the language may also be an error of the lane ([`io::Error`]), or an error that ends
/// the lane and is no failure of a call.
pub trait Language: Invoke<Error: From<io::Error>> {
    /// Runs a batch of a function that is called for several rows at once. A language without such
    /// functions calls row by row.
    ///
    /// # Errors
    /// The error that ended it.
    fn run_concurrently(
        &self,
        batch: &Batch<'_, Self>,
        out: &mut ColumnBuilder,
    ) -> Result<RowCounts, CallError<Self::Error>> {
        batch.run_rows(out)
    }

    /// An error as the engine's users should read it.
    ///
    /// # Errors
    /// The error, if it ends the lane and is no failure of the call.
    fn describe(&self, error: Self::Error) -> Result<Failure, Self::Error>;

    /// Runs `work`, which may allocate so many bytes.
    fn limited<R>(&self, bytes: u64, work: impl FnOnce() -> R) -> R {
        let _limit = MemoryLimit::set(bytes);
        work()
    }

    /// Waits for the next call. A language gives up its lock meanwhile. [`crate::serve`] wants
    /// calls of functions alone ([`GuestLane::next_call`]).
    ///
    /// # Errors
    /// If the engine broke the protocol, or what ended the wait.
    fn next_call(&self, lane: &mut GuestLane) -> Result<Option<Call>, Self::Error> {
        Ok(lane.next_call()?)
    }

    /// Waits until an answer of so many bytes fits into the lane ([`GuestLane::wait_for_room`]). A
    /// language gives up its lock meanwhile.
    ///
    /// # Errors
    /// As [`Language::next_call`].
    fn wait_for_room(&self, lane: &mut GuestLane, size: usize) -> Result<(), Self::Error> {
        Ok(lane.wait_for_room(size)?)
    }

    /// Waits for room for results that are not the last of an exchange ([`GuestLane::await_room`]).
    /// A language gives up its lock meanwhile. Returns whether the engine wants more. An engine
    /// that is gone wants nothing.
    ///
    /// # Errors
    /// The error that ended the wait.
    fn await_room(&self, lane: &mut GuestLane, call: &Call, room: Room) -> Result<bool, Self::Error> {
        Ok(matches!(lane.await_room(call, room, || false), Ok(Emitted::Sent)))
    }
}
