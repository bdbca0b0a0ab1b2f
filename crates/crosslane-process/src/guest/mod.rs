//! The guest's side of a lane, for guests in any language. It takes calls from the ring and answers
//! them.

mod call;
mod guest_lane;
mod room;

pub use call::{Call, Emitted, Next, Room, RowCounts};
pub use guest_lane::{GuestLane, LONG, tells_stack};
