//! Lanes that are ending a cancelled exchange, or that prepare themselves.

use super::state::{Kept, PooledLane, Shared, State};
use crate::error::Error;
use crate::lane::{Lane, LaneError, Patience, wait_any};
use crate::stats::moment;
use crate::trace::EventKind;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// How many messages are thrown away at once, and for how long. A guest could send messages without
/// end.
const MOST_AT_ONCE: (usize, Duration) = (1024, Duration::from_millis(1));

impl<L: Lane> Kept<L> {
    /// Throws away the messages of a cancelled exchange. Returns whether the guest has ended the
    /// exchange.
    ///
    /// # Errors
    /// If the lane must not be used again.
    pub(super) fn settle(&mut self) -> Result<bool, LaneError> {
        let begun = Instant::now();
        for _ in 0..MOST_AT_ONCE.0 {
            if self.lane.in_flight() == 0 {
                return Ok(true);
            }
            if begun.elapsed() > MOST_AT_ONCE.1 {
                break;
            }
            // More messages may follow one that was thrown away.
            match self.lane.try_collect() {
                Ok(_) | Err(LaneError::TooLarge(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Why the guest may not go on; `None` if it may.
    pub(super) fn overdue(&mut self) -> Option<String> {
        if Instant::now() >= self.until {
            return Some("this took longer than load_timeout".into());
        }
        (!self.lane.lives())
            .then(|| self.lane.check().map_or_else(|error| error.to_string(), |()| "has ended".into()))
    }
}

impl<L: Lane> Shared<L> {
    /// Looks at the ending lanes. If `patience` is not zero, waits up to that long until a lane is
    /// free.
    pub(super) fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<L>>,
        patience: Duration,
    ) -> MutexGuard<'a, State<L>> {
        if state.ending.is_empty() {
            return state;
        }
        // If the code below panics, it drops the lanes. That ends them and corrects the counts.
        let mut ending: Vec<_> = std::mem::take(&mut state.ending).into_iter().map(PooledLane::new).collect();
        drop(state);
        let until = Instant::now() + patience;
        let (mut free, mut lost, mut unprepared) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let mut at = 0;
            while at < ending.len() {
                let kept = ending[at].kept_mut();
                let over = match kept.settle() {
                    Ok(true) => {
                        free.push(ending.swap_remove(at));
                        continue;
                    }
                    Ok(false) => kept.overdue(),
                    Err(error) => Some(error.to_string()),
                };
                match over {
                    None => at += 1,
                    Some(why) => {
                        unprepared.extend(kept.new.then_some(why));
                        lost.push(ending.swap_remove(at));
                    }
                }
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() || !free.is_empty() || ending.is_empty() {
                break;
            }
            let lanes: Vec<_> = ending.iter_mut().map(|lane| &mut **lane).collect();
            wait_any(&lanes, Patience::Spin, rest);
        }
        let [ending, free] = [ending, free].map(|lanes| lanes.into_iter().map(PooledLane::into_kept));
        let (mut ending, free): (Vec<_>, Vec<_>) = (ending.collect(), free.collect());
        state = self.lock();
        if !ending.is_empty() {
            state.ending.append(&mut ending);
            // The keeper may have found no ending lanes meanwhile.
            self.work.notify_one();
        }
        for why in unprepared {
            // If there is no waiter, the next check-out that finds no idle lane tries again, and
            // gets the error.
            state.exhausted = true;
            let functions = self.prepared.get().map_or("its functions", String::as_str);
            state.refuse(Error::Boot(format!("the set-up of {functions}: {why}")));
            self.arrival.notify_all();
        }
        if !lost.is_empty() {
            // Dropping the lanes ends them and tells the waiters. A waiter has to be refused before
            // that. Otherwise the keeper would boot another lane for it.
            drop(state);
            drop(lost);
            state = self.lock();
        }
        for mut kept in free {
            if std::mem::take(&mut kept.new) {
                state.preparing -= 1;
                self.tracer.ended(EventKind::SetUp, moment(kept.since), Some(&kept.stats));
            }
            kept.rest();
            state.receive(kept);
            self.tell(&state);
        }
        state
    }
}
