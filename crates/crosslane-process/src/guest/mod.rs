//! The guest's side of a lane, for guests in any language. It takes calls from the ring and answers
//! them.

mod call;
mod guest_lane;
mod room;
pub(crate) mod sandboxed;

pub use call::{Call, Emitted, Next, Room, RowCounts};
pub use guest_lane::{GuestLane, LONG, tells_stack};
pub use sandboxed::{is_sandboxed, is_sandboxed_fork, keep_counts};
