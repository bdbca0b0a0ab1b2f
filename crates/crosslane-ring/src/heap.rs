//! A ring in ordinary memory, for two threads of one process. Tests, Miri and benchmarks use it.

use crate::ring::{Consumer, Memory, Producer, RingHeader};
use crate::sync::{AtomicU64, Ordering};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A ring's memory on the heap.
#[derive(Debug)]
pub struct Heap {
    header: RingHeader,
    /// The data as words, so the words of frames are aligned.
    data: Box<[UnsafeCell<u64>]>,
}

impl Heap {
    /// Returns the address of a range of the data.
    fn at(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at + length <= self.data.len() * 8, "{length} bytes at {at}");
        UnsafeCell::raw_get(self.data.as_ptr()).cast::<u8>().wrapping_add(at)
    }
}

// SAFETY: the ring protocol gives each byte to one side at a time.
unsafe impl Sync for Heap {}

// SAFETY: `heap_ring` makes the capacity a power of two, and both sides share one `Heap`.
unsafe impl Memory for Arc<Heap> {
    fn header(&self) -> &RingHeader {
        &self.header
    }
    fn capacity(&self) -> usize {
        self.data.len() * 8
    }
    unsafe fn load(&self, at: usize, out: &mut [u8]) {
        // SAFETY: the range was checked, and the protocol gives it to the consumer.
        unsafe { self.at(at, out.len()).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }
    unsafe fn store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the range was checked, and the protocol gives it to the producer.
        unsafe { self.at(at, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
    unsafe fn load_word(&self, at: usize) -> u64 {
        // SAFETY: the range was checked, and the caller says that it is aligned.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()).load(Ordering::Relaxed) }
    }
    unsafe fn store_word(&self, at: usize, word: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()).store(word, Ordering::Relaxed) }
    }
}

/// Makes a ring of `capacity` bytes on the heap.
///
/// # Panics
/// If `capacity` is not a power of two of at least 64.
pub fn heap_ring(capacity: usize) -> (Producer<Arc<Heap>>, Consumer<Arc<Heap>>) {
    assert!(capacity.is_power_of_two() && capacity >= 64, "capacity {capacity}");
    let heap = Arc::new(Heap {
        header: RingHeader::default(),
        data: (0..capacity / 8).map(|_| UnsafeCell::new(0)).collect(),
    });
    // SAFETY: the ring is new, and these are its only ends.
    unsafe { (Producer::new(Arc::clone(&heap)), Consumer::new(heap)) }
}
