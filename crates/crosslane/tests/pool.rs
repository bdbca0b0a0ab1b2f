//! The pool with a zygote that takes its time: nobody waits for a boot who finds a warm lane.

use crosslane::Error;
use crosslane::batch::{Encode, Header};
use crosslane::lane::{Lane, LaneError, Patience};
use crosslane::pool::{self, Pool, PoolOptions};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

struct IdleLane {
    id: u64,
    booted_on: ThreadId,
}

impl Lane for IdleLane {
    fn id(&self) -> u64 {
        self.id
    }
    fn process(&self) -> i32 {
        0
    }
    fn submit(&mut self, _: u32, _: usize, _: &dyn Encode) -> Result<u64, LaneError> {
        Err(LaneError::System("a lane for nothing".into()))
    }
    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        Ok(None)
    }
    fn frame(&self) -> &[u8] {
        &[]
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn progress(&self) -> (u32, u32) {
        (0, 0)
    }
    fn check(&mut self) -> Result<(), LaneError> {
        Ok(())
    }
    fn wait_any(_: &mut [&mut Self], _: Patience, _: Duration) {}
}

/// Boots a lane for each permit; says when it begins to.
struct SlowZygote {
    permits: Receiver<Result<(), Error>>,
    begun: Sender<()>,
    booted: u64,
}

impl pool::Zygote for SlowZygote {
    type Lane = IdleLane;

    fn boot(&mut self) -> Result<IdleLane, Error> {
        let _ = self.begun.send(());
        self.permits.recv().unwrap_or_else(|_| Err(Error::Boot("the test is over".into())))?;
        self.booted += 1;
        Ok(IdleLane { id: self.booted, booted_on: std::thread::current().id() })
    }
}

fn pool(warm: usize) -> (Pool<SlowZygote>, Sender<Result<(), Error>>, Receiver<()>) {
    let (permit, permits) = channel();
    let (begin, begun) = channel();
    let zygote = SlowZygote { permits, begun: begin, booted: 0 };
    let options = PoolOptions { warm, idle_timeout: Duration::from_secs(60) };
    let (pool, ()) = Pool::start(options, move || Ok((zygote, ()))).unwrap();
    (pool, permit, begun)
}

#[test]
fn a_boot_holds_nobody_up_who_finds_a_warm_lane() {
    let (pool, permit, begun) = pool(2);
    begun.recv().unwrap();
    permit.send(Ok(())).unwrap();
    // The second boot has begun, and will not end: the first lane is there, and can come and go.
    begun.recv().unwrap();
    for _ in 0..3 {
        let lane = pool.check_out().unwrap();
        assert_eq!(lane.id(), 1);
        assert_ne!(lane.booted_on, std::thread::current().id(), "booted on an engine's thread");
        assert!(pool.try_check_out().is_none());
        lane.give_back();
    }
    assert_eq!(pool.stats().waited, 0);
    permit.send(Ok(())).unwrap();
}

#[test]
fn those_who_wait_get_the_lane_or_the_error() {
    let (pool, permit, begun) = pool(1);
    std::thread::scope(|scope| {
        begun.recv().unwrap();
        let waiting = scope.spawn(|| pool.check_out().map(|lane| lane.id()));
        while pool.stats().waited == 0 {
            std::thread::yield_now();
        }
        permit.send(Err(Error::Boot("no more processes".into()))).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("no more processes"), "{error}");
        // The next check-out tries again.
        let waiting = scope.spawn(|| pool.check_out().map(|lane| lane.id()));
        permit.send(Ok(())).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 1);
        permit.send(Ok(())).unwrap();
    });
}

/// Where no more lanes can be booted, those that exist stay, and are lent in turns; and a boot is tried once for each
/// who needs one. Several rounds, because one in which the lane comes back before anyone is refused shows nothing.
#[test]
fn who_cannot_have_a_lane_of_its_own_shares() {
    for _ in 0..200 {
        let (pool, permit, begun) = pool(1);
        begun.recv().unwrap();
        permit.send(Ok(())).unwrap();
        let lane = pool.check_out().unwrap();
        let waited = pool.stats().waited;
        // From now on each boot fails.
        drop(permit);
        std::thread::scope(|scope| {
            let others = [(); 2].map(|()| {
                scope.spawn(|| {
                    let lane = pool.check_out()?;
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
        // Dropping a lane ends it: now there is none to wait for.
        drop(pool.check_out().unwrap());
        let error = pool.check_out().unwrap_err();
        assert_eq!(error.to_string(), "cannot start a worker: the test is over");
    }
}
