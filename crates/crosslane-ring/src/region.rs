//! A lane's shared memory: a control page and two rings in one sealed memfd.

use crate::ring::{Consumer, Frame, Grant, Memory, Producer, RingHeader};
use crate::sync::{AtomicU64, Ordering};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const MAGIC: u64 = u64::from_le_bytes(*b"xlane\0\0\x01");
const CONTROL: usize = 4096;
const HEADER: usize = size_of::<RingHeader>();

/// Why shared memory could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The system refused.
    #[error("shared memory: {0}")]
    System(#[from] rustix::io::Errno),
    /// The file descriptor is not a lane's memory, or of another version.
    #[error("the file descriptor is not a lane of this version")]
    NotALane,
}

/// The control page. Both sides use it, so its words are hints: nothing depends on their truth.
#[derive(Debug)]
#[repr(C, align(64))]
struct ControlPage {
    magic: AtomicU64,
    capacity: AtomicU64,
    progress: AtomicU64,
}

struct Mapping {
    base: NonNull<u8>,
    length: usize,
    capacity: usize,
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("length", &self.length).finish_non_exhaustive()
    }
}

// SAFETY: the mapping is plain memory; the words in it are atomics, and the ring protocol gives
// each byte of the data to one side at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `Region::map` with this length, and the last user is gone.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Mapping {
    fn control(&self) -> &ControlPage {
        // SAFETY: the mapping begins with the control page, is page-aligned and lives as long as self.
        unsafe { self.base.cast::<ControlPage>().as_ref() }
    }
}

/// One ring of a [`Region`], as its ends see it.
#[derive(Debug, Clone)]
pub struct Mapped {
    mapping: Arc<Mapping>,
    /// Where the ring's header begins.
    start: usize,
}

impl Mapped {
    fn data(&self) -> *mut u8 {
        // SAFETY: the header and the data of both rings lie inside the mapping.
        unsafe { self.mapping.base.as_ptr().add(self.start + HEADER) }
    }
}

