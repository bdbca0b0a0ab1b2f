//! Lanes that are ending what was cancelled, or prepare themselves.

use super::state::{Kept, PooledLane, Shared, State};
use crate::error::Error;
use crate::lane::{Lane, LaneError, Patience, wait_any};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Messages that are thrown away at once, and for how long. A guest could send more all the time.
const MOST_AT_ONCE: (usize, Duration) = (1024, Duration::from_millis(1));

impl<L: Lane> Kept<L> {
    /// Throws away what the guest sends of what was cancelled. Whether it has ended that.
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
            // There may be more behind a message that was thrown away.
            match self.lane.try_collect() {
                Ok(_) | Err(LaneError::TooLarge(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Why its guest may not go on, if it may not.
    pub(super) fn overdue(&mut self) -> Option<String> {
        if Instant::now() >= self.until {
            return Some("this took longer than load_timeout".into());
        }
        (!self.lane.lives())
            .then(|| self.lane.check().map_or_else(|error| error.to_string(), |()| "has ended".into()))
    }
}

impl<L: Lane> Shared<L> {
    /// Looks after the ending lanes. If `patience` is not zero, waits for so long until one is free.
    pub(super) fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<L>>,
        patience: Duration,
    ) -> MutexGuard<'a, State<L>> {
        if state.ending.is_empty() {
            return state;
        }
        // A look that panics drops them, which ends them, and counts.
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
            // It may have found none of them meanwhile.
            self.work.notify_one();
        }
        for why in unprepared {
            // Without a waiter, the next check-out that finds no idle lane tries again, and gets the error.
            state.exhausted = true;
            let functions = self.prepared.get().map_or("its functions", String::as_str);
            state.refuse(Error::Boot(format!("the set-up of {functions}: {why}")));
            self.arrival.notify_all();
        }
        if !lost.is_empty() {
            // Dropping them ends the lanes, and tells who waits. Who is refused is so before, or the keeper would boot another.
            drop(state);
            drop(lost);
            state = self.lock();
        }
        for mut kept in free {
            state.preparing -= usize::from(std::mem::take(&mut kept.new));
            kept.rest();
            state.receive(kept);
            self.tell(&state);
        }
        state
    }
}
