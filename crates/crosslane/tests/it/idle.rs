//! A lane that does nothing, for the tests of the pool and for unit tests.

use crosslane::Address;
use crosslane::batch::{Encode, Header};
use crosslane::lane::{Lane, LaneError, Waiter};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// Nothing wakes a thread that sleeps on it.
static NEVER: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub(crate) struct IdleLane {
    pub(crate) id: u64,
    /// The time until which its guest works on a cancelled exchange.
    pub(crate) works: Option<Instant>,
    /// Whether a check of the lane fails the test.
    pub(crate) broken: bool,
}

impl Lane for IdleLane {
    fn id(&self) -> u64 {
        self.id
    }
    fn process(&self) -> i32 {
        0
    }
    fn submit(&mut self, _: Address, _: usize, _: &dyn Encode) -> Result<Option<u64>, LaneError> {
        Err(LaneError::System("a lane for nothing".into()))
    }
    fn cancel(&mut self) -> Result<(), LaneError> {
        Ok(())
    }
    fn is_cancelled(&self) -> bool {
        true
    }
    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        assert!(!self.broken, "a look at a broken lane");
        Ok(None)
    }
    fn frame(&self) -> &[u8] {
        &[]
    }
    fn in_flight(&self) -> usize {
        usize::from(self.works.is_some_and(|until| Instant::now() < until))
    }
    fn progress(&self) -> (u32, u32) {
        (0, 0)
    }
    fn halt(&mut self) -> bool {
        false
    }

    fn check(&mut self) -> Result<(), LaneError> {
        Ok(())
    }
    fn has_news(&self) -> bool {
        false
    }
    fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&NEVER)
    }
}
