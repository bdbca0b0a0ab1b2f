//! How long a client waits for servers.
//!
//! All addresses that a connection tries share one time ([`Wait`]). Each gets its part of the time that is left, so a server that
//! does not answer leaves time for the next. An address that was lost a moment ago is tried last ([`Lost`]).

use crosslane::pool::Stop;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often a wait looks whether it is still needed.
const TICK: Duration = Duration::from_millis(10);
/// For how long an address that was lost is tried after the others.
const AVOIDED: Duration = Duration::from_secs(30);

/// No part is less, as long as so much is left: a busy server takes a moment to greet.
const LEAST: Duration = Duration::from_secs(2);

/// A time that is shared by all that is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    until: Instant,
    stop: &'a Stop,
}

impl<'a> Wait<'a> {
    /// One that ends after so long, or when `stop` is set.
    pub(crate) fn new(limit: Duration, stop: &'a Stop) -> Self {
        Self { until: Instant::now() + limit, stop }
    }

    /// The part of the time that is left for the first of `count` that are to be waited for one after the other.
    pub(crate) fn share(self, count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        self.share_at(Instant::now(), count)
    }

    fn share_at(self, now: Instant, count: u32) -> Self {
        let left = self.until.saturating_duration_since(now);
        Self { until: self.until.min(now + (left / count).max(LEAST)), ..self }
    }

    /// The time that is left.
    ///
    /// # Errors
    /// `TimedOut` if there is none; or that the wait is not needed any more.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if self.stop.is_set() {
            return Err(io::Error::other("it is not needed any more"));
        }
        Ok(left)
    }

    /// Waits until a socket is ready.
    ///
    /// # Errors
    /// As [`Wait::left`]; those of the system.
    pub(crate) fn ready(self, socket: BorrowedFd<'_>, interest: PollFlags) -> io::Result<()> {
        loop {
            let tick = self.left()?.min(TICK);
            let tick = Timespec { tv_sec: 0, tv_nsec: tick.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&socket, interest)], Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// When each address was lost, by its place: what was tried there has failed.
#[derive(Debug, Default)]
pub(crate) struct Lost(Vec<Option<Instant>>);

impl Lost {
    /// The places of `count` addresses in the order in which they are tried: from that of the turn on, and those that were just lost last.
    pub(crate) fn order(&self, count: usize, turn: usize, now: Instant) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).map(|offset| (turn + offset) % count).collect();
        order.sort_by_key(|place| {
            let lost = self.0.get(*place).copied().flatten();
            lost.is_some_and(|lost| now.saturating_duration_since(lost) < AVOIDED)
        });
        order
    }

    /// Notes whether the address at this place was lost.
    pub(crate) fn note(&mut self, place: usize, lost: Option<Instant>) {
        if self.0.len() <= place {
            self.0.resize(place + 1, None);
        }
        self.0[place] = lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_its_part_of_the_time_that_is_left() {
        let (stop, begin) = (Stop::default(), Instant::now());
        let seconds = Duration::from_secs;
        let wait = Wait { until: begin + seconds(12), stop: &stop };
        assert_eq!(wait.share_at(begin, 3).until, begin + seconds(4));
        // The first took its whole part; the second failed at once.
        assert_eq!(wait.share_at(begin + seconds(4), 2).until, begin + seconds(8));
        assert_eq!(wait.share_at(begin + seconds(4), 1).until, begin + seconds(12));
        // What is over stays over.
        assert_eq!(wait.share_at(begin + seconds(20), 2).until, begin + seconds(12));
        // Of many, the last ones may get nothing.
        assert_eq!(wait.share_at(begin, 100).until, begin + seconds(2));
        assert_eq!(wait.share_at(begin + seconds(11), 50).until, begin + seconds(12));
        // Parts have parts.
        assert_eq!(wait.share_at(begin, 2).share_at(begin, 3).until, begin + seconds(2));
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let stop = Stop::default();
        assert_eq!(Wait::new(Duration::ZERO, &stop).left().unwrap_err().kind(), ErrorKind::TimedOut);
        let hour = Duration::from_secs(3600);
        assert!(Wait::new(hour, &stop).left().unwrap() <= hour);
    }

    #[test]
    fn addresses_take_turns_and_those_that_were_just_lost_are_last() {
        let (mut lost, now) = (Lost::default(), Instant::now());
        assert_eq!(lost.order(3, 4, now), [1, 2, 0]);
        lost.note(1, Some(now));
        assert_eq!(lost.order(3, 4, now), [2, 0, 1]);
        lost.note(2, Some(now));
        assert_eq!(lost.order(3, 4, now), [0, 1, 2]);
        assert_eq!(lost.order(3, 4, now + AVOIDED), [1, 2, 0]);
        lost.note(1, None);
        assert_eq!(lost.order(3, 4, now), [1, 0, 2]);
        assert_eq!(lost.order(1, 7, now), [0]);
    }
}
