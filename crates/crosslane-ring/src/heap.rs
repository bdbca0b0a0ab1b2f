//! A ring in ordinary memory, for two threads of one process: tests, Miri, benchmarks.

use crate::ring::{Consumer, Memory, Producer, RingHeader};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A ring's memory on the heap.
#[derive(Debug)]
pub struct Heap {
    header: RingHeader,
    data: Box<[UnsafeCell<u8>]>,
}

// SAFETY: the ring protocol gives each byte to one side at a time.
unsafe impl Sync for Heap {}

// SAFETY: `heap_ring` makes the capacity a power of two; both sides share one `Heap`.
unsafe impl Memory for Arc<Heap> {
    fn header(&self) -> &RingHeader {
        &self.header
    }
    fn capacity(&self) -> usize {
        self.data.len()
    }
    unsafe fn load(&self, at: usize, out: &mut [u8]) {
        let from = self.data[at..at + out.len()].as_ptr().cast::<u8>();
        // SAFETY: the slice above checked the range, and the protocol gives it to the consumer.
        unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }
    unsafe fn store(&self, at: usize, bytes: &[u8]) {
        let to = UnsafeCell::raw_get(self.data[at..at + bytes.len()].as_ptr());
        // SAFETY: the slice above checked the range, and the protocol gives it to the producer.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}

/// A ring of `capacity` bytes on the heap.
///
/// # Panics
/// If `capacity` is not a power of two of at least 64.
pub fn heap_ring(capacity: usize) -> (Producer<Arc<Heap>>, Consumer<Arc<Heap>>) {
    assert!(capacity.is_power_of_two() && capacity >= 64, "capacity {capacity}");
    let heap = Arc::new(Heap {
        header: RingHeader::default(),
        data: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
    });
    // SAFETY: the ring is fresh, and these are its only ends.
    unsafe { (Producer::new(Arc::clone(&heap)), Consumer::new(heap)) }
}