// SAFETY: the capacity was checked when the region was mapped; the memfd cannot shrink; the offsets
// stay inside this ring's data.
unsafe impl Memory for Mapped {
    fn header(&self) -> &RingHeader {
        // SAFETY: a header lies at `start`, 64-aligned, and consists of atomics.
        unsafe { &*self.mapping.base.as_ptr().add(self.start).cast() }
    }
    fn capacity(&self) -> usize {
        self.mapping.capacity
    }
    unsafe fn load(&self, at: usize, out: &mut [u8]) {
        // SAFETY: the caller keeps the range inside the capacity.
        unsafe { self.data().add(at).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }
    unsafe fn store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the caller keeps the range inside the capacity.
        unsafe { self.data().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}

impl Producer<Mapped> {
    /// The frame's bytes, to be written in place.
    pub fn bytes(&mut self, grant: &Grant) -> &mut [u8] {
        let place = self.place(grant);
        // SAFETY: `reserve` found this range free, so an honest consumer does not touch it before
        // `commit`; a hostile one can only garble what it reads itself.
        unsafe { std::slice::from_raw_parts_mut(self.memory.data().add(place), grant.length()) }
    }
}

impl Consumer<Mapped> {
    /// The frame's bytes in place, for a consumer that trusts its producer (a guest its engine).
    ///
    /// # Safety
    /// The producer must be honest: it must not write to a published frame.
    pub unsafe fn bytes(&self, frame: &Frame) -> &[u8] {
        // SAFETY: `peek` checked the range; the caller vouches for the producer.
        unsafe { std::slice::from_raw_parts(self.memory.data().add(self.place(frame)), frame.length) }
    }
}

/// What the guest is working on, for the engine's timeouts and messages.
#[derive(Debug, Clone)]
pub struct Control(Arc<Mapping>);

impl Control {
    /// Says that the guest works on `row` of batch `sequence` (its low 32 bits).
    pub fn set_progress(&self, sequence: u32, row: u32) {
        let value = u64::from(sequence) << 32 | u64::from(row);
        self.0.control().progress.store(value, Ordering::Relaxed);
    }

    /// The word behind both, for guests whose code writes the row itself: the row is its low half.
    pub fn word(&self) -> &AtomicU64 {
        &self.0.control().progress
    }

    /// What the guest said last: (sequence, row).
    pub fn progress(&self) -> (u32, u32) {
        let value = self.0.control().progress.load(Ordering::Relaxed);
        ((value >> 32) as u32, value as u32)
    }
}

/// What one side of a lane holds: a producer, a consumer, the control page.
#[derive(Debug)]
pub struct Ends {
    /// Where this side writes.
    pub producer: Producer<Mapped>,
    /// Where this side reads.
    pub consumer: Consumer<Mapped>,
    /// The control page.
    pub control: Control,
}

/// A lane's mapped memory that has not been given to a side yet.
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// Makes a region with two rings of `capacity` bytes; the descriptor is for the other side.
    ///
    /// # Errors
    /// [`RegionError::System`] if the system has no memory or descriptors left.
    ///
    /// # Panics
    /// If `capacity` is not a power of two of at least 4096.
    pub fn create(capacity: usize) -> Result<(Self, OwnedFd), RegionError> {
        assert!(capacity.is_power_of_two() && capacity >= 4096, "capacity {capacity}");
        let fd = rustix::fs::memfd_create("crosslane-lane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, length(capacity) as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Self::map(&fd, capacity)?;
        mapping.control().capacity.store(capacity as u64, Ordering::Relaxed);
        mapping.control().magic.store(MAGIC, Ordering::Release);
        Ok((Self { mapping: Arc::new(mapping) }, fd))
    }

    /// Maps a region that the other side made.
    ///
    /// # Errors
    /// [`RegionError::NotALane`] if the descriptor is something else.
    pub fn open(fd: impl AsFd) -> Result<Self, RegionError> {
        let size = rustix::fs::fstat(&fd)?.st_size as usize;
        let capacity = size.saturating_sub(CONTROL + 2 * HEADER) / 2;
        let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK);
        if !sealed || !capacity.is_power_of_two() || capacity < 4096 || length(capacity) != size {
            return Err(RegionError::NotALane);
        }
        let mapping = Self::map(&fd, capacity)?;
        let control = mapping.control();
        if control.magic.load(Ordering::Acquire) != MAGIC
            || control.capacity.load(Ordering::Relaxed) != capacity as u64
        {
            return Err(RegionError::NotALane);
        }
        Ok(Self { mapping: Arc::new(mapping) })
    }

    fn map(fd: impl AsFd, capacity: usize) -> Result<Mapping, RegionError> {
        let length = length(capacity);
        // SAFETY: a new shared mapping of a sealed memfd of exactly this length; nothing else is
        // at that address.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(RegionError::NotALane)?;
        Ok(Mapping { base, length, capacity })
    }

    /// The engine's ends: it produces requests and consumes replies.
    pub fn engine(self) -> Ends {
        self.ends(0, 1)
    }

    /// The guest's ends: it consumes requests and produces replies.
    pub fn guest(self) -> Ends {
        self.ends(1, 0)
    }

    fn ends(self, produces: usize, consumes: usize) -> Ends {
        let ring = |index: usize| Mapped {
            mapping: Arc::clone(&self.mapping),
            start: CONTROL + index * (HEADER + self.mapping.capacity),
        };
        // SAFETY: `self` is consumed, so this mapping has no other ends; the other side opens the
        // descriptor once, for the opposite ends.
        let (producer, consumer) = unsafe { (Producer::new(ring(produces)), Consumer::new(ring(consumes))) };
        Ends { producer, consumer, control: Control(self.mapping) }
    }
}

fn length(capacity: usize) -> usize {
    CONTROL + 2 * (HEADER + capacity)
}
