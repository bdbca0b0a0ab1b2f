//! What happens to the rows of a lost lane.
//!
//! # Protocol
//! A slice that no guest has begun is sent again, whatever the function's options say, because the
//! function was not called. A slice that a guest may have begun is sent again only in two cases.
//! Either the function has `retries`, or the entry can be repeated on a lane that shares its
//! process.
//!
//! A slice counts as not begun only if that is known ([`Lane::may_have_begun`]):
//!
//! - A guest writes the number of an exchange into the lane's memory before it calls the function.
//!   The engine reads the number when the guest has ended, after all replies that the guest left.
//! - A server reads the same word when it has lost a worker. It reports the word before it reports
//!   the loss.
//! - A guest that makes no progress may still begin slices that it has, until it has ended
//!   ([`Lane::halt`]). Where it is unknown whether it has ended, the oldest slice of a late lane
//!   counts as begun. The slices behind it are judged by the progress that was seen last. If a
//!   guest takes such a slice at the moment when the engine gives the lane up, the slice is
//!   processed twice.
//! - If the connection to a server is lost, no report says what has begun. Then all slices that
//!   were sent and not answered may have begun, also those behind the oldest one. A slice that
//!   could not be sent as a whole has not begun.

use super::clock::Late;
use crate::error::{Error, Place};
use crate::function::Function;
use crate::lane::LaneError;

/// How often a slice that no guest has begun is sent again. This does not count as one of the
/// function's tries. Without this bound, it would never end with a library whose lanes all die at
/// once.
pub(super) const MOST_UNBEGUN: u32 = 3;

/// How a lane was lost.
#[derive(Debug, Clone, Copy)]
pub(super) enum Loss<'a> {
    /// The lane failed.
    Failed(&'a LaneError),
    /// The lane made no progress for longer than it may.
    Late(&'a Late),
}

impl Loss<'_> {
    /// The error of a query that lost a lane in this way.
    pub(super) fn error(self, function: &Function, place: Place) -> Error {
        match self {
            Loss::Failed(error) => died(function, error.to_string(), place),
            Loss::Late(late) => late.error(function.name().into(), place),
        }
    }
}

/// The error of a lane that cannot go on with its current exchange.
pub(super) fn died(function: &Function, how: String, place: Place) -> Error {
    Error::LaneDied { function: function.name().into(), how, place }
}
