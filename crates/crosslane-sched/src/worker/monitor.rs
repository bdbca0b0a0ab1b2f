//! The monitor: a thread that finds work behind a long task, and wakes a worker for it.
//!
//! A task in the foreground runs at once. The dispatcher that started it waits in the dispatcher's
//! own queue, or the task that started it waits in the worker's queue. Most tasks in the foreground
//! are short, and a wake for each would cost more than the task. So the worker wakes no other
//! worker. Instead, the monitor looks every [`TICK`]. It wakes an idle worker in two cases. In the
//! first case, a worker has run the same task since the last look, and has other tasks in its
//! queue. In the second case, a dispatcher has been in its queue since the last look.
//!
//! The same is true for events. While the worker that waited for events handles some, no worker may
//! be waiting. If that worker has not come back since the last look, the monitor wakes another
//! worker. If that worker polls a [`BusyPoll`](crate::BusyPoll), the monitor calls
//! [`rest`](crate::BusyPoll::rest). Then the source wakes a thread.
//!
//! The monitor sleeps while no worker runs a task. A worker that leaves work behind checks whether
//! the monitor is awake, and wakes it if not. The monitor marks itself as asleep before it looks
//! for the last time. On both sides there is a fence between the two steps. One of the two fences
//! comes first, so no work is left behind while the monitor sleeps.

use crate::scheduler::Group;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The longest time that work waits behind a long task while a worker is idle.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// The monitor sleeps after this many looks without a run of a worker.
const QUIET: u32 = 20;
/// The group stops being eager after this many looks without a long handler.
const SHORT: u32 = 1000;

/// The result of the monitor's last look.
#[derive(Debug)]
struct Look {
    runs: Vec<u64>,
    parks: u64,
    polls: u64,
    queued: Vec<Option<u64>>,
}

impl Look {
    /// Looks, and wakes a worker if work waits behind a long task. Returns whether any worker has
    /// run since the last look.
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
            // Either the polling worker is held up, or no worker polls.
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

/// Returns whether a worker sleeps although no worker waits for events.
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
