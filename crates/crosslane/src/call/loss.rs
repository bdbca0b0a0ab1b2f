//! What becomes of the rows of a lane that is lost.
//!
//! # Protocol
//! A slice that no guest has begun is sent again, whatever the function's options: the function was not called. One that a guest may
//! have begun is sent again only if the function has `retries`, or the entry can be repeated on a lane that shares its process.
//!
//! A slice counts as not begun only if that is known ([`Lane::may_have_begun`]):
//!
//! - A guest writes the number of an exchange into the lane's memory before it calls the function. The engine reads it when the guest
//!   has ended, after all replies that it has left.
//! - A server reads the same word when it has lost a worker, and tells it before it tells of the loss.
//! - A guest that makes no progress may still begin what it has, until it has ended ([`Lane::halt`]). Where that is not known, the oldest
//!   slice of a late lane counts as begun. Those behind it are judged by the progress that was seen last: a guest that takes one in the
//!   moment in which it is given up works on it twice.
//! - If the connection to a server is lost, nobody tells. Then all that was sent and not answered may have begun, the slices behind the
//!   oldest as well. What could not be sent as a whole has not begun.

use super::clock::Late;
use crate::error::{Error, Place};
use crate::function::Function;
use crate::lane::LaneError;

/// How often what no guest has begun is sent again. It costs none of the function's tries, and would go on for
/// ever with a library whose lanes all die at once.
pub(super) const MOST_UNBEGUN: u32 = 3;

/// How a lane was lost.
#[derive(Debug, Clone, Copy)]
pub(super) enum Loss<'a> {
    /// It failed.
    Failed(&'a LaneError),
    /// It made no progress for longer than it may.
    Late(&'a Late),
}

impl Loss<'_> {
    /// What a query fails with that lost a lane so.
    pub(super) fn error(self, function: &Function, place: Place) -> Error {
        match self {
            Loss::Failed(error) => died(function, error.to_string(), place),
            Loss::Late(late) => late.error(function.name().into(), place),
        }
    }
}

/// The error of a lane that cannot go on with what it works on.
pub(super) fn died(function: &Function, how: String, place: Place) -> Error {
    Error::LaneDied { function: function.name().into(), how, place }
}
