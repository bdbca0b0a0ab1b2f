//! The only place where the engine waits for a guest, and the events that end the wait.

use super::Caller;
use crate::error::{Error, Place, Stall};
use crate::function::{Function, OnError};
use crate::lane::{COUNT, Lane, LaneError, Patience, Stuck, WRITING, rest_until, wait_any};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How often a waiting thread looks for deaths, deadlines and cancellation.
const TICK: Duration = Duration::from_millis(10);
/// The most lanes for which a wait needs no allocation.
pub(super) const FEW: usize = 16;
/// The longest time to a reply for which a core may spin.
pub(super) const FAR: Duration = Duration::from_micros(500);

pub(super) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// When a waiting thread looks next, and for what.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The time without progress after which the engine gives a lane up.
    limit: Option<Duration>,
    /// The function's timeout, in seconds.
    seconds: f64,
    /// Whether the engine asks a late guest for its stack. It does not if the rows become NULL.
    asks: bool,
    /// How often a guest tries the call of a row again.
    retries: u64,
    /// Whether a call may wait for the function's `rate` on its way to the guest.
    may_be_held: bool,
    tick: Duration,
    next: Instant,
}

/// Why the engine stops waiting for a reply of a lane.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The guest is dead. The messages that it has sent before are still there.
    Dead(LaneError),
    /// The guest has made no progress for longer than it may.
    Late(Late),
}

/// How long a guest made no progress, and its stack.
#[derive(Debug)]
pub(super) struct Late {
    seconds: f64,
    stall: Stall,
}

impl Late {
    /// The error of the query.
    pub(super) fn error(&self, function: String, place: Place) -> Error {
        Error::TimedOut { function, seconds: self.seconds, place, stall: self.stall.clone() }
    }
}

/// How far a guest has come with its oldest exchange, and since when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    far: u64,
    since: Instant,
    /// Whether the guest's stack was logged since its last progress.
    logged: bool,
    /// The time until which the guest pauses, by its last report.
    rests_until: u64,
    /// How often the guest has paused.
    rests: u64,
}

impl Seen {
    /// A guest that begins now.
    pub(super) fn now() -> Self {
        Self { far: 0, since: Instant::now(), logged: false, rests_until: 0, rests: 0 }
    }

    /// Whether the guest has come no further for longer than `limit`. Only a higher count is
    /// progress: a guest could report any number.
    fn overdue(&mut self, far: u64, now: Instant, limit: Duration) -> bool {
        if far > self.far {
            *self = Self { far, since: self.since.max(now), logged: false, ..*self };
        }
        now.saturating_duration_since(self.since) >= limit
    }

    /// Notes that the guest pauses until a time before it tries a call again. The pause is no lack
    /// of progress. A guest has no more than `most` pauses: it could report any number.
    fn rests(&mut self, until: u64, now: Instant, most: u64) {
        let rest = rest_until(until);
        if until > self.rests_until && self.rests < most && !rest.is_zero() {
            (self.rests_until, self.rests) = (until, self.rests + 1);
            self.since = self.since.max(now + rest);
        }
    }
}

/// How far an exchange of `rows` rows has come, by the guest's report: from 0 to about twice its
/// rows.
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
        Self {
            limit,
            seconds,
            asks,
            retries: u64::from(function.spec.retries),
            may_be_held: function.spec.rate.is_some(),
            tick,
            next: Instant::now() + tick,
        }
    }

    /// Waits for a message of one of the lanes, or until it is time to look.
    pub(super) fn wait<L: Lane>(&self, lanes: &[&mut L], patience: Patience) {
        let timeout = self.next.saturating_duration_since(Instant::now());
        if lanes.is_empty() {
            // The only remaining work is to try again after a pause.
            thread::sleep(timeout);
        } else {
            wait_any(lanes, patience, timeout);
        }
    }

    /// Whether it is time to look.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if it is time, and the query should end.
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

    /// Looks for trouble of a lane that works on this exchange with this number of rows.
    pub(super) fn trouble<L: Lane>(
        &self,
        lane: &mut L,
        seen: &mut Seen,
        (exchange, rows): (u64, usize),
    ) -> Option<Trouble> {
        if let Err(error) = lane.check() {
            return Some(Trouble::Dead(error));
        }
        if self.may_be_held && lane.is_held(exchange) {
            // It begins later.
            *seen = Seen::now();
            return None;
        }
        let far = far(lane.progress(), exchange, rows);
        // The time is read again: other lanes may have been asked for their stacks since the last
        // reading.
        let now = Instant::now();
        seen.rests(lane.rests_until(), now, (rows.max(1) as u64).saturating_mul(self.retries));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::LONGEST_PAUSE;
    use crate::stats::now;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_guest_that_pauses_is_not_late() {
        let (mut seen, begun, limit) = (Seen::now(), Instant::now(), Duration::from_secs(1));
        let until = now() + 100 * SECOND;
        seen.rests(until, begun, 1);
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(!seen.overdue(1, at(0), limit));
        assert!(!seen.overdue(1, at(99), limit));
        assert!(seen.overdue(1, at(102), limit));
    }

    #[test]
    fn a_guest_pauses_no_more_often_than_it_tries_and_no_longer_than_an_hour() {
        let (mut seen, begun, limit) = (Seen::now(), Instant::now(), Duration::from_secs(1));
        for pause in 1..1000 {
            seen.rests(now() + pause * SECOND, begun, 3);
        }
        assert!(seen.overdue(0, begun + Duration::from_secs(5), limit));
        let mut seen = Seen::now();
        seen.rests(u64::MAX, begun, 1);
        assert!(seen.overdue(0, begun + LONGEST_PAUSE + Duration::from_secs(2), limit));
        // An old report of another call counts as no report.
        let mut seen = Seen::now();
        seen.rests(now(), begun, 1);
        seen.rests(now() + 10 * SECOND, begun, 1);
        assert!(!seen.overdue(0, begun + Duration::from_secs(9), limit));
    }
}
