//! How long a client waits for servers.
//!
//! All addresses that are tried for one connection share one time limit ([`Wait`]). Each address
//! gets a share of the time that is left. So a server that does not answer leaves time for the next
//! one. Addresses that were lost in the last 30 seconds are tried last ([`Lost`]).

use crosslane::pool::Stop;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often a wait checks whether it is still needed.
const TICK: Duration = Duration::from_millis(10);
/// How long a lost address is tried after the others.
const AVOIDED: Duration = Duration::from_secs(30);

/// The smallest share, as long as this much time is left. A busy server takes a moment to answer
/// the greeting.
const LEAST: Duration = Duration::from_secs(2);

/// A time limit. Several waits may share it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    until: Instant,
    stop: &'a Stop,
}

impl<'a> Wait<'a> {
    /// Makes a wait that ends after `limit`, or when `stop` is set.
    pub(crate) fn new(limit: Duration, stop: &'a Stop) -> Self {
        Self { until: Instant::now() + limit, stop }
    }

    /// Returns the first one's share of the time that is left, if `count` waits follow each other.
    pub(crate) fn share(self, count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        self.share_at(Instant::now(), count)
    }

    fn share_at(self, now: Instant, count: u32) -> Self {
        let left = self.until.saturating_duration_since(now);
        Self { until: self.until.min(now + (left / count).max(LEAST)), ..self }
    }

    /// Returns the time that is left.
    ///
    /// # Errors
    /// `TimedOut` if no time is left, or another error if the wait is not needed any more.
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
    /// The errors of [`Wait::left`], and those of the system.
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

/// When each address was lost, by its place in the list. An address is lost if the last attempt to
/// connect to it failed.
#[derive(Debug, Default)]
pub(crate) struct Lost(Vec<Option<Instant>>);

impl Lost {
    /// Returns the places of `count` addresses in the order in which they are tried. The order
    /// starts at the place of `turn`. Addresses that were just lost are last.
    pub(crate) fn order(&self, count: usize, turn: usize, now: Instant) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).map(|offset| (turn + offset) % count).collect();
        order.sort_by_key(|place| {
            let lost = self.0.get(*place).copied().flatten();
            lost.is_some_and(|lost| now.saturating_duration_since(lost) < AVOIDED)
        });
        order
    }

    /// Stores when the address at this place was lost, or `None` if it answered.
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
        // The first wait took its whole share. The second failed at once.
        assert_eq!(wait.share_at(begin + seconds(4), 2).until, begin + seconds(8));
        assert_eq!(wait.share_at(begin + seconds(4), 1).until, begin + seconds(12));
        // After the end, a share does not extend the time.
        assert_eq!(wait.share_at(begin + seconds(20), 2).until, begin + seconds(12));
        // If there are many, the last ones may get nothing.
        assert_eq!(wait.share_at(begin, 100).until, begin + seconds(2));
        assert_eq!(wait.share_at(begin + seconds(11), 50).until, begin + seconds(12));
        // A share can be shared again.
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
