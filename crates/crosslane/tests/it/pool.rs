//! The pool with a slow zygote: a caller that finds a warm lane does not wait for a boot.

use crate::idle::IdleLane;
use crosslane::catalog::Catalog;
use crosslane::lane::Lane;
use crosslane::pool::{self, Common, Pool, PoolOptions, PooledLane, Stop};
use crosslane::warm_limit::WarmLimit;
use crosslane::{Error, Function};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

/// Boots a lane for each permit. Reports the start and the thread of each boot.
struct SlowZygote {
    stop: Stop,
    permits: Receiver<Result<(), Error>>,
    begun: Sender<ThreadId>,
    booted: u64,
}

impl pool::Zygote for SlowZygote {
    type Lane = IdleLane;

    fn boot(&mut self) -> Result<IdleLane, Error> {
        let _ = self.begun.send(std::thread::current().id());
        loop {
            match self.permits.recv_timeout(Duration::from_millis(1)) {
                Ok(permit) => break permit?,
                Err(RecvTimeoutError::Timeout) if self.stop.is_set() => {
                    return Err(Error::Boot("nobody needs it".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Boot("the test is over".into())),
            }
        }
        self.booted += 1;
        Ok(IdleLane { id: self.booted, works: None, broken: false })
    }
}

type Parts = (Pool<SlowZygote>, Sender<Result<(), Error>>, Receiver<ThreadId>);

fn pool(warm: usize) -> Parts {
    pool_with(PoolOptions { warm, idle_timeout: Duration::from_secs(60) })
}

fn pool_with(options: PoolOptions) -> Parts {
    let (permit, permits) = channel();
    let (begin, begun) = channel();
    let (pool, ()) =
        Pool::start(options, move |stop| Ok((SlowZygote { stop, permits, begun: begin, booted: 0 }, ())))
            .unwrap();
    (pool, permit, begun)
}

fn check_out(pool: &Pool<SlowZygote>) -> Result<PooledLane<IdleLane>, Error> {
    pool.check_out(|| false).map(|lane| lane.expect("nobody ends the wait"))
}

#[test]
fn a_boot_does_not_delay_a_caller_that_finds_a_warm_lane() {
    let (pool, permit, begun) = pool(2);
    assert_ne!(begun.recv().unwrap(), std::thread::current().id(), "boots on an engine's thread");
    permit.send(Ok(())).unwrap();
    // The second boot has begun and does not end. The first lane exists, and can be lent and given
    // back.
    begun.recv().unwrap();
    for _ in 0..3 {
        let lane = check_out(&pool).unwrap();
        assert_eq!(lane.id(), 1);
        assert!(pool.try_check_out().is_none());
        lane.give_back();
    }
    assert_eq!(pool.stats().waited, 0);
    permit.send(Ok(())).unwrap();
}

#[test]
fn waiting_callers_get_the_lane_or_the_error() {
    let (pool, permit, begun) = pool(1);
    std::thread::scope(|scope| {
        begun.recv().unwrap();
        let waiting = scope.spawn(|| check_out(&pool).map(|lane| lane.id()));
        while pool.stats().waited == 0 {
            std::thread::yield_now();
        }
        permit.send(Err(Error::Boot("no more processes".into()))).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("no more processes"), "{error}");
        // The next check-out tries again.
        let waiting = scope.spawn(|| check_out(&pool).map(|lane| lane.id()));
        permit.send(Ok(())).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 1);
        permit.send(Ok(())).unwrap();
    });
}

/// If no more lanes can be booted, the existing lanes stay, and callers use them in turns. The pool
/// tries one boot for each caller that needs a lane. The test has several rounds, because a round
/// shows nothing if the lane comes back before a boot fails.
#[test]
fn callers_share_lanes_if_no_more_can_be_booted() {
    for _ in 0..200 {
        let (pool, permit, begun) = pool(1);
        begun.recv().unwrap();
        permit.send(Ok(())).unwrap();
        let lane = check_out(&pool).unwrap();
        let waited = pool.stats().waited;
        // From now on each boot fails.
        drop(permit);
        std::thread::scope(|scope| {
            let others = [(); 2].map(|()| {
                scope.spawn(|| {
                    let lane = check_out(&pool)?;
                    let id = lane.id();
                    lane.give_back();
                    Ok::<_, Error>(id)
                })
            });
            while pool.stats().waited < waited + 2 {
                std::thread::yield_now();
            }
            begun.recv().unwrap();
            begun.recv().unwrap();
            lane.give_back();
            for other in others {
                assert_eq!(other.join().unwrap().unwrap(), 1);
            }
        });
        assert!(begun.try_recv().is_err(), "tried again for nobody");
        // Dropping a lane ends it. Now there is no lane to wait for.
        drop(check_out(&pool).unwrap());
        let error = check_out(&pool).unwrap_err();
        assert_eq!(error.to_string(), "cannot start a worker: the test is over");
    }
}

/// Two scans hold one lane each, and each needs another lane for its rows. They would wait for each
/// other for ever. So one of them fails, and the other goes on with its lane.
#[test]
fn callers_that_hold_all_lanes_do_not_wait_for_each_other() {
    let (pool, permit, begun) = pool(2);
    (0..2).for_each(|_| permit.send(Ok(())).unwrap());
    for _ in 0..2 {
        begun.recv().unwrap();
    }
    while pool.stats().idle < 2 {
        std::thread::yield_now();
    }
    // From now on each boot fails.
    drop(permit);
    let pool = Arc::new(pool);
    let both = Arc::new(std::sync::Barrier::new(2));
    let (told, outcomes) = channel();
    for _ in 0..2 {
        let (pool, both, told) = (Arc::clone(&pool), Arc::clone(&both), told.clone());
        std::thread::spawn(move || {
            let mut scan = check_out(&pool).unwrap();
            scan.hold();
            both.wait();
            let second = check_out(&pool).map(PooledLane::give_back);
            scan.give_back();
            told.send(second.is_ok()).unwrap();
        });
    }
    let mut outcomes =
        [(); 2].map(|()| outcomes.recv_timeout(Duration::from_secs(20)).expect("they wait for ever"));
    outcomes.sort_unstable();
    assert_eq!(outcomes, [false, true]);
    assert_eq!(pool.stats().busy, 0);
}

