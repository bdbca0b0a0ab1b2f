//! The options of a pool, the trait that boots its lanes, and its statistics.

use super::warm_limit::WarmLimit;
use crate::error::Error;
use crate::lane::Lane;
use crate::trace::Tracer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Makes lanes of one library.
pub trait Zygote: Send + 'static {
    /// The type of the lanes.
    type Lane: Lane;

    /// Makes a lane. Only the pool's keeper calls this. If the zygote died, this starts it again.
    /// It must end soon after the pool's [`Stop`] is set.
    ///
    /// # Errors
    /// The reason why no lane can be made.
    fn boot(&mut self) -> Result<Self::Lane, Error>;

    /// What a new lane has to prepare; `None` if there is nothing to prepare.
    fn set_up(&self) -> Option<SetUp> {
        None
    }

    /// The functions that have lanes of their own, each with what boots these lanes.
    fn reserved(&self) -> Vec<(Reserved, Self)>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

/// Functions that have lanes of their own, because these lanes hold something large.
#[derive(Debug, Clone)]
pub struct Reserved {
    /// The numbers of the functions in their library. They are one function for users.
    pub functions: Vec<u32>,
    /// The most lanes.
    pub most: usize,
}

/// What a lane prepares before a caller gets it.
#[derive(Debug, Clone)]
pub struct SetUp {
    /// The names of the functions that prepare something. They are part of the error if a lane
    /// dies, or is not ready in time.
    pub functions: String,
    /// The only function that is prepared. `None` for all that have no lanes of their own.
    pub only: Option<u32>,
    /// How long the preparation may take.
    pub limit: Duration,
}

/// The options of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// How many idle lanes the pool keeps ready while the library is in use.
    pub warm: usize,
    /// An idle lane ends when it was not used for this long.
    pub idle_timeout: Duration,
}

/// What a pool shares with the other pools of its engine.
#[derive(Debug, Clone, Default)]
pub struct Common {
    /// A bound on the idle lanes of all these pools together.
    pub warm_limit: Option<Arc<WarmLimit>>,
    /// Where they record what happens.
    pub tracer: Tracer,
}

/// Tells a zygote that its pool is being closed. The zygote then gives up its waits.
#[derive(Debug, Clone, Default)]
pub struct Stop(pub(super) Arc<AtomicBool>);

impl Stop {
    /// Whether no caller needs the result of the wait any longer.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// The state of a pool at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Idle lanes.
    pub idle: usize,
    /// Lanes that are checked out.
    pub busy: usize,
    /// Lanes booted since the load.
    pub booted: u64,
    /// Lanes that failed or were ended.
    pub discarded: u64,
    /// Check-outs that had to wait for a lane.
    pub waited: u64,
}

impl PoolStats {
    /// The sum of the states of two pools.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            idle: self.idle + other.idle,
            busy: self.busy + other.busy,
            booted: self.booted + other.booted,
            discarded: self.discarded + other.discarded,
            waited: self.waited + other.waited,
        }
    }
}
