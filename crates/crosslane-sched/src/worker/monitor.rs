//! The monitor: a thread that finds work behind a long task, and wakes a worker for it.
//!
//! A task that is started in the foreground runs at once, and what started it waits: a dispatcher
//! in its own queue, or a task in the worker's queue. Most such tasks are short, and waking a
//! worker for each costs more than the task. So no worker is woken. Instead, this thread looks
//! every [`TICK`]. It wakes an idle worker in two cases: a worker has run the same task since the
//! last look and has others in its queue, or a dispatcher has been in its queue since then.
//!
//! The same holds for events. The worker that waits for them handles what comes, and meanwhile no
//! worker waits. If it has not come back since the last look, the monitor wakes another worker. If
//! it is the one that polls a [`BusyPoll`](crate::BusyPoll), the monitor calls
//! [`rest`](crate::BusyPoll::rest), so that the source wakes a thread.
//!
//! The monitor sleeps while nothing happens. A worker that leaves work behind checks whether the
//! monitor is awake, and wakes it if not. The monitor says that it sleeps before it looks for the
//! last time. On both sides there is a fence between the two steps. One of the two fences comes
//! first, so no work is left behind while the monitor sleeps.

use crate::scheduler::Group;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long work waits behind a long task at most although a worker is idle.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// The monitor sleeps after this many looks at which no worker had run anything.
const QUIET: u32 = 20;
/// The group stops being eager after this many looks without a long handler.
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
    /// Looks, and wakes a worker if something waits behind a long task. Returns whether any worker
    /// ran anything.
    fn again(&mut self, group: &Group) -> bool {
        let (mut moved, mut is_stuck, mut parks) = (false, false, 0);
        for ((counters, stealer), before) in group.counters.iter().zip(&group.stealers).zip(&mut self.runs) {
            let runs = counters.runs.get();
            moved |= runs != *before;
            is_stuck |= runs == *before && !stealer.is_empty();
            *before = runs;
            parks += counters.parks.get();
        }
        let poller_is_away = parks == self.parks && nobody_polls(group);
        self.parks = parks;
        if let Some(busy) = &group.busy {
            // The worker that polls is held up, or no worker polls.
            let polls = busy.looks.get();
            if polls == self.polls {
                busy.source().rest();
            }
            moved |= polls != self.polls;
            self.polls = polls;
        }
        let dispatcher_is_stuck = group.dispatchers.any_stuck(&mut self.queued);
        if is_stuck && group.has_work() || dispatcher_is_stuck || poller_is_away {
            group.wake_one();
        }
        moved
    }
}

/// Whether a worker sleeps although no worker waits for events.
fn nobody_polls(group: &Group) -> bool {
    group.idle.nobody_polls() && group.idle.any()
}

/// Watches the group until it is stopped.
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
