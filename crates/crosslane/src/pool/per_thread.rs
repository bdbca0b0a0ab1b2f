//! What all threads use all the time, without a cache line that two of them write: each thread has a part of its own.
//!
//! A core that writes a line takes it from all others. One such line that each of 64 workers writes for each batch costs
//! more than the batch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Parts of each thing. With more threads some have the same, which is slower, and as correct.
const PARTS: usize = 128;
/// For how long what was seen of others counts, in nanoseconds.
const FRESH: u64 = 1_000_000;

/// Two cache lines, which processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// The numbers that threads had which have ended, and the next one that none has had.
struct Numbers {
    free: BinaryHeap<Reverse<usize>>,
    next: usize,
}

fn numbers() -> MutexGuard<'static, Numbers> {
    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: BinaryHeap::new(), next: 0 });
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's number, free again when the thread ends.
struct Number(usize);

impl Number {
    fn take() -> Self {
        let mut numbers = numbers();
        if let Some(Reverse(free)) = numbers.free.pop() {
            return Self(free);
        }
        numbers.next += 1;
        Self(numbers.next - 1)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        numbers().free.push(Reverse(self.0));
    }
}

/// Which part is this thread's: no other living thread's, as long as there are no more than parts.
fn part() -> usize {
    thread_local!(static NUMBER: Number = Number::take());
    // A thread that ends has no number any more.
    NUMBER.try_with(|number| number.0).unwrap_or_default() % PARTS
}

/// A value for each thread that asks for one.
pub(crate) struct PerThread<T>([OnceLock<Box<Line<T>>>; PARTS]);

impl<T> Default for PerThread<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl<T: fmt::Debug> fmt::Debug for PerThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl<T> PerThread<T> {
    /// Those that were asked for.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(OnceLock::get).map(|line| &line.0)
    }
}

impl<T: Default> PerThread<T> {
    /// This thread's.
    pub(crate) fn here(&self) -> &T {
        &self.0[part()].get_or_init(Box::default).0
    }
}

#[derive(Debug, Default)]
struct Share {
    count: AtomicUsize,
    /// What the other threads had when this one looked last, and when that was.
    others: AtomicUsize,
    looked: AtomicU64,
}

/// How many there are of something that each thread takes and gives back.
#[derive(Debug, Default)]
pub(crate) struct Gauge(PerThread<Share>);

impl Gauge {
    fn sum(&self) -> usize {
        self.0.all().map(|share| share.count.load(SeqCst)).sum()
    }

    /// Takes one.
    pub(crate) fn take(&self) -> Taken<'_> {
        let share = self.0.here();
        share.count.fetch_add(1, SeqCst);
        Taken(share)
    }

    /// Takes one, if there are fewer than `most` then. If several threads try at once, none may get one.
    pub(crate) fn try_take(&self, most: usize) -> Option<Taken<'_>> {
        let taken = self.take();
        (self.sum() <= most).then_some(taken)
    }

    /// How many are taken: by this thread, and by others a moment ago. `now` is in nanoseconds.
    pub(crate) fn about(&self, now: u64) -> usize {
        let share = self.0.here();
        let own = share.count.load(Relaxed);
        if now.saturating_sub(share.looked.load(Relaxed)) > FRESH {
            share.others.store(self.sum().saturating_sub(own), Relaxed);
            share.looked.store(now, Relaxed);
        }
        share.others.load(Relaxed) + own
    }
}

/// One that was taken, given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Share);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, SeqCst);
    }
}

/// A shelf for each thread, on which it puts a thing to find it again. Others take it from there if they need it.
///
/// They can be closed: then nothing is put on them. Who closes them and takes all that is there has all, because who puts
/// something there looks afterwards whether they were closed. Both are sequentially consistent: one of the two comes first.
pub(crate) struct Shelves<T: Send> {
    shelves: Box<[Line<AtomicPtr<T>>]>,
    closed: AtomicBool,
}

impl<T: Send> Default for Shelves<T> {
    fn default() -> Self {
        Self { shelves: (0..PARTS).map(|_| Line::default()).collect(), closed: AtomicBool::new(false) }
    }
}

impl<T: Send> Shelves<T> {
    fn from(shelf: &AtomicPtr<T>) -> Option<Box<T>> {
        // To look costs less than to write, and most are empty where many are looked at.
        if shelf.load(SeqCst).is_null() {
            return None;
        }
        let thing = shelf.swap(std::ptr::null_mut(), SeqCst);
        // SAFETY: `put` made it from a box, and the exchange gave it to this thread alone.
        (!thing.is_null()).then(|| unsafe { Box::from_raw(thing) })
    }

