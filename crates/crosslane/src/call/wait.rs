//! The one place where a call waits, and what ends the wait.

use super::loss::Loss;
use super::{Caller, ChunkCall};
use crate::error::Error;
use crate::function::Function;
use crate::lane::{Lane, Patience};
use crate::pool::Zygote;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often a call looks for deaths, deadlines and cancellation.
const TICK: Duration = Duration::from_millis(10);
/// A reply further away than this is not worth a core that spins.
const FAR: Duration = Duration::from_micros(500);

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// When a call looks next, and for what.
#[derive(Debug)]
pub(super) struct Clock {
    /// After how long without progress a lane is given up.
    limit: Option<Duration>,
    tick: Duration,
    next: Instant,
}

impl Clock {
    pub(super) fn new(function: &Function) -> Self {
        let limit = function.patience();
        let tick = limit.map_or(TICK, |limit| (limit / 8).clamp(Duration::from_millis(1), TICK));
        Self { limit, tick, next: Instant::now() + tick }
    }
}

impl<Z: Zygote> ChunkCall<'_, Z> {
    /// How to wait for the next reply.
    fn patience(&self) -> Patience {
        let first = self
            .lanes
            .iter()
            .filter_map(|worker| worker.slices.front())
            .map(|submitted| submitted.slice.rows.len());
        match first.min().and_then(|rows| self.function.cost.estimate(rows)) {
            Some(estimate) if estimate > FAR => Patience::Sleep,
            // Each lane at work keeps a core busy beside the one that would spin.
            Some(_) if 2 * self.caller.group.busy() <= cores() => Patience::SpinLonger,
            _ => Patience::Spin,
        }
    }

    /// Waits for a reply, or until it is time to look.
    pub(super) fn wait(&mut self) {
        let patience = self.patience();
        let timeout = self.clock.next.saturating_duration_since(Instant::now());
        let mut lanes: Vec<&mut Z::Lane> = self
            .lanes
            .iter_mut()
            .filter(|worker| !worker.slices.is_empty())
            .map(|worker| &mut *worker.lane)
            .collect();
        if lanes.is_empty() {
            // All that is left to do is to be tried again after a pause.
            std::thread::sleep(timeout);
        } else {
            Z::Lane::wait_any(&mut lanes, patience, timeout);
        }
    }

    /// Looks for cancellation, deaths and deadlines whenever it is time by the clock, whatever else happens: a
    /// guest may wake its engine, or answer, all the time.
    pub(super) fn look(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now < self.clock.next {
            return Ok(());
        }
        self.clock.next = now + self.clock.tick;
        if self.caller.should_end() {
            return Err(Caller::cancelled(self.function));
        }
        let mut index = 0;
        while index < self.lanes.len() {
            let worker = &mut self.lanes[index];
            if worker.slices.is_empty() {
                index += 1;
            } else if let Err(error) = worker.lane.check() {
                self.drain_dead(index, &error)?;
            } else if self.clock.limit.is_some_and(|limit| worker.overdue(now, limit)) {
                self.lose(index, Loss::Late)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }
}
