//! The monitor: finds what waits behind a long task.
//!
//! What is started in the foreground runs at once, and what it was started from waits: a dispatcher in its own
//! queue, or a task in the worker's. Most of what runs in the foreground is short, and waking a worker each time
//! costs more than it. So nobody is woken, and this thread looks every [`TICK`]: if a worker has run the same
//! task since the last look and has others in its queue, or if a dispatcher is in its queue since then, an idle
//! worker is woken.
//!
//! The same holds for events: the worker that waits for them ([`crate::idle`]) handles what comes, and nobody waits
//! for more meanwhile. If it has not come back since the last look, another worker takes its place. And if it polls something
//! ([`crate::idle`]), that must wake somebody from then on.
//!
//! The monitor sleeps while nothing happens. A worker that leaves something behind looks whether the
//! monitor is awake, and wakes it if not; the monitor says that it sleeps before it looks for the last time. Of the
//! fences between the two steps on either side one comes first, so nothing is left behind while it sleeps.

use crate::scheduler::Group;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The longest time for which something waits behind a long task although a worker is idle.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// After so many looks at which no worker had run anything, the monitor sleeps.
const QUIET: u32 = 20;
/// After so many looks without a long handler the group is not eager any more.
const SHORT: u32 = 1000;

/// What the monitor saw when it looked last.
#[derive(Debug)]
struct Look {
    runs: Vec<u64>,
    parks: u64,
    polls: u64,
    queued: Vec<Option<u64>>,
}

impl Look {
    /// Looks, and wakes a worker if something waits behind a long task. Returns whether any worker ran anything.
    fn again(&mut self, group: &Group) -> bool {
        let (mut moved, mut is_stuck, mut parks) = (false, false, 0);
        for ((counters, stealer), before) in group.counters.iter().zip(&group.stealers).zip(&mut self.runs) {
            let runs = counters.runs.get();
            moved |= runs != *before;
            is_stuck |= runs == *before && !stealer.is_empty();
            *before = runs;
            parks += counters.parks.get();
        }
        let nobody_came_back = parks == self.parks && nobody_polls(group);
        self.parks = parks;
        if let Some(busy) = &group.busy {
            // Who polls is held up, or nobody does.
            let polls = busy.looks.get();
            if polls == self.polls {
                busy.source().rest();
            }
            moved |= polls != self.polls;
            self.polls = polls;
        }
        let dispatcher_is_stuck = group.dispatchers.any_stuck(&mut self.queued);
        if is_stuck && group.has_work() || dispatcher_is_stuck || nobody_came_back {
            group.wake_one();
        }
        moved
    }
}

/// Whether a worker sleeps although nobody waits for events.
fn nobody_polls(group: &Group) -> bool {
    group.idle.nobody_polls() && group.idle.any()
}

/// Looks after the group until it is stopped.
pub(crate) fn run(group: &Arc<Group>) {
    let monitor = &group.monitor;
    monitor.begin();
    let mut look = Look { runs: vec![0; group.counters.len()], parks: 0, polls: 0, queued: Vec::new() };
    let (mut quiet, mut short) = (0, 0);
    while !group.is_stopped() {
        quiet = if look.again(group) { 0 } else { quiet + 1 };
        short = if monitor.take_long_handlers() { 0 } else { short + 1 };
        if short > SHORT {
            group.idle.set_eager(false);
        }
        if quiet < QUIET {
            thread::sleep(TICK);
            continue;
        }
        quiet = 0;
        monitor.begin_sleep();
        if group.has_work() || group.dispatchers.any_queued() || nobody_polls(group) {
            monitor.stay_awake();
            thread::sleep(TICK);
            continue;
        }
        group.idle.set_eager(false);
        while !monitor.is_awake() && !group.is_stopped() {
            thread::park();
        }
    }
}
