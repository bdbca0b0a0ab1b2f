//! What a pool is told, and what it tells.

use crate::error::Error;
use crate::lane::Lane;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Makes lanes of one library.
pub trait Zygote: 'static {
    /// The lanes that it makes.
    type Lane: Lane;

    /// Makes a lane; called by the pool's keeper only. A zygote that died starts again here. It must end soon after
    /// the pool's [`Stop`] is set.
    ///
    /// # Errors
    /// Why no lane can be made.
    fn boot(&mut self) -> Result<Self::Lane, Error>;

    /// What a new lane is to prepare; `None` if there is nothing.
    fn set_up(&self) -> Option<SetUp> {
        None
    }
}

/// What a lane prepares before it is lent.
#[derive(Debug, Clone)]
pub struct SetUp {
    /// The functions that do, for the error of a lane that is not ready in time, or dies.
    pub functions: String,
    /// How long it may take.
    pub limit: Duration,
}

/// How a pool behaves.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Idle lanes to keep ready while the library is in use.
    pub warm: usize,
    /// Idle lanes end after so long without use.
    pub idle_timeout: Duration,
}

/// Tells a zygote that its pool is being closed, so that it gives up what it waits for.
#[derive(Debug, Clone, Default)]
pub struct Stop(pub(super) Arc<AtomicBool>);

impl Stop {
    /// Whether the result of the wait is no longer needed.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// What a pool holds at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Lanes that wait for work.
    pub idle: usize,
    /// Lanes that are checked out.
    pub busy: usize,
    /// Lanes booted since the load.
    pub booted: u64,
    /// Lanes that failed or were ended.
    pub discarded: u64,
    /// Check-outs that had to wait for a boot.
    pub waited: u64,
}
