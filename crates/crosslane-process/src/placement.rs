//! Brings both sides of a lane to one processor while processors are scarce.
//!
//! As long as there is a processor for each side, the sides should be apart. They work at the same
//! time, and the kernel places them.
//!
//! If there are as many engine threads as processors, there is one processor for each pair. A pair
//! that has a processor to itself hands over by yielding, and the data stays in the caches. But the
//! kernel may put a guest on the same processor as the engine thread of another lane. Then a yield
//! runs an unrelated thread. Each handover wakes a thread of another processor by an interrupt, and
//! batches move from cache to cache. The kernel regards this state as balanced, and leaves it so
//! for seconds.
//!
//! Each side therefore reports on which processor it runs. A side moves to the other side's
//! processor if two things are true. It has received [`STREAK`] batches in a row from another
//! processor in a short time. And it has shared its own processor with unrelated threads meanwhile.
//!
//! The guest moves first. The engine's thread moves only to a guest that shares its processor with
//! no other thread, and after twice as many batches. So both sides do not change places. A moved
//! thread may run on any processor again at once, so the kernel can go on balancing.
//!
//! The other side's report is only a hint. If it is false, this side moves at most once in
//! [`STREAK`] batches. It moves only to a processor on which the kernel may put it anyway.

use crosslane_ring::{Location, Locations};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// After this many batches from another processor, the guest's side moves.
const STREAK: u32 = 8;
/// If a batch takes longer than this, a move gains nothing: a handover takes microseconds.
const BATCH: Duration = Duration::from_micros(500);

/// One side of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Engine,
    Guest,
}

/// Decides for one side of a lane on which processor it runs.
#[derive(Debug)]
pub(crate) struct Placement {
    side: Side,
    /// Batches in a row from another processor.
    streak: u32,
    /// When the streak began.
    begun: Instant,
    /// How often this side's thread had been preempted when the streak began.
    preempted: i64,
    /// The thread of this streak. An engine lends a lane to one thread after the other.
    thread: ThreadId,
}

impl Placement {
    pub(crate) fn new(side: Side) -> Self {
        Self { side, streak: 0, begun: Instant::now(), preempted: 0, thread: thread::current().id() }
    }

    /// The thread of this side calls this for each batch that it receives.
    pub(crate) fn met(&mut self, locations: &Locations) {
        let processor = sched_getcpu() as u32;
        let other = locations.other().filter(|other| other.processor != processor);
        let Some(other) = other else {
            self.streak = 0;
            return locations.tell(Location { processor, is_crowded: false });
        };
        let Some(is_crowded) = self.apart(Instant::now, preemptions) else { return };
        locations.tell(Location { processor, is_crowded });
        if self.moves(is_crowded, other) {
            visit(other.processor);
        }
    }

    /// Counts a batch from another processor. At the end of a streak, returns whether unrelated
    /// threads ran meanwhile.
    fn apart(&mut self, now: impl Fn() -> Instant, preemptions: impl Fn() -> i64) -> Option<bool> {
        let thread = thread::current().id();
        if self.streak == 0 || self.thread != thread {
            (self.streak, self.thread) = (0, thread);
            self.begun = now();
            self.preempted = preemptions();
        }
        self.streak += 1;
        let enough = if self.side == Side::Guest { STREAK } else { 2 * STREAK };
        if self.streak < enough {
            return None;
        }
        let batches = std::mem::take(&mut self.streak);
        let is_quick = now().saturating_duration_since(self.begun) < BATCH * batches;
        Some(is_quick && preemptions() - self.preempted >= i64::from(batches / 2))
    }

    fn moves(&self, is_crowded: bool, other: Location) -> bool {
        is_crowded && (self.side == Side::Guest || !other.is_crowded)
    }
}

/// Moves this thread to a processor on which it may run. The kernel may move it away again.
fn visit(processor: u32) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let processor = processor as usize;
    if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
        return;
    }
    let mut only = CpuSet::new();
    only.set(processor);
    if sched_setaffinity(None, &only).is_ok() {
        leave_free(&allowed);
    }
}

/// Lets this thread run on all processors that it was allowed to use. The kernel remembers a mask
/// that was set, and keeps to it when more processors appear later. So the mask is set only if the
/// thread had one before.
fn leave_free(allowed: &CpuSet) {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    let free = sched_setaffinity(None, &all).and_then(|()| sched_getaffinity(None));
    if free.as_ref() != Ok(allowed) {
        // If this fails, none of these processors exists any more, and the thread keeps the others.
        let _ = sched_setaffinity(None, allowed);
    }
}