/// A second caller may arrive just when a lane was booted for the first caller. The first caller
/// must not wait for ever: it gets that lane or a new one.
#[test]
fn a_waiting_caller_gets_a_lane_though_another_caller_comes_first() {
    for _ in 0..300 {
        let (pool, permit, begun) = pool(1);
        let pool = Arc::new(pool);
        permit.send(Ok(())).unwrap();
        begun.recv().unwrap();
        let first = check_out(&pool).unwrap();
        let (served, answer) = channel();
        let waiting = Arc::clone(&pool);
        std::thread::spawn(move || {
            let lane = check_out(&waiting).unwrap();
            served.send(lane).unwrap();
        });
        begun.recv().unwrap();
        (0..3).for_each(|_| permit.send(Ok(())).unwrap());
        while pool.stats().booted < 2 {
            std::hint::spin_loop();
        }
        let second = check_out(&pool).unwrap();
        let third = answer.recv_timeout(Duration::from_secs(20)).expect("who waited was forgotten");
        drop((first, second, third));
    }
}

/// The keeper had seen no idle lane: the only lane went directly from its boot to the waiting
/// caller.
#[test]
fn a_lane_that_is_given_back_leaves_after_the_idle_timeout() {
    for idle_timeout in [Duration::from_millis(1), Duration::ZERO] {
        let (pool, permit, begun) = pool_with(PoolOptions { warm: 1, idle_timeout });
        begun.recv().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| check_out(&pool).unwrap());
            while pool.stats().waited == 0 {
                std::thread::yield_now();
            }
            permit.send(Ok(())).unwrap();
            waiting.join().unwrap().give_back();
        });
        while pool.stats().idle > 0 {
            std::thread::yield_now();
        }
    }
}

/// A cancelled query does not wait for the boot of its lane. The next caller in the queue gets the
/// lane.
#[test]
fn a_caller_that_leaves_the_queue_waits_no_more() {
    let (pool, permit, begun) = pool(1);
    begun.recv().unwrap();
    let asked = AtomicU64::new(0);
    let left = pool.check_out(|| asked.fetch_add(1, Relaxed) == 3).unwrap();
    assert!(left.is_none());
    assert_eq!(asked.load(Relaxed), 4);
    permit.send(Ok(())).unwrap();
    assert_eq!(check_out(&pool).unwrap().id(), 1);
}

/// A pool that is dropped cancels the boot, because no caller waits for it any more.
#[test]
fn a_pool_that_is_dropped_waits_for_no_boot() {
    let (pool, _permit, begun) = pool(1);
    begun.recv().unwrap();
    let (told, gone) = channel();
    std::thread::spawn(move || {
        drop(pool);
        told.send(()).unwrap();
    });
    gone.recv_timeout(Duration::from_secs(20)).expect("the pool waits for the boot");
}

/// Boots at once. Its end waits until `all` zygotes have begun to end.
struct LastZygote {
    all: usize,
    ends: Arc<(Mutex<usize>, Condvar)>,
    alone: Arc<AtomicU64>,
    booted: Arc<AtomicU64>,
}

impl pool::Zygote for LastZygote {
    type Lane = IdleLane;

    fn boot(&mut self) -> Result<IdleLane, Error> {
        Ok(IdleLane { id: self.booted.fetch_add(1, Relaxed), works: None, broken: false })
    }
}

impl Drop for LastZygote {
    fn drop(&mut self) {
        let (ends, end) = &*self.ends;
        let mut count = ends.lock().unwrap();
        *count += 1;
        end.notify_all();
        let most = Duration::from_secs(20);
        let waited = end.wait_timeout_while(count, most, |count| *count < self.all).unwrap().1;
        self.alone.fetch_add(waited.timed_out().into(), Relaxed);
    }
}

#[test]
fn libraries_end_side_by_side_and_boot_nothing_for_which_the_others_make_room() {
    let (catalog, warm_limit, all) = (Catalog::default(), Arc::new(WarmLimit::new(1)), 3);
    let (ends, alone, booted) = (Arc::default(), Arc::default(), Arc::default());
    for at in 0..all {
        let (ends, alone, booted) = (Arc::clone(&ends), Arc::clone(&alone), Arc::clone(&booted));
        let zygote = LastZygote { all, ends, alone, booted };
        let options = PoolOptions { warm: 1, idle_timeout: Duration::from_secs(60) };
        let start = |_| Ok((zygote, ()));
        let common = Common { warm_limit: Some(Arc::clone(&warm_limit)), ..Common::default() };
        let (pool, ()) = Pool::start_unless(options, common, || false, start).unwrap();
        // The first library takes the only warm lane.
        while at == 0 && pool.stats().idle == 0 {
            std::thread::yield_now();
        }
        let spec = format!(r#"{{ "signature": "f{at}() -> BIGINT", "admits_null": [] }}"#);
        let functions = Function::all(vec![serde_json::from_str(&spec).unwrap()], "a file").unwrap();
        catalog.publish(at.to_string(), functions, 0, pool, |_| Ok(())).unwrap();
    }
    catalog.clear();
    assert_eq!((alone.load(Relaxed), booted.load(Relaxed)), (0, 1));
}
