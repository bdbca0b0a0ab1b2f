//! The trait of lanes. A lane is one caller's private, ordered path to one guest.

use crate::batch::{Borrowed, Encode, Header, Plan};
use crate::function::LONGEST_PAUSE;
use crate::lane::{Address, LaneError};
use crate::stats::now;
use crosslane_ring::Spin;
pub use crosslane_ring::Waiter;
use std::time::Duration;

/// Plans a batch for a lane that takes at most `largest` bytes. Returns the size of its frame.
/// `how` tells the user how to change the limit.
///
/// # Errors
/// [`LaneError::TooLarge`].
pub fn plan_batch(
    plan: &mut Plan,
    arguments: &dyn Encode,
    rows: usize,
    (largest, how): (usize, &str),
) -> Result<usize, LaneError> {
    plan.clear();
    arguments.plan(plan);
    if plan.is_too_large() {
        return Err(LaneError::TooLarge(format!("the arguments of {rows} row(s) exceed 2 GiB")));
    }
    let size = plan.size();
    if size > largest {
        return Err(LaneError::TooLarge(format!(
            "the arguments of {rows} row(s) have {size} bytes, more than {largest}; {how} changes this limit"
        )));
    }
    Ok(size)
}

/// A flag in a guest's progress: the row is the number of rows that are done.
pub const COUNT: u32 = 1 << 31;
/// A flag in a guest's progress: the function has ended for all rows, and the guest writes the
/// result of this row.
pub const WRITING: u32 = 1 << 30;

/// The reaction to a call that makes no progress, independent of the function's `timeout`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stuck {
    /// The time without progress after which the guest's stack is written to the log.
    pub after: Option<Duration>,
    /// Whether the guest is ended after that time.
    pub ends: bool,
}

