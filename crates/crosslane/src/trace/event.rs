//! The events of a trace.

use std::sync::Arc;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A library was loaded.
    Load,
    /// A worker was started.
    Boot,
    /// A worker prepared its functions.
    SetUp,
    /// An engine's thread waited for a worker.
    Wait,
    /// An engine's thread wrote arguments.
    CopyIn,
    /// A worker ran the function.
    Function,
    /// An engine's thread checked and read results.
    CopyOut,
    /// A slice went to a worker that another thread of the engine lent.
    FanOut,
    /// Calls were tried again.
    Retry,
    /// The function raised exceptions.
    Exception,
    /// A worker ended during a call.
    LaneLost,
}

impl EventKind {
    /// The name of the kind in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Boot => "boot",
            Self::SetUp => "set_up",
            Self::Wait => "wait",
            Self::CopyIn => "copy_in",
            Self::Function => "function",
            Self::CopyOut => "copy_out",
            Self::FanOut => "fan_out",
            Self::Retry => "retry",
            Self::Exception => "exception",
            Self::LaneLost => "lane_lost",
        }
    }
}

/// A library, and one of its functions if the event is about one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The name of the library.
    pub library: Arc<str>,
    /// The name of the function.
    pub function: Option<Arc<str>>,
}

/// Something that happened. Times are in nanoseconds of [`crate::stats::now`].
#[derive(Debug, Clone)]
pub struct Event<S> {
    /// What happened.
    pub kind: EventKind,
    /// What it happened to. Buffers keep a number here, and readers get a [`Subject`].
    pub subject: S,
    /// The number of the lane in its library; 0 if there is none.
    pub lane: u64,
    /// The process of the lane; 0 if there is none.
    pub process: i32,
    /// The engine's thread that recorded the event. At a server, the connection of the client
    /// ([`super::Relay`]).
    pub thread: i32,
    /// When it began.
    pub start: u64,
    /// When it ended. It is equal to `start` if the event has no duration.
    pub end: u64,
    /// The rows that it concerns; for exceptions and retries, how many there were.
    pub rows: u32,
    /// The first arguments of a slow call, or the text of an exception.
    pub detail: Option<Box<str>>,
}
