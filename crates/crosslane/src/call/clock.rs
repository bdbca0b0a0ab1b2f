//! The one place where the engine waits for a guest, and what ends the wait.

use super::Caller;
use crate::error::{Error, Place, Stall};
use crate::function::{Function, OnError};
use crate::lane::{COUNT, Lane, LaneError, Patience, Stuck, WRITING, wait_any};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How often who waits looks for deaths, deadlines and cancellation.
const TICK: Duration = Duration::from_millis(10);
/// Up to so many lanes are waited for without an allocation.
pub(super) const FEW: usize = 16;
/// A reply further away than this is not worth a core that spins.
pub(super) const FAR: Duration = Duration::from_micros(500);

pub(super) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// When who waits looks next, and for what.
#[derive(Debug)]
pub(crate) struct Clock {
    /// After how long without progress a lane is given up.
    limit: Option<Duration>,
    /// The function's timeout, in seconds.
    seconds: f64,
    /// Whether somebody reads where a late guest was: not if its rows become NULL.
    asks: bool,
    tick: Duration,
    next: Instant,
}

/// Why no reply of a lane is waited for any longer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Its guest is dead. What it has sent before is still there.
    Dead(LaneError),
    /// It has made no progress for longer than it may.
    Late(Late),
}

/// How long a guest made no progress, and what it was doing.
#[derive(Debug)]
pub(super) struct Late {
    seconds: f64,
    stall: Stall,
}

impl Late {
    /// What a query fails with.
    pub(super) fn error(&self, function: String, place: Place) -> Error {
        Error::TimedOut { function, seconds: self.seconds, place, stall: self.stall.clone() }
    }
}

/// How far a guest is with its oldest exchange, and since when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    far: u64,
    since: Instant,
    /// Whether its stack was logged since it has come so far.
    logged: bool,
}

impl Seen {
    /// It begins now.
    pub(super) fn now() -> Self {
        Self { far: 0, since: Instant::now(), logged: false }
    }

    /// Whether the guest has come no further for longer than `limit`. Only more counts: it could say anything.
    fn overdue(&mut self, far: u64, now: Instant, limit: Duration) -> bool {
        if far > self.far {
            *self = Self { far, since: now, logged: false };
        }
        now.saturating_duration_since(self.since) >= limit
    }
}

/// How far an exchange of so many rows is, by what its guest says: from 0 to twice its rows.
fn far((at, row): (u32, u32), exchange: u64, rows: usize) -> u64 {
    let rows = rows as u64;
    let within = |row: u32| u64::from(row).min(rows);
    if at != exchange as u32 || row == u32::MAX {
        0
    } else if row & COUNT != 0 {
        1 + within(row & !COUNT)
    } else if row & WRITING != 0 {
        2 + rows + within(row & !WRITING)
    } else {
        1 + within(row)
    }
}

impl Clock {
    pub(crate) fn new(function: &Function) -> Self {
        let limit = function.patience();
        let tick = limit.map_or(TICK, |limit| (limit / 8).clamp(Duration::from_millis(1), TICK));
        let seconds = function.spec.timeout.unwrap_or_default();
        let asks = function.spec.on_error == OnError::Fail;
        Self { limit, seconds, asks, tick, next: Instant::now() + tick }
    }

    /// Waits for a message of one of the lanes, or until it is time to look.
    pub(super) fn wait<L: Lane>(&self, lanes: &[&mut L], patience: Patience) {
        let timeout = self.next.saturating_duration_since(Instant::now());
        if lanes.is_empty() {
            // All that is left to do is to be tried again after a pause.
            thread::sleep(timeout);
        } else {
            wait_any(lanes, patience, timeout);
        }
    }

    /// Whether it is time to look.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if it is, and the query should end.
    pub(super) fn due(&mut self, function: &Function, caller: Caller<'_>) -> Result<bool, Error> {
        let now = Instant::now();
        if now < self.next {
            return Ok(false);
        }
        self.next = now + self.tick;
        if caller.should_end() { Err(Caller::cancelled(function)) } else { Ok(true) }
    }

    /// Pauses before a further try.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the query should end.
    pub(crate) fn rest(
        &mut self,
        pause: Duration,
        function: &Function,
        caller: Caller<'_>,
    ) -> Result<(), Error> {
        let end = Instant::now() + pause;
        while Instant::now() < end {
            thread::sleep(self.next.min(end).saturating_duration_since(Instant::now()));
            self.due(function, caller)?;
        }
        Ok(())
    }

    /// Looks at a lane that works on this exchange of so many rows.
    pub(super) fn trouble<L: Lane>(
        &self,
        lane: &mut L,
        seen: &mut Seen,
        (exchange, rows): (u64, usize),
    ) -> Option<Trouble> {
        if let Err(error) = lane.check() {
            return Some(Trouble::Dead(error));
        }
        let far = far(lane.progress(), exchange, rows);
        // Other lanes may have been asked for their stacks since somebody looked at the clock.
        let now = Instant::now();
        if self.limit.is_some_and(|limit| seen.overdue(far, now, limit)) {
            let stack = if self.asks { lane.stack() } else { String::new() };
            return Some(Trouble::Late(Late { seconds: self.seconds, stall: Stall(stack) }));
        }
        let Stuck { after, ends } = lane.stuck();
        let after = after.filter(|after| seen.overdue(far, now, *after) && !seen.logged)?;
        seen.logged = true;
        let late = Late { seconds: after.as_secs_f64(), stall: Stall(lane.stack()) };
        ends.then_some(Trouble::Late(late))
    }
}