/// How often this thread was preempted, or yielded to another one.
fn preemptions() -> i64 {
    // SAFETY: all zeros are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a rusage to the address of one.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The result of a streak in which each batch has this duration and this many preemptions.
    /// `None` if the streak has not ended.
    fn streak(placement: &mut Placement, batches: u32, took: Duration, preempted: f64) -> Option<bool> {
        let begun = Instant::now();
        let at = Cell::new(0);
        for batch in 0..batches {
            at.set(batch);
            let said =
                placement.apart(|| begun + took * at.get(), || (preempted * f64::from(at.get())) as i64);
            if said.is_some() {
                assert_eq!(batch, batches - 1, "it ended early");
                return said;
            }
        }
        None
    }

    #[test]
    fn a_side_is_crowded_if_strangers_run_between_quick_batches() {
        let quick = Duration::from_micros(20);
        for (side, batches) in [(Side::Guest, STREAK), (Side::Engine, 2 * STREAK)] {
            let mut placement = Placement::new(side);
            assert_eq!(streak(&mut placement, batches, quick, 1.0), Some(true));
            // The next streak has its own start.
            assert_eq!(
                streak(&mut placement, batches, quick, 0.0),
                Some(false),
                "it has its processor to itself"
            );
            assert_eq!(
                streak(&mut placement, batches, 2 * BATCH, 1.0),
                Some(false),
                "there is nothing to gain"
            );
            assert_eq!(streak(&mut placement, batches - 1, quick, 1.0), None);
        }
    }

    #[test]
    fn each_thread_has_its_own_streak() {
        let mut placement = Placement::new(Side::Engine);
        assert_eq!(streak(&mut placement, 2 * STREAK - 1, Duration::ZERO, 1.0), None);
        let other = || streak(&mut placement, 2 * STREAK, Duration::ZERO, 0.0);
        let said = thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert_eq!(said, Some(false), "it has not been preempted");
    }

    #[test]
    fn only_one_of_two_crowded_sides_moves() {
        let (guest, engine) = (Placement::new(Side::Guest), Placement::new(Side::Engine));
        let place = |is_crowded| Location { processor: 1, is_crowded };
        assert!(guest.moves(true, place(true)) && !engine.moves(true, place(true)));
        assert!(guest.moves(true, place(false)) && engine.moves(true, place(false)));
        assert!(!guest.moves(false, place(true)) && !engine.moves(false, place(false)));
    }

    #[test]
    fn a_batch_from_the_same_processor_ends_the_streak() {
        let (engine, memory) = crosslane_ring::Ends::create(4096).unwrap();
        // SAFETY: it is opened once.
        let guest = unsafe { crosslane_ring::Ends::open(memory) }.unwrap();
        assert_eq!(guest.locations.other(), None, "the engine has not told yet");
        std::thread::spawn(move || {
            // This keeps the thread on one processor.
            let here = sched_getcpu();
            let mut only = CpuSet::new();
            only.set(here);
            sched_setaffinity(None, &only).unwrap();
            let here = Location { processor: here as u32, is_crowded: false };
            let mut placement = Placement { streak: STREAK - 1, ..Placement::new(Side::Guest) };
            engine.locations.tell(here);
            placement.met(&guest.locations);
            assert_eq!(placement.streak, 0);
            assert_eq!(engine.locations.other(), Some(here));
            engine.locations.tell(Location { processor: here.processor + 1, is_crowded: true });
            placement.met(&guest.locations);
            assert_eq!(placement.streak, 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_visitor_with_a_mask_keeps_it() {
        std::thread::spawn(|| {
            let mut only = CpuSet::new();
            only.set(sched_getcpu());
            sched_setaffinity(None, &only).unwrap();
            visit(sched_getcpu() as u32);
            assert_eq!(sched_getaffinity(None).unwrap(), only);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_visitor_runs_where_it_went_and_may_leave() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            for processor in (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)) {
                // The kernel may move a visitor at any time.
                let came = (0..1000).any(|_| {
                    visit(processor as u32);
                    sched_getcpu() == processor
                });
                assert!(came, "it never came to processor {processor}");
                assert_eq!(sched_getaffinity(None).unwrap(), allowed);
            }
            // A side may report such false numbers.
            let (last, unknown) = (CpuSet::MAX_CPU as u32 - 1, u32::MAX - 1);
            [last, CpuSet::MAX_CPU as u32, unknown].into_iter().for_each(visit);
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        })
        .join()
        .unwrap();
    }
}