    /// What lies on this thread's shelf, if they are open.
    pub(crate) fn take(&self) -> Option<Box<T>> {
        if self.closed.load(SeqCst) {
            return None;
        }
        Self::from(&self.shelves[part()].0)
    }

    /// Puts a thing on this thread's shelf.
    ///
    /// # Errors
    /// With a thing for which there is no room: this one, or another.
    pub(crate) fn put(&self, thing: Box<T>) -> Result<(), Box<T>> {
        let shelf = &self.shelves[part()].0;
        if self.closed.load(SeqCst) {
            return Err(thing);
        }
        let thing = Box::into_raw(thing);
        if shelf.compare_exchange(std::ptr::null_mut(), thing, SeqCst, SeqCst).is_err() {
            // SAFETY: it was made from a box, and is not on the shelf.
            return Err(unsafe { Box::from_raw(thing) });
        }
        if self.closed.load(SeqCst)
            && let Some(thing) = Self::from(shelf)
        {
            return Err(thing);
        }
        Ok(())
    }

    /// Closes or opens them. One thread does it at a time.
    pub(crate) fn close(&self, closed: bool) {
        if self.closed.load(SeqCst) != closed {
            self.closed.store(closed, SeqCst);
        }
    }

    /// Takes what lies on any shelf.
    pub(crate) fn take_any(&self) -> Option<Box<T>> {
        self.shelves.iter().find_map(|line| Self::from(&line.0))
    }

    /// How many have something on them.
    pub(crate) fn count(&self) -> usize {
        self.shelves.iter().filter(|line| !line.0.load(Relaxed).is_null()).count()
    }
}

impl<T: Send> Drop for Shelves<T> {
    fn drop(&mut self) {
        while self.take_any().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn threads_that_live_together_have_parts_of_their_own() {
        let all = Barrier::new(32);
        let parts: HashSet<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..32)
                .map(|_| {
                    scope.spawn(|| {
                        let part = part();
                        all.wait();
                        part
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(parts.len(), 32);
        // Those that end leave theirs to others.
        let all: HashSet<usize> = (0..PARTS).map(|_| thread::spawn(part).join().unwrap()).collect();
        assert!(all.len() < PARTS / 2, "{}", all.len());
    }

    #[test]
    fn no_two_threads_write_a_line() {
        let stats = crate::stats::FunctionStats::default();
        let here = std::ptr::from_ref(stats.here()) as usize;
        let there =
            thread::scope(|scope| scope.spawn(|| std::ptr::from_ref(stats.here()) as usize).join().unwrap());
        assert!(here.abs_diff(there) >= 128 && here.is_multiple_of(128), "{here} and {there}");
    }

    #[test]
    fn a_gauge_counts_what_all_threads_have() {
        let gauge = Gauge::default();
        let (one, two) = (gauge.take(), gauge.take());
        thread::scope(|scope| {
            scope.spawn(|| {
                let three = gauge.try_take(3).unwrap();
                assert!(gauge.try_take(3).is_none());
                assert_eq!(gauge.about(2 * FRESH), 3);
                drop(three);
                assert_eq!(gauge.about(2 * FRESH), 2, "its own are counted at once");
            });
        });
        drop(one);
        assert_eq!(gauge.sum(), 1);
        drop(two);
        assert_eq!(gauge.sum(), 0);
    }

    /// Who needs a thing closes the shelves and takes all. What a thread has given back by then is among it, or comes
    /// back to that thread.
    #[test]
    fn nothing_stays_on_shelves_that_were_closed() {
        for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let shelves = Shelves::default();
            thread::scope(|scope| {
                let giver = scope.spawn(|| shelves.put(Box::new(round)).err());
                shelves.close(true);
                let taken = shelves.take_any();
                let refused = giver.join().unwrap();
                assert_eq!(taken.or(refused), Some(Box::new(round)));
                assert_eq!(shelves.count(), 0);
            });
        }
    }

    #[test]
    fn what_lies_on_a_shelf_is_found_by_its_thread_first() {
        let shelves = Shelves::default();
        assert!(shelves.put(Box::new(1)).is_ok());
        assert_eq!(shelves.put(Box::new(2)), Err(Box::new(2)), "one thing each");
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(shelves.take(), None);
                assert!(shelves.put(Box::new(3)).is_ok());
            });
        });
        assert_eq!((shelves.count(), shelves.take()), (2, Some(Box::new(1))));
        assert_eq!((shelves.take_any(), shelves.take_any()), (Some(Box::new(3)), None));
    }
}
