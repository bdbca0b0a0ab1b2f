//! The keeper: the thread that boots a pool's lanes and ends them.

use super::options::{SetUp, Zygote};
use super::state::{GRACE, Kept, Shared};
use super::warm_limit::SETTLED;
use crate::error::Error;
use crate::lane::{Address, Entry, Lane, Patience, wait_any};
use crate::stats::{LaneStats, now};
use crate::trace::EventKind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a waiter asks whether it should still wait, and how often the keeper looks at ending
/// lanes.
pub(super) const GLANCE: Duration = Duration::from_millis(10);
/// How long a caller waits for a busy lane before the pool boots another one. A boot takes longer.
pub(super) const MOMENT: Duration = Duration::from_millis(2);
/// How long the keeper sleeps if it is notified of all its work.
const FOREVER: Duration = Duration::from_secs(3600);

/// The loop of the keeper. It boots missing lanes, looks at ending lanes, and ends lanes that are
/// idle for too long.
pub(super) fn keep<Z: Zygote>(shared: &Arc<Shared<Z::Lane>>, mut zygote: Z) {
    let set_up = zygote.set_up();
    if let Some(set_up) = &set_up {
        let _ = shared.prepared.set(set_up.functions.clone());
    }
    let limit = set_up.as_ref().map(|set_up| set_up.limit);
    let mut tearing_down: Vec<JoinHandle<()>> = Vec::new();
    let mut state = shared.lock();
    loop {
        let patience = if state.is_due() { MOMENT } else { Duration::ZERO };
        state = shared.settle(state, patience);
        if state.closed {
            break;
        }
        let few = !state.exhausted && state.idle.len() + state.out < state.wanted();
        let due = state.is_due();
        // A pool whose reserved pools end begins to end when they have ended.
        if (few || due) && !shared.stop.is_set() {
            drop(state);
            if !due && shared.warm_limit.as_ref().is_some_and(|warm_limit| !warm_limit.has_room()) {
                state = shared.lock();
                state.cap = Some(state.idle.len() + state.out);
                continue;
            }
            // The bound may have room because all pools end. Their stops are set before that.
            if shared.stop.is_set() {
                state = shared.lock();
                continue;
            }
            let begun = now();
            let booted = zygote.boot().and_then(|lane| begin(lane, set_up.as_ref()));
            state = shared.lock();
            match booted {
                Ok((lane, prepares)) => {
                    (state.exhausted, state.unbalanced) = (false, true);
                    state.stats.booted += 1;
                    let stats = LaneStats { id: lane.id(), process: lane.process(), ..LaneStats::default() };
                    let stats = Arc::new(stats);
                    shared.tracer.ended(EventKind::Boot, begun, Some(&stats));
                    state.lanes.push(Arc::clone(&stats));
                    let since = Instant::now();
                    let (until, new) = (prepares.unwrap_or(since), prepares.is_some());
                    let kept = Box::new(Kept { lane, stats, since, until, new, shared: Arc::clone(shared) });
                    if new {
                        kept.stats.busy.store(true, Relaxed);
                        state.out += 1;
                        state.preparing += 1;
                        state.ending.push(kept);
                    } else if let Some(kept) = state.serve(kept) {
                        state.idle.insert(0, kept);
                    }
                }
                Err(error) => {
                    // If there is no waiter, the next check-out that finds no idle lane tries
                    // again, and gets the error.
                    state.exhausted = true;
                    state.refuse(error);
                }
            }
            shared.arrival.notify_all();
            continue;
        }
        // A lane that is in use is back in its cell a moment later.
        shared.collect(&mut state);
        if state.keep_warm && state.out == 0 && state.last_used.elapsed() >= state.options.idle_timeout {
            state.keep_warm = false;
        }
        let leaving = if !state.keep_warm && state.out == 0 {
            state.lanes.clear();
            state.surplus = 0;
            std::mem::take(&mut state.idle)
        } else {
            state.take_surplus()
        };
        if !leaving.is_empty() {
            drop(state);
            tearing_down.retain(|thread| !thread.is_finished());
            match limit {
                None => drop(leaving),
                Some(_) => tearing_down.extend(tear_down_apart(leaving)),
            }
            state = shared.lock();
            continue;
        }
        let idle_timeout = state.options.idle_timeout;
        if state.unbalanced && state.out == 0 && (!state.used || state.last_used.elapsed() >= SETTLED) {
            drop(state);
            let balanced = shared.warm_limit.as_ref().is_none_or(|warm_limit| warm_limit.balance());
            state = shared.lock();
            state.unbalanced = !balanced;
            if state.surplus > 0 {
                continue;
            }
        }
        let patience = match state.out {
            _ if !state.keep_warm => FOREVER,
            0 => idle_timeout.saturating_sub(state.last_used.elapsed()),
            // A thread that gives a lane back notifies the keeper only if the lane has to end at
            // once. Otherwise the lane ends no sooner than after the idle timeout.
            _ if idle_timeout.is_zero() => FOREVER,
            _ => idle_timeout,
        };
        let patience = if state.ending.is_empty() { patience.max(GLANCE) } else { GLANCE };
        let patience = if state.unbalanced { patience.min(SETTLED) } else { patience };
        state = shared.work.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
    }
    let mut leaving = (std::mem::take(&mut state.idle), std::mem::take(&mut state.ending));
    drop(state);
    if limit.is_some() {
        tear_down(&mut leaving.0);
    }
    drop(leaving);
    for thread in tearing_down {
        let _ = thread.join();
    }
}