/// One caller's private, ordered path to one guest.
///
/// No method waits for the guest, except [`Lane::halt`] and [`Lane::stack`], which may wait for a
/// moment. If a lane has no free space, its method says so. A caller that has to wait sleeps on the
/// waiters of its lanes ([`Lane::waiter`]). One wait can cover lanes of different types. Exchanges
/// end in the order in which they were opened.
pub trait Lane: Send + Sized + 'static {
    /// The number of the lane, unique in its library.
    fn id(&self) -> u64;

    /// The id of the guest's process.
    fn process(&self) -> i32;

    /// The largest batch, in bytes, that fits into the lane's own memory in each direction. Larger
    /// batches cost more.
    fn most(&self) -> usize {
        usize::MAX
    }

    /// Sends a batch to a function. Returns the number of the exchange. Returns `None` if the lane
    /// has no free space, or if the exchanges in flight do not allow the batch. Then nothing was
    /// sent, and the caller can try again after it has collected a reply.
    ///
    /// # Errors
    /// [`LaneError`]. After any other than [`LaneError::TooLarge`] the lane must not be used again.
    fn submit(
        &mut self,
        address: Address,
        rows: usize,
        arguments: &dyn Encode,
    ) -> Result<Option<u64>, LaneError>;

    /// Cancels all exchanges in flight. [`Lane::try_collect`] discards their remaining messages.
    /// The lane can be used again when no exchange is in flight.
    ///
    /// # Errors
    /// [`LaneError`] if the cancellation cannot be sent to the guest. The lane must not be used
    /// again.
    fn cancel(&mut self) -> Result<(), LaneError>;

    /// Takes the oldest reply, if there is one. [`Lane::frame`] then has the reply, and
    /// [`crate::Exchanges`] has checked that it was due. A reply to a cancelled exchange is
    /// discarded. The result is then `None`, although there may be another reply after it.
    ///
    /// # Errors
    /// [`LaneError`]. After any other than [`LaneError::TooLarge`] the lane must not be used again.
    fn try_collect(&mut self) -> Result<Option<Header>, LaneError>;

    /// Takes the oldest reply as [`Lane::try_collect`] does, but may leave the last buffer of a
    /// batch in the guest's memory. Then [`Lane::borrowed`] is that buffer, and [`Lane::frame`]
    /// ends before it. The caller must call [`Lane::copy_rest`] or [`Lane::release`] next.
    ///
    /// # Errors
    /// As [`Lane::try_collect`].
    fn try_collect_head(&mut self) -> Result<Option<Header>, LaneError> {
        self.try_collect()
    }

    /// The buffer of the last collected reply that is still in the guest's memory.
    fn borrowed(&self) -> Option<Borrowed<'_>> {
        None
    }

    /// Copies the remaining buffer, so that [`Lane::frame`] has the whole reply, and releases it.
    fn copy_rest(&mut self) {}

    /// Gives the memory of the remaining buffer back to the guest.
    fn release(&mut self) {}

    /// Whether other lanes have the same process. If the process ends, any of these lanes may be
    /// the cause.
    fn shares_its_process(&self) -> bool {
        false
    }

    /// The engine's private copy of the last collected reply.
    fn frame(&self) -> &[u8];

    /// The number of exchanges whose last message was not collected yet.
    fn in_flight(&self) -> usize;

    /// Whether all exchanges in flight are cancelled.
    fn is_cancelled(&self) -> bool;

    /// The guest's progress: (low half of the exchange's number, row). It is a hint. The row may
    /// carry [`COUNT`] or [`WRITING`]. It is `u32::MAX` for the batch as a whole.
    fn progress(&self) -> (u32, u32);

    /// The time until which the guest pauses before it tries a call again, in nanoseconds of the
    /// monotonic clock ([`crate::stats::now`]). It is a hint, as [`Lane::progress`] is. A time that has
    /// passed means that the guest does not pause.
    fn rests_until(&self) -> u64 {
        0
    }

    /// Whether this exchange waits for the `rate` of its function, on the way to its guest. Only a
    /// server lets exchanges wait.
    fn is_held(&self, _exchange: u64) -> bool {
        false
    }

    /// Whether the guest has begun this exchange or a later one, by its progress. Guests write the
    /// number of an exchange into the lane's memory before they call the function.
    fn says_begun(&self, exchange: u64) -> bool {
        let (at, _) = self.progress();
        at.wrapping_sub(exchange as u32) < 1 << 31
    }

    /// For a lost lane: whether its guest may have begun this exchange or a later one. False only
    /// if the guest has certainly not begun it.
    fn may_have_begun(&self, exchange: u64) -> bool {
        self.says_begun(exchange)
    }

    /// Ends the guest, and waits for its end if the end can be known soon. Returns whether the
    /// guest has ended. If so, its progress shows with certainty which exchanges it has begun.
    fn halt(&mut self) -> bool;

    /// Checks that the guest lives. This costs a system call.
    ///
    /// # Errors
    /// [`LaneError::Died`] if it does not.
    fn check(&mut self) -> Result<(), LaneError>;

    /// The reaction to a call of this lane that makes no progress.
    fn stuck(&self) -> Stuck {
        Stuck::default()
    }

    /// The guest's stack, as lines, with the innermost call last. Empty if the guest cannot be
    /// asked. It may take a moment, and the guest goes on.
    fn stack(&mut self) -> String {
        String::new()
    }

    /// Whether the guest is already known to have ended. This makes no new check.
    fn has_ended(&self) -> bool {
        false
    }

    /// Whether the guest lives, by a check that does not wait.
    fn lives(&self) -> bool {
        !self.has_ended()
    }

    /// Whether [`Lane::try_collect`] may have a result, by a check that does not wait. True for a
    /// lost lane.
    fn has_news(&self) -> bool;

    /// The waiter on which a thread sleeps until [`Lane::has_news`].
    fn waiter(&self) -> Waiter<'_>;

    /// The approximate time until the reply to a batch that needs no work. Slices are long enough
    /// to justify it.
    fn round_trip(&self) -> Duration {
        ROUND_TRIP
    }

    /// How long a wait spins before it sleeps, if the length of the wait is unknown.
    fn spin(&self) -> Duration {
        Duration::ZERO
    }
}

/// How much longer a guest pauses that has reported this time ([`Lane::rests_until`]). It may report
/// any, and no pause is longer than [`LONGEST_PAUSE`].
pub fn rest_until(time: u64) -> Duration {
    Duration::from_nanos(time.saturating_sub(now())).min(LONGEST_PAUSE)
}

/// The round trip of a lane through a ring, between two processors.
pub(crate) const ROUND_TRIP: Duration = Duration::from_micros(20);
/// How much longer a wait spins if the reply is near.
const LONGER: u32 = 25;

/// Waits until one of the lanes has news, or until `timeout`. It may return early. All waits for
/// lanes use this function.
pub fn wait_any<L: Lane>(lanes: &[&mut L], patience: Patience, timeout: Duration) {
    let longest = || lanes.iter().map(|lane| lane.spin()).max().unwrap_or_default();
    let spin = match patience {
        Patience::Sleep => Duration::ZERO,
        Patience::Spin => longest(),
        Patience::SpinLonger => longest() * LONGER,
    };
    let waiters = lanes.iter().map(|lane| lane.waiter());
    crosslane_ring::wait_any(waiters, Spin(spin), timeout, || lanes.iter().any(|lane| lane.has_news()));
}

/// How a wait begins, by its expected length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// The reply is far: the wait sleeps at once, because the guests need the core.
    Sleep,
    /// The length is unknown, or cores are scarce: the wait spins for the time of [`Lane::spin`].
    Spin,
    /// The reply is near and a core is free: the wait spins longer, which avoids the cost of a
    /// wake.
    SpinLonger,
}
