//! A lane: one caller's private, ordered way to one guest.

use crate::batch::{Borrowed, Encode, Header, Plan};
use crate::lane::{Address, LaneError};
use crosslane_ring::Spin;
pub use crosslane_ring::Waiter;
use std::time::Duration;

/// Plans a batch for a lane that takes `largest` bytes; `how` says what changes that. Returns the size of its frame.
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

/// In a guest's progress: it is a count of rows that are done.
pub const COUNT: u32 = 1 << 31;
/// In a guest's progress: the function is done with all rows, and the result of this one is being written.
pub const WRITING: u32 = 1 << 30;

/// What is done about a call that makes no progress, whatever the function's `timeout`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stuck {
    /// After so long the guest's stack is written to the log.
    pub after: Option<Duration>,
    /// Whether the guest is ended then.
    pub ends: bool,
}

/// One caller's private, ordered way to one guest.
///
/// No method waits: a lane that has no room says so, and who waits sleeps on [`Lane::waiter`], for lanes of any make at once. Exchanges end in the order in which they were opened.
pub trait Lane: Send + Sized + 'static {
    /// Distinguishes the lanes of a library.
    fn id(&self) -> u64;

    /// The guest's process.
    fn process(&self) -> i32;

    /// The most bytes of a batch, either way, that need no memory but the lane's own. Larger ones cost more.
    fn most(&self) -> usize {
        usize::MAX
    }

    /// Sends a batch to a function. Returns the exchange's number, or `None` if there is no room, or the
    /// exchanges in flight do not allow it: then nothing was sent, and there may be room when a reply was collected.
    ///
    /// # Errors
    /// [`LaneError`]; after any but [`LaneError::TooLarge`] the lane must not be used again.
    fn submit(
        &mut self,
        address: Address,
        rows: usize,
        arguments: &dyn Encode,
    ) -> Result<Option<u64>, LaneError>;

    /// Says that nothing more is wanted of what is in flight. What still comes of it is thrown away by
    /// [`Lane::try_collect`]; the lane can be used again when nothing is in flight.
    ///
    /// # Errors
    /// [`LaneError`] if the guest cannot be told. The lane must not be used again.
    fn cancel(&mut self) -> Result<(), LaneError>;

    /// Takes the oldest reply, if there is one; [`Lane::frame`] then holds it. [`crate::Exchanges`] has checked its turn. One
    /// to what was cancelled is thrown away, and `None` returned: there may be another behind it.
    ///
    /// # Errors
    /// [`LaneError`]; after any but [`LaneError::TooLarge`] the lane must not be used again.
    fn try_collect(&mut self) -> Result<Option<Header>, LaneError>;

    /// The same, but it may leave the last buffer of a batch where the guest has written it: then [`Lane::borrowed`] is
    /// that buffer, [`Lane::frame`] ends before it, and [`Lane::copy_rest`] or [`Lane::release`] follows.
    ///
    /// # Errors
    /// As [`Lane::try_collect`].
    fn try_collect_head(&mut self) -> Result<Option<Header>, LaneError> {
        self.try_collect()
    }

    /// What of the reply that was collected last is still where the guest has written it.
    fn borrowed(&self) -> Option<Borrowed<'_>> {
        None
    }

    /// Copies what was left of the reply, so that [`Lane::frame`] has all of it, and releases it.
    fn copy_rest(&mut self) {}

    /// Gives the space of what was left of the reply back to the guest.
    fn release(&mut self) {}

    /// Whether it dies with other lanes that may be to blame.
    fn shares_its_process(&self) -> bool {
        false
    }

    /// The private copy of the reply that was collected last.
    fn frame(&self) -> &[u8];

    /// How many exchanges have not ended, by what was collected.
    fn in_flight(&self) -> usize;

    /// Whether nothing is wanted of what is in flight.
    fn is_cancelled(&self) -> bool;

    /// What the guest works on: (low half of the exchange's number, row). A hint. The row may carry [`COUNT`] or
    /// [`WRITING`], and is `u32::MAX` for the batch as a whole.
    fn progress(&self) -> (u32, u32);

    /// Whether the guest has begun this exchange, or a later one, by its progress: guests write the number of an exchange into the lane's
    /// memory before they call the function.
    fn says_begun(&self, exchange: u64) -> bool {
        let (at, _) = self.progress();
        at.wrapping_sub(exchange as u32) < 1 << 31
    }

    /// Whether the guest of a lane that is lost may have begun this exchange, or a later one. False only if it is known that it has not.
    fn may_have_begun(&self, exchange: u64) -> bool {
        self.says_begun(exchange)
    }

    /// Ends the guest for good, and waits until it has ended, if that is known soon. Returns whether it has: then its progress says for
    /// certain what it has begun.
    fn halt(&mut self) -> bool;

    /// Whether the guest still lives. Costs a system call.
    ///
    /// # Errors
    /// [`LaneError::Died`] if it does not.
    fn check(&mut self) -> Result<(), LaneError>;

    /// What is done if a call of it makes no progress.
    fn stuck(&self) -> Stuck {
        Stuck::default()
    }

    /// What the guest is doing, as lines of its stack, the innermost last; empty if it cannot be asked. It may take a moment, and
    /// the guest goes on.
    fn stack(&mut self) -> String {
        String::new()
    }

    /// Whether the guest is known to have ended, without looking for it.
    fn has_ended(&self) -> bool {
        false
    }

    /// Whether the guest lives, as far as a look can tell that waits for nobody.
    fn lives(&self) -> bool {
        !self.has_ended()
    }

    /// Whether there may be something for [`Lane::try_collect`], by a look that waits for nobody. A lane that was lost has news.
    fn has_news(&self) -> bool;

    /// What a wait for such news sleeps on.
    fn waiter(&self) -> Waiter<'_>;

    /// After how long a reply comes for which the guest has nothing to do, about. Slices are long enough to be worth it.
    fn round_trip(&self) -> Duration {
        ROUND_TRIP
    }

    /// For how long a wait spins before it sleeps, if nothing is known of its length.
    fn spin(&self) -> Duration {
        Duration::ZERO
    }
}

/// That of a lane through a ring, to another processor.
pub(crate) const ROUND_TRIP: Duration = Duration::from_micros(20);
/// How much longer a wait spins if its end is near.
const LONGER: u32 = 25;

/// Waits until one of the lanes has news, or for `timeout`; may return early. It is the only wait for lanes.
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

/// How a wait begins, by what is known of its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// The reply is far: sleep at once, the guests need the core.
    Sleep,
    /// Nothing is known, or cores are scarce: spin for the time that is set.
    Spin,
    /// The reply is near and a core is free: spin until it comes, which saves the wake.
    SpinLonger,
}