/// Ends lanes that are not needed now, on a thread of its own. Meanwhile the keeper can boot the
/// lanes that the next query needs.
fn tear_down_apart<L: Lane>(lanes: Vec<Box<Kept<L>>>) -> Option<JoinHandle<()>> {
    // If there is no thread, the lanes end without a tear-down.
    std::thread::Builder::new()
        .name("crosslane-tear-down".into())
        .spawn(move || {
            let mut lanes = lanes;
            tear_down(&mut lanes);
        })
        .ok()
}

/// Tells a new lane to prepare its functions, if there is something to prepare. Returns until when
/// it may take.
fn begin<L: Lane>(mut lane: L, set_up: Option<&SetUp>) -> Result<(L, Option<Instant>), Error> {
    let Some(set_up) = set_up else { return Ok((lane, None)) };
    // The number of rows says whether the number of the function counts.
    let address = Address::whole(set_up.only.unwrap_or_default(), Entry::SetUp);
    match lane.submit(address, usize::from(set_up.only.is_some()), &()) {
        Ok(Some(_)) => Ok((lane, Some(Instant::now() + set_up.limit))),
        Ok(None) => Err(Error::Boot("a new worker has no room for a message".into())),
        Err(error) => Err(Error::Boot(error.to_string())),
    }
}

/// Tells the guests of idle lanes to end what they have prepared, all at the same time, and waits.
fn tear_down<L: Lane>(lanes: &mut [Box<Kept<L>>]) {
    let until = Instant::now() + GRACE;
    let told = lanes.iter_mut().filter_map(|kept| {
        let sent = kept.lane.submit(Address::whole(0, Entry::TearDown), 0, &());
        matches!(sent, Ok(Some(_))).then_some(kept)
    });
    let mut told: Vec<_> = told.collect();
    loop {
        told.retain_mut(|kept| matches!(kept.settle(), Ok(false)) && kept.lane.lives());
        let rest = until.saturating_duration_since(Instant::now());
        if told.is_empty() || rest.is_zero() {
            return;
        }
        let lanes: Vec<_> = told.iter_mut().map(|kept| &mut kept.lane).collect();
        wait_any(&lanes, Patience::Sleep, rest.min(GLANCE));
    }
}
