//! Ends a worker that takes more memory than its function may, in cases where no allocation fails.
//!
//! # Who enforces a `memory_limit`
//! During a call, the guest sets the kernel's limit on its private memory ([`crate::limits`]). An
//! allocation beyond the limit fails, and the guest raises its MemoryError. That limit does not
//! count memfds, shared mappings, files on tmpfs, or the memory of other processes. So the engine's
//! [warden](crate::warden) measures all of these while a call runs. It ends a worker with all
//! processes below it. JavaScript's guest counts for itself.
//!
//! # Protocol
//! A lane counts its work ([`Observed`]). All exchanges of an aggregate count as one, because one limit
//! applies to all states.
//!
//! When the warden sees a count for the first time, it notes the worker's memory. It skips this if
//! the memory is known from the worker's start. Later it measures the growth since then. It looks
//! every [`LOOK`], or less often if a look takes long. It sleeps when no number has changed. A lane
//! that begins an exchange while the warden sleeps rings the warden's bell. No call waits for a
//! look. A library without limits causes no looks.

use super::observed::{Bell, Memory, Observed, is_at_work};
use super::usage::Base;
use crate::external;
use crate::identity::Process;
use crosslane::{Error, Function};
use rustix::net::SendFlags;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// The count of a lane when its first exchange has begun.
const FIRST: u64 = 1;
/// How often the warden looks at the memory of workers.
const LOOK: Duration = Duration::from_millis(10);
/// The warden uses at most `1 / PART` of the time for looks.
const PART: u32 = 20;
/// The limit may be exceeded by `1 / SLACK` of it. The kernel limits the worker's own memory, which
/// may come close to the limit.
const SLACK: u64 = 16;

/// Gives a forked lane in a sandbox the kernel's counts of its memory, which it cannot open itself.
pub(crate) fn give_counts(socket: &OwnedFd, lane: &Process) -> Result<(), Error> {
    let counts = File::open(format!("/proc/{}/statm", lane.pid));
    let sent =
        counts.and_then(|counts| Ok(external::send(socket.as_fd(), counts.as_fd(), SendFlags::DONTWAIT)?));
    sent.map_err(|error| Error::Boot(format!("a worker ended before it was ready: {error}")))
}

/// The limits of functions, by their indices. `None` if no function has one.
pub(crate) fn limits(functions: &[Arc<Function>]) -> Option<Arc<[Option<u64>]>> {
    let limits: Arc<[_]> = functions.iter().map(|function| function.spec.memory_limit).collect();
    limits.iter().any(Option::is_some).then_some(limits)
}

/// The warden's knowledge about a worker that it watches.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    work: u64,
    /// The worker's memory when the warden saw this count first.
    base: Option<Base>,
}

impl Seen {
    /// Looks at the worker. Returns whether it is at work with a limit, or was so since the last
    /// look.
    fn look(&mut self, worker: &Observed, memory: &Memory) -> bool {
        let work = worker.work();
        let limit = memory.limit.load(Relaxed);
        let is_new = work != self.work;
        if is_new {
            *self = Self { work, base: (work == FIRST).then(|| memory.take_first()).flatten() };
        }
        if !is_at_work(work) || limit == 0 || worker.process.has_ended() {
            return is_new;
        }
        match &mut self.base {
            None => self.base = memory.tree.base(),
            Some(base) => {
                let exceeds =
                    memory.tree.growth(base, limit).is_some_and(|growth| growth > limit + limit / SLACK);
                // The worker may have ended this exchange meanwhile.
                if exceeds && worker.work() == work {
                    let most = limit as f64 / 1e6;
                    let why = format!("more than {most:.0} MB were used, the function's memory_limit");
                    worker.end(&why, &memory.tree.below());
                }
            }
        }
        true
    }
}

/// When the warden looks next.
#[derive(Debug, Default)]
pub(crate) struct Looks(Option<Instant>);

impl Looks {
    /// How long the warden may sleep. `None` if there is nothing to look at.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        self.0.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Looks at the memory of workers if it is time.
    pub(crate) fn look(&mut self, bell: &Bell, workers: &mut [(&Observed, &mut Seen)]) {
        let begun = Instant::now();
        match self.0 {
            None if !bell.looks.load(SeqCst) => return,
            Some(next) if begun < next => return,
            _ => {}
        }
        let mut look = || {
            workers.iter_mut().fold(false, |busy, (worker, seen)| {
                worker.memory.as_ref().is_some_and(|memory| seen.look(worker, memory)) || busy
            })
        };
        if !look() {
            // A lane that begins an exchange from now on rings. A lane that has begun one since its
            // look did not ring.
            bell.looks.store(false, SeqCst);
            if !look() {
                self.0 = None;
                return;
            }
            bell.looks.store(true, SeqCst);
        }
        let now = Instant::now();
        self.0 = Some(now + LOOK.max((now - begun) * PART));
    }
}
