//! Data that all threads use all the time. Each thread has its own part, so that no two threads
//! write the same cache line.
//!
//! A core that writes a cache line takes it from all other cores. If each of 64 workers writes one
//! shared line for each batch, this costs more than the batch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// How many parts there are. If there are more threads than parts, some threads share a part. This
/// is slower, and still correct.
const PARTS: usize = 128;
/// How long a thread uses its last sum of the other threads' counts, in nanoseconds.
const FRESH: u64 = 1_000_000;

/// Two cache lines, which processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// The numbers of threads that have ended, and the next number that no thread has had.
struct Numbers {
    free: BinaryHeap<Reverse<usize>>,
    next: usize,
}

fn numbers() -> MutexGuard<'static, Numbers> {
    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: BinaryHeap::new(), next: 0 });
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's number. It becomes free when the thread ends.
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

/// The index of this thread's part. No other living thread has it, as long as there are no more
/// threads than parts.
fn part() -> usize {
    thread_local!(static NUMBER: Number = Number::take());
    // A thread that is ending may have no number any more.
    NUMBER.try_with(|number| number.0).unwrap_or_default() % PARTS
}

/// A value for each thread that uses it.
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
    /// The values that threads have used.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(OnceLock::get).map(|line| &line.0)
    }
}

impl<T: Default> PerThread<T> {
    /// This thread's value.
    pub(crate) fn here(&self) -> &T {
        &self.0[part()].get_or_init(Box::default).0
    }
}

#[derive(Debug, Default)]
struct Share {
    count: AtomicUsize,
    /// What the other threads had when this thread looked last, and the time of that look.
    others: AtomicUsize,
    looked: AtomicU64,
}

/// Counts something that threads take and give back.
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

    /// Takes one, if fewer than `most` are taken. If several threads try at once, possibly none
    /// gets one.
    pub(crate) fn try_take(&self, most: usize) -> Option<Taken<'_>> {
        let taken = self.take();
        (self.sum() <= most).then_some(taken)
    }

    /// How many are taken: by this thread now, and by others a moment ago. `now` is in nanoseconds.
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

/// One unit of a [`Gauge`]. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Share);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, SeqCst);
    }
}

/// A cell for each thread. A thread puts a value in its cell to find it again. Other threads take
/// it from there if they need it.
///
/// The cells can be closed: then a thread puts nothing in them. A thread that closes the cells
/// and takes all values misses none. The reason is that a thread that puts a value in a cell then
/// checks whether the cells were closed. Both steps are sequentially consistent, so one of them
/// comes first.
pub(crate) struct Cells<T: Send> {
    cells: Box<[Line<AtomicPtr<T>>]>,
    closed: AtomicBool,
}

impl<T: Send> Default for Cells<T> {
    fn default() -> Self {
        Self { cells: (0..PARTS).map(|_| Line::default()).collect(), closed: AtomicBool::new(false) }
    }
}

impl<T: Send> Cells<T> {
    fn from(cell: &AtomicPtr<T>) -> Option<Box<T>> {
        // A load costs less than a swap, and most cells are empty when all are searched.
        if cell.load(SeqCst).is_null() {
            return None;
        }
        let thing = cell.swap(std::ptr::null_mut(), SeqCst);
        // SAFETY: `put` made it from a box, and the exchange gave it to this thread alone.
        (!thing.is_null()).then(|| unsafe { Box::from_raw(thing) })
    }

    /// Takes the value in this thread's cell, if the cells are open.
    pub(crate) fn take(&self) -> Option<Box<T>> {
        if self.closed.load(SeqCst) {
            return None;
        }
        Self::from(&self.cells[part()].0)
    }

    /// Puts a value in this thread's cell.
    ///
    /// # Errors
    /// With a value that does not fit in the cell: this one, or another one.
    pub(crate) fn put(&self, thing: Box<T>) -> Result<(), Box<T>> {
        let cell = &self.cells[part()].0;
        if self.closed.load(SeqCst) {
            return Err(thing);
        }
        let thing = Box::into_raw(thing);
        if cell.compare_exchange(std::ptr::null_mut(), thing, SeqCst, SeqCst).is_err() {
            // SAFETY: it was made from a box, and is not in the cell.
            return Err(unsafe { Box::from_raw(thing) });
        }
        if self.closed.load(SeqCst)
            && let Some(thing) = Self::from(cell)
        {
            return Err(thing);
        }
        Ok(())
    }

    /// Closes or opens the cells. Only one thread does this at a time.
    pub(crate) fn close(&self, closed: bool) {
        if self.closed.load(SeqCst) != closed {
            self.closed.store(closed, SeqCst);
        }
    }

    /// Takes a value from any cell.
    pub(crate) fn take_any(&self) -> Option<Box<T>> {
        self.cells.iter().find_map(|line| Self::from(&line.0))
    }

    /// How many cells have a value.
    pub(crate) fn count(&self) -> usize {
        self.cells.iter().filter(|line| !line.0.load(Relaxed).is_null()).count()
    }
}

impl<T: Send> Drop for Cells<T> {
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
        // Threads that end leave their parts to other threads.
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

    /// One thread closes the cells and takes all values, while another thread gives a value back.
    /// The first thread finds that value, or the second thread gets it back.
    #[test]
    fn nothing_stays_in_cells_that_were_closed() {
        for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let cells = Cells::default();
            thread::scope(|scope| {
                let giver = scope.spawn(|| cells.put(Box::new(round)).err());
                cells.close(true);
                let taken = cells.take_any();
                let refused = giver.join().unwrap();
                assert_eq!(taken.or(refused), Some(Box::new(round)));
                assert_eq!(cells.count(), 0);
            });
        }
    }

    #[test]
    fn what_lies_in_a_cell_is_found_by_its_thread_first() {
        let cells = Cells::default();
        assert!(cells.put(Box::new(1)).is_ok());
        assert_eq!(cells.put(Box::new(2)), Err(Box::new(2)), "one thing each");
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(cells.take(), None);
                assert!(cells.put(Box::new(3)).is_ok());
            });
        });
        assert_eq!((cells.count(), cells.take()), (2, Some(Box::new(1))));
        assert_eq!((cells.take_any(), cells.take_any()), (Some(Box::new(3)), None));
    }
}
