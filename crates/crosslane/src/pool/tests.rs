//! The pool's protocol, step by step.

use super::state::PooledLane;
use super::warm_limit::{Census, Member, WarmLimit};
use super::{Common, Pool, PoolOptions, PoolStats, Stop, Zygote};
use crate::error::Error;
use crate::idle::IdleLane;
use crate::lane::Lane;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

struct Boots(u64);

impl Zygote for Boots {
    type Lane = IdleLane;
    fn boot(&mut self) -> Result<IdleLane, Error> {
        self.0 += 1;
        Ok(IdleLane { id: self.0, works: None, broken: false })
    }
}

fn pool(idle_timeout: Duration) -> Pool<Boots> {
    Pool::start(PoolOptions { warm: 1, idle_timeout }, |_| Ok((Boots(0), ()))).unwrap().0
}

fn check_out(pool: &Pool<Boots>) -> PooledLane<IdleLane> {
    pool.check_out(|| false).unwrap().unwrap()
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_worker_finds_its_lane_without_the_lock() {
    let pool = pool(LONG);
    pool.give_back(check_out(&pool));
    let lock = pool.shared.lock();
    for _ in 0..3 {
        let lane = check_out(&pool);
        assert_eq!(lane.id(), 1);
        pool.give_back(lane);
    }
    drop(lock);
    assert_eq!((pool.stats().idle, pool.stats().busy), (1, 0));
}

#[test]
fn a_waiting_thread_takes_a_lane_from_the_cell_of_another_thread() {
    let pool = pool(LONG);
    pool.give_back(check_out(&pool));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lane = pool.try_check_out().unwrap();
            assert_eq!((lane.id(), pool.stats().busy), (1, 1));
            pool.give_back(lane);
        });
    });
    let lane = check_out(&pool);
    assert_eq!((lane.id(), pool.stats().booted, pool.stats().discarded), (1, 1, 0));
    drop(lane);
    assert_eq!((pool.stats().busy, pool.stats().discarded), (0, 1));
}

#[test]
fn no_lane_stays_in_a_cell_while_a_thread_waits() {
    let pool = pool(LONG);
    let lane = check_out(&pool);
    let mut state = pool.shared.lock();
    let ticket = state.enqueue();
    pool.shared.attend(&mut state);
    drop(state);
    pool.give_back(lane);
    let mut state = pool.shared.lock();
    assert_eq!(pool.shared.cells.count(), 0);
    let served = state.leave(ticket, false).unwrap().unwrap().unwrap();
    pool.shared.attend(&mut state);
    drop(state);
    pool.give_back(PooledLane::new(served));
    assert_eq!(pool.shared.cells.count(), 1);
}

#[test]
fn lanes_in_cells_leave_after_the_idle_timeout_and_with_their_pool() {
    for idle_timeout in [Duration::from_millis(1), Duration::ZERO] {
        let pool = pool(idle_timeout);
        pool.give_back(check_out(&pool));
        while pool.stats().idle > 0 {
            std::thread::yield_now();
        }
    }
    let pool = pool(LONG);
    let (first, second) = (check_out(&pool), check_out(&pool));
    let shared = Arc::downgrade(&pool.shared);
    pool.give_back(first);
    drop(pool);
    assert!(shared.upgrade().is_some(), "a lane is out");
    second.give_back();
    assert!(shared.upgrade().is_none(), "a lane is left");
}

/// Waits until the pool's state is as `wanted` demands.
fn settles(pool: &Pool<Boots>, wanted: impl Fn(PoolStats) -> bool) {
    while !wanted(pool.stats()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_lane_that_is_ending_goes_to_the_first_waiter() {
    let pool = pool(LONG);
    let mut lane = check_out(&pool);
    // During this time, the pool looks at the lane and the test puts a waiter into the queue, also on a
    // busy machine.
    lane.works = Some(Instant::now() + Duration::from_millis(500));
    pool.give_back(lane);
    assert_eq!((pool.stats().idle, pool.stats().busy), (0, 1));
    let mut state = pool.shared.lock();
    let ticket = state.enqueue();
    // Without this, the keeper would boot a lane for a waiter whose turn has come.
    state.refuse(Error::Boot("no more".into()));
    pool.shared.attend(&mut state);
    drop(state);
    let served = loop {
        if let Some(outcome) = pool.shared.lock().leave(ticket, false) {
            break outcome.unwrap().unwrap();
        }
        std::thread::yield_now();
    };
    assert_eq!((served.lane.id(), pool.stats().booted), (1, 1));
    drop(PooledLane::new(served));
}

/// The thread that looks at the ending lanes has taken all of them. The keeper sees none meanwhile.
#[test]
fn the_keeper_learns_of_ending_lanes_that_another_thread_looked_after() {
    let pool = pool(LONG);
    let (mut first, mut second) = (check_out(&pool), check_out(&pool));
    first.works = Some(Instant::now() + Duration::from_millis(50));
    second.works = Some(Instant::now() + LONG);
    pool.give_back(first);
    pool.give_back(second);
    drop(pool.shared.settle(pool.shared.lock(), Duration::from_millis(200)));
    settles(&pool, |stats| stats.idle == 1 && stats.discarded == 1);
}

#[test]
fn a_look_at_ending_lanes_that_panics_leaves_none_counted_as_busy() {
    let pool = pool(LONG);
    let mut lanes = [check_out(&pool), check_out(&pool)];
    lanes.iter_mut().for_each(|lane| lane.works = Some(Instant::now() + LONG));
    lanes[1].broken = true;
    let mut state = pool.shared.lock();
    state.ending.extend(lanes.map(PooledLane::into_kept));
    assert_eq!(state.out, 2);
    let look = || drop(pool.shared.settle(state, Duration::ZERO));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).unwrap_err();
    assert_eq!((pool.stats().busy, pool.stats().discarded), (0, 2));
}

/// Another pool of the bound. It makes room when the engine ends all pools: it sets the stop of the
/// pool that asks for room.
#[derive(Default)]
struct MakesRoom {
    stop: OnceLock<Stop>,
    asked: AtomicUsize,
}

impl Member for MakesRoom {
    fn census(&self) -> Census {
        self.asked.fetch_add(1, Relaxed);
        self.stop.get().inspect(|stop| stop.0.store(true, Relaxed));
        Census { idle: usize::from(self.stop.get().is_none()), used: None }
    }
    fn reconsider(&self) {}
    fn shed(&self, _lanes: usize) {}
}

#[test]
fn room_that_comes_with_the_end_of_all_pools_boots_nothing() {
    let (warm_limit, other) = (Arc::new(WarmLimit::new(1)), Arc::new(MakesRoom::default()));
    let member: Weak<MakesRoom> = Arc::downgrade(&other);
    warm_limit.join(member);
    let common = Common { warm_limit: Some(Arc::clone(&warm_limit)), ..Common::default() };
    let options = PoolOptions { warm: 1, idle_timeout: LONG };
    let (pool, ()) = Pool::start_unless(options, common, || false, |_| Ok((Boots(0), ()))).unwrap();
    let asked = |times| {
        while other.asked.load(Relaxed) < times {
            std::thread::yield_now();
        }
    };
    asked(1);
    let shared = Arc::clone(&pool.shared);
    other.stop.set(shared.stop.clone()).ok().unwrap();
    let before = other.asked.load(Relaxed);
    warm_limit.leave();
    asked(before + 1);
    drop(pool);
    assert_eq!(shared.lock().stats.booted, 0);
}
