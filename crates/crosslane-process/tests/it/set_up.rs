//! Lanes that prepare themselves. No caller gets a lane before it is ready. A lane that is lost
//! meanwhile is a failed boot. The lane ends what it has prepared. The guests are threads of this
//! process.

use crosslane::lane::Lane;
use crosslane::pool::{Pool, PoolOptions, PooledLane, SetUp, Zygote};
use crosslane::{Entry, Error, Failure};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use crosslane_process::testing::Guests;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

/// A zygote whose lanes have something to prepare.
struct Prepared {
    guests: Guests,
    limit: Duration,
}

impl Zygote for Prepared {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        self.guests.boot()
    }

    fn set_up(&self) -> Option<SetUp> {
        Some(SetUp { functions: "score (model.py:7)".into(), only: None, limit: self.limit })
    }
}

fn pool(
    limit: Duration,
    idle_timeout: Duration,
    guest: impl Fn(&mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Pool<Prepared> {
    let guests = Guests::new(4096, move |_, lane, call| guest(lane, call));
    let prepared = Prepared { guests, limit };
    Pool::start(PoolOptions { warm: 1, idle_timeout }, move |_| Ok((prepared, ()))).unwrap().0
}

fn check_out(pool: &Pool<Prepared>) -> Result<PooledLane<ProcessLane>, Error> {
    pool.check_out(|| false).map(|lane| lane.expect("nobody ends the wait"))
}

fn done(lane: &mut GuestLane, call: Call) -> bool {
    lane.succeed(call.with_rows(0), &(), RowCounts::default()).is_ok()
}

/// A guest that reports the entry of each call, and then waits for a permit.
fn told() -> (impl Fn(&mut GuestLane, Call) -> bool + Send + Sync, Receiver<Entry>, Sender<()>) {
    let ((say, said), (permit, permits)) = (channel(), channel::<()>());
    let (say, permits) = (Mutex::new(say), Mutex::new(permits));
    let guest = move |lane: &mut GuestLane, call: Call| {
        let _ = say.lock().unwrap().send(call.entry().unwrap());
        let _ = permits.lock().unwrap().recv();
        done(lane, call)
    };
    (guest, said, permit)
}

#[test]
fn a_lane_is_lent_when_it_is_prepared() {
    let (guest, said, permit) = told();
    let pool = pool(LONG, LONG, guest);
    assert_eq!(said.recv().unwrap(), Entry::SetUp);
    assert_eq!((pool.stats().idle, pool.stats().busy), (0, 1));
    assert!(pool.try_check_out().is_none());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| check_out(&pool).unwrap());
        while pool.stats().waited == 0 {
            thread::yield_now();
        }
        permit.send(()).unwrap();
        let lane = waiting.join().unwrap();
        // The pool has not booted a second lane, which would have taken as long.
        assert_eq!((lane.in_flight(), pool.stats().booted), (0, 1));
        lane.give_back();
    });
    assert_eq!((pool.stats().idle, pool.stats().discarded), (1, 0));
    // The pool tells the lane to tear down, and then ends it.
    drop(permit);
    drop(pool);
    assert_eq!(said.try_recv(), Ok(Entry::TearDown));
    assert!(said.recv().is_err());
}

#[test]
fn a_waiter_gets_a_new_lane_if_no_lane_prepares_itself() {
    let (guest, said, permit) = told();
    let pool = pool(LONG, LONG, guest);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| check_out(&pool).unwrap())).collect();
        (0..3).for_each(|_| assert_eq!(said.recv().unwrap(), Entry::SetUp));
        drop(permit);
        let lanes: Vec<_> = waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect();
        assert_eq!((lanes.len(), pool.stats().booted), (3, 3));
        lanes.into_iter().for_each(PooledLane::give_back);
    });
}

#[test]
fn a_failure_leaves_a_lane_that_can_be_used() {
    let pool = pool(LONG, LONG, |lane, call| {
        let failure = Failure { class: "Oops".into(), message: "no model".into(), ..Failure::default() };
        lane.fail(call, &failure, None).is_ok()
    });
    check_out(&pool).unwrap().give_back();
    assert_eq!((pool.stats().booted, pool.stats().discarded), (1, 0));
}

#[test]
fn a_guest_that_dies_or_takes_too_long_is_a_boot_that_failed() {
    let stuck = Mutex::new(Vec::new());
    let dies = pool(LONG, LONG, |_, _| false);
    let hangs = pool(Duration::from_millis(50), LONG, move |_, _| {
        // The guest keeps running, but does not answer as long as the pool exists.
        let (sender, receiver) = channel::<()>();
        stuck.lock().unwrap().push(sender);
        receiver.recv().is_ok()
    });
    for (pool, why) in [(dies, "was ended"), (hangs, "this took longer than load_timeout")] {
        let error = check_out(&pool).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Boot(_))
                && text.contains("the set-up of score (model.py:7): ")
                && text.contains(why),
            "{text}"
        );
        // The pool tries another boot for each caller that needs a lane, and for no other reason.
        let booted = pool.stats().booted;
        assert!(check_out(&pool).is_err());
        assert!(pool.stats().booted <= booted + 1, "{:?}", pool.stats());
        assert_eq!(pool.stats().busy, 0);
    }
}

#[test]
fn idle_lanes_end_what_they_have_prepared() {
    let (guest, said, permit) = told();
    drop(permit);
    let pool = pool(LONG, Duration::from_millis(20), guest);
    assert_eq!(said.recv().unwrap(), Entry::SetUp);
    assert_eq!(said.recv().unwrap(), Entry::TearDown);
    // The next query gets another lane.
    check_out(&pool).unwrap().give_back();
    assert_eq!(said.recv().unwrap(), Entry::SetUp);
}
