//! Records the calls that a server passes on from its clients to its workers.
//!
//! A row of the time line is a client's connection, and not a thread: a server's threads work for all
//! clients. So these events name the connection as their thread.

use super::event::EventKind;
use super::log::{Log, shortened};
use super::tracer::event;
use crate::batch::{BATCH, FAILURE, Header, failure_text};
use crate::error::Failure;
use crate::function::{Function, Library};
use crate::pool::Zygote;
use crate::stats::{LaneStats, moment, now};
use std::time::Instant;

/// Where a server records what it does with a client's call.
#[derive(Debug, Clone, Copy)]
pub struct Relay<'a> {
    log: Log<'a>,
    /// The time at which the server begins with what it records, in nanoseconds of [`now`].
    start: u64,
}

impl<Z: Zygote> Library<Z> {
    /// Where to record what a server now does with a call of this function that came over the
    /// connection of this number. `None` if no trace is on.
    pub fn relay<'a>(&'a self, function: &'a Function, connection: u64) -> Option<Relay<'a>> {
        let log = self.log(function);
        let thread = || i32::try_from(connection).unwrap_or(i32::MAX);
        log.is_on().then(|| Relay { log: log.of_thread(thread()), start: now() })
    }
}

impl Relay<'_> {
    /// The text of a call's first arguments, with a bounded length.
    pub fn arguments(&self, first: impl FnOnce() -> String) -> Box<str> {
        shortened(first())
    }

    /// Records that a batch of `rows` rows was written for a worker. It had waited for that since
    /// `waited`, if that is known.
    pub fn given(&self, lane: &LaneStats, rows: usize, waited: Option<Instant>) {
        if let Some(since) = waited {
            self.log.waited_until(self.start, moment(since), lane);
        }
        self.log.add([event(EventKind::CopyIn, Some(lane), (self.start, now()), rows)]);
    }

    /// Records a message of a worker about `rows` rows, before the client gets it. If the call is among
    /// the slowest so far, its event gets the arguments.
    pub fn answered(
        &self,
        lane: &LaneStats,
        header: &Header,
        frame: &[u8],
        rows: usize,
        arguments: Option<&str>,
    ) {
        if header.kind == FAILURE {
            let text = failure_text(frame).ok();
            let failure = text.and_then(|text| serde_json::from_slice::<Failure>(text).ok());
            self.log.failed(lane, header, &failure.unwrap_or_default());
        } else if header.kind == BATCH {
            let worked = (self.start.saturating_sub(header.worked), self.start);
            let mut function = event(EventKind::Function, Some(lane), worked, rows);
            if let Some(arguments) = arguments.filter(|_| self.log.is_slow(header.worked)) {
                function.detail = Some(arguments.into());
            }
            self.log.add([function]);
            self.log.troubles(lane, header);
        }
    }

    /// Records that the message was passed on.
    pub fn passed_on(&self, lane: &LaneStats, rows: usize) {
        self.log.add([event(EventKind::CopyOut, Some(lane), (self.start, now()), rows)]);
    }

    /// Records that the worker of a call has ended.
    pub fn lost(&self, lane: &LaneStats) {
        self.log.now(EventKind::LaneLost, Some(lane), 0);
    }
}
