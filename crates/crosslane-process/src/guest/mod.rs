//! The guest's side of a lane, for guests of any language: it takes calls from the ring and answers them.

mod guest_lane;

pub use guest_lane::{Call, Emitted, GuestLane, LONG, Mishaps, Next, Room, tells_stack};
