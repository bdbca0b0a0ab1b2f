//! A lane's shared memory: a header and two rings in one sealed memfd.

use crate::ring::{Consumer, Grant, Line, Memory, Producer, RingHeader};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"xlane\0\0\x03");
const LANE_HEADER: usize = 4096;
const HEADER: usize = size_of::<RingHeader>();
/// The index of the engine's side, and of the ring that the engine writes to.
const ENGINE: usize = 0;
/// The index of the guest's side, and of the ring that the guest writes to.
const GUEST: usize = 1;

/// Why shared memory could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The system returned an error.
    #[error("shared memory: {0}")]
    System(#[from] rustix::io::Errno),
    /// The file descriptor is not a lane's memory, or is the memory of another version.
    #[error("the file descriptor is not a lane of this version")]
    NotALane,
}

/// The start of the memory. Both sides can write its words, so the words are only hints.
#[derive(Debug)]
#[repr(C, align(64))]
struct LaneHeader {
    magic: AtomicU64,
    capacity: AtomicU64,
    progress: AtomicU64,
    /// The time until which the guest pauses, in nanoseconds of the monotonic clock.
    rest: AtomicU64,
    /// The location of the engine's side, and the location of the guest's side.
    locations: [Line<AtomicU32>; 2],
}

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    length: usize,
    capacity: usize,
}

// SAFETY: the mapping is plain memory. The words in it are atomics, and the ring protocol gives
// each byte of the data to one side at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `Mapping::of` made the mapping with this length, and no other code uses it any
        // more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Mapping {
    /// Maps a sealed memfd. Its length must be exactly the length for the capacity.
    fn of(fd: impl AsFd, capacity: usize) -> Result<Self, RegionError> {
        let length = length(capacity);
        // SAFETY: a new shared mapping at an address that the kernel chooses.
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
        Ok(Self { base, length, capacity })
    }

    fn header(&self) -> &LaneHeader {
        // SAFETY: the mapping begins with the header, is page-aligned, and lives as long as `self`.
        unsafe { self.base.cast::<LaneHeader>().as_ref() }
    }
}

/// One ring of a lane's memory.
#[derive(Debug, Clone)]
pub struct MappedRing {
    mapping: Arc<Mapping>,
    /// Where the ring's header begins.
    start: usize,
}

impl MappedRing {
    fn data(&self) -> *mut u8 {
        // SAFETY: the header and the data of both rings lie inside the mapping.
        unsafe { self.mapping.base.as_ptr().add(self.start + HEADER) }
    }
}

// SAFETY: the capacity was checked when the region was mapped. The memfd cannot shrink. The offsets
// stay inside this ring's data.
unsafe impl Memory for MappedRing {
    fn header(&self) -> &RingHeader {
        // SAFETY: a header lies at `start`, 64-aligned, and consists of atomics.
        unsafe { &*self.mapping.base.as_ptr().add(self.start).cast() }
    }
    fn capacity(&self) -> usize {
        self.mapping.capacity
    }
    unsafe fn load(&self, at: usize, out: &mut [u8]) {
        // SAFETY: the caller keeps the range inside the capacity. The other side may change the
        // bytes after this side has checked the copy. So the compiler must not read the bytes again
        // instead of the copy. The empty instruction prevents that, because the compiler must
        // assume that it reads and writes any memory.
        unsafe {
            self.data().add(at).copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
            std::arch::asm!("/* {} */", in(reg) out.as_mut_ptr(), options(nostack, preserves_flags));
        }
    }
    unsafe fn store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the caller keeps the range inside the capacity.
        unsafe { self.data().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
    unsafe fn load_word(&self, at: usize) -> u64 {
        // SAFETY: the caller keeps the word inside the data, and `at` aligned. The data begins
        // 64-aligned.
        unsafe { AtomicU64::from_ptr(self.data().add(at).cast()).load(Ordering::Relaxed) }
    }
    unsafe fn store_word(&self, at: usize, word: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.data().add(at).cast()).store(word, Ordering::Relaxed) }
    }
}

impl Grant<'_, MappedRing> {
    /// Returns the frame's bytes, for writing them in place.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (offset, length) = (self.offset(), self.length());
        // SAFETY: `reserve` found this range free, so an honest consumer does not touch it before
        // `commit`. A hostile consumer can only garble the bytes that it reads itself.
        unsafe { std::slice::from_raw_parts_mut(self.producer.memory.data().add(offset), length) }
    }
}

impl Consumer<MappedRing> {
    /// Returns the bytes of the peeked frame, in place. Empty without a peeked frame. This is for a
    /// consumer that trusts its producer, as a guest trusts its engine.
    ///
    /// # Safety
    /// The producer must be honest. It must not write to a published frame.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: `peek` checked the range, and the caller promises that the producer is honest.
        self.shared().map_or(&[], |bytes| unsafe { bytes.as_ref() })
    }

    /// Returns the address of the bytes of the peeked frame. The bytes stay mapped as long as the
    /// consumer lives. An untrusted producer may change them at any time. So copy them, and read
    /// only the copy.
    pub fn shared(&self) -> Option<NonNull<[u8]>> {
        let (offset, length) = self.current()?;
        // SAFETY: `peek` checked the range.
        let start = unsafe { NonNull::new_unchecked(self.memory.data().add(offset)) };
        Some(NonNull::slice_from_raw_parts(start, length))
    }
}

/// The progress of the guest, for the engine's timeouts and messages.
#[derive(Debug, Clone)]
pub struct ProgressWord(Arc<Mapping>);

impl ProgressWord {
    /// Reports that the guest works on row `row` of a batch. `sequence` is the low 32 bits of the
    /// batch's number.
    #[inline]
    pub fn set(&self, sequence: u32, row: u32) {
        let value = u64::from(sequence) << 32 | u64::from(row);
        self.0.header().progress.store(value, Ordering::Relaxed);
    }

    /// Returns the word itself, for guests whose generated code writes the row. The row is the low
    /// half of the word.
    pub fn word(&self) -> &AtomicU64 {
        &self.0.header().progress
    }

    /// Reports that the guest does nothing for this time, before it tries a call again.
    pub fn rest(&self, time: Duration) {
        let end = u64::try_from((monotonic() + time).as_nanos()).unwrap_or(u64::MAX);
        self.0.header().rest.fetch_max(end, Ordering::Relaxed);
    }

    /// Returns until when the guest pauses, by its report: nanoseconds of the monotonic clock.
    pub fn rests_until(&self) -> u64 {
        self.0.header().rest.load(Ordering::Relaxed)
    }

    /// Reports that the guest begins a batch. Earlier pauses do not concern it.
    pub fn begin(&self, sequence: u32) {
        self.0.header().rest.store(0, Ordering::Relaxed);
        self.set(sequence, u32::MAX);
    }

    /// Returns the guest's last report: (sequence, row).
    pub fn get(&self) -> (u32, u32) {
        let value = self.0.header().progress.load(Ordering::Relaxed);
        ((value >> 32) as u32, value as u32)
    }
}

/// The time of the clock that all processes of a machine share.
fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Where a side of a lane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The number of the processor.
    pub processor: u32,
    /// Whether threads of other lanes or programs use the processor too.
    pub is_crowded: bool,
}

impl Location {
    const CROWDED: u32 = 1 << 31;
    /// The word of a side that runs on no particular processor.
    const ANYWHERE: u32 = u32::MAX;

    fn to_word(self) -> u32 {
        (self.processor + 1) & !Self::CROWDED | if self.is_crowded { Self::CROWDED } else { 0 }
    }

    fn from_word(word: u32) -> Option<Self> {
        if word == Self::ANYWHERE {
            return None;
        }
        let processor = (word & !Self::CROWDED).checked_sub(1)?;
        Some(Self { processor, is_crowded: word & Self::CROWDED != 0 })
    }
}

/// The words with which the two sides of a lane tell each other where they run.
#[derive(Debug)]
pub struct Locations {
    mapping: Arc<Mapping>,
    own: usize,
}

impl Locations {
    /// Tells the other side where this side runs.
    pub fn tell(&self, own: Location) {
        let word = &self.mapping.header().locations[self.own].0;
        // A store would take the line from the other side's cache.
        if word.load(Ordering::Relaxed) != own.to_word() {
            word.store(own.to_word(), Ordering::Relaxed);
        }
    }

    /// Tells the other side that threads of this side work with many lanes at a time. So neither
    /// side follows the other.
    pub fn tell_anywhere(&self) {
        self.mapping.header().locations[self.own].0.store(Location::ANYWHERE, Ordering::Relaxed);
    }

    /// Returns the last location of the other side, if the other side named a processor.
    pub fn other(&self) -> Option<Location> {
        Location::from_word(self.other_word())
    }

    /// Returns whether the other side's threads work with many lanes at a time.
    pub fn is_other_anywhere(&self) -> bool {
        self.other_word() == Location::ANYWHERE
    }

    fn other_word(&self) -> u32 {
        self.mapping.header().locations[1 - self.own].0.load(Ordering::Relaxed)
    }
}

/// The ends of one side of a lane: a producer, a consumer, and the shared words.
#[derive(Debug)]
pub struct Ends {
    /// Writes to the other side.
    pub producer: Producer<MappedRing>,
    /// Reads from the other side.
    pub consumer: Consumer<MappedRing>,
    /// The guest's progress.
    pub progress: ProgressWord,
    /// The locations of both sides.
    pub locations: Locations,
}

impl Ends {
    /// Makes a lane's memory with two rings of `capacity` bytes. Returns the engine's ends: the
    /// engine produces requests and consumes replies. Also returns the descriptor for the guest.
    ///
    /// # Errors
    /// [`RegionError::System`] if the system has no memory or descriptors left.
    ///
    /// # Panics
    /// If `capacity` is not a power of two of at least 4096.
    pub fn create(capacity: usize) -> Result<(Self, OwnedFd), RegionError> {
        assert!(capacity.is_power_of_two() && capacity >= 4096, "capacity {capacity}");
        let size = length(capacity) as u64;
        // If the file exceeded the process's limit, the kernel would raise SIGXFSZ, and that ends
        // the process.
        if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|most| size > most) {
            return Err(Errno::FBIG.into());
        }
        let fd = rustix::fs::memfd_create("crosslane-lane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, size)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of(&fd, capacity)?;
        mapping.header().capacity.store(capacity as u64, Ordering::Relaxed);
        mapping.header().magic.store(MAGIC, Ordering::Release);
        Ok((Self::new(mapping, ENGINE, GUEST), fd))
    }

    /// Opens the guest's ends of a lane's memory: the guest consumes requests and produces replies.
    ///
    /// # Safety
    /// No code may have opened this memory before, in this process or another, because each ring
    /// has one producer and one consumer.
    ///
    /// # Errors
    /// [`RegionError::NotALane`] if the descriptor is not a lane's memory.
    pub unsafe fn open(fd: impl AsFd) -> Result<Self, RegionError> {
        let size = rustix::fs::fstat(&fd)?.st_size as usize;
        let capacity = size.saturating_sub(LANE_HEADER + 2 * HEADER) / 2;
        let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK);
        if !sealed || !capacity.is_power_of_two() || capacity < 4096 || length(capacity) != size {
            return Err(RegionError::NotALane);
        }
        let mapping = Mapping::of(&fd, capacity)?;
        let header = mapping.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.capacity.load(Ordering::Relaxed) != capacity as u64
        {
            return Err(RegionError::NotALane);
        }
        Ok(Self::new(mapping, GUEST, ENGINE))
    }

    /// Returns how many bytes the lane's memory has.
    pub fn size(&self) -> usize {
        self.locations.mapping.length
    }

    fn new(mapping: Mapping, own: usize, other: usize) -> Self {
        let mapping = Arc::new(mapping);
        let ring = |index: usize| MappedRing {
            mapping: Arc::clone(&mapping),
            start: LANE_HEADER + index * (HEADER + mapping.capacity),
        };
        // SAFETY: `create` makes the memory and the engine's ends together. The caller of `open`
        // promises that it makes the guest's ends only once.
        let (producer, consumer) = unsafe { (Producer::new(ring(own)), Consumer::new(ring(other))) };
        let locations = Locations { mapping: Arc::clone(&mapping), own };
        Self { producer, consumer, progress: ProgressWord(mapping), locations }
    }
}

fn length(capacity: usize) -> usize {
    LANE_HEADER + 2 * (HEADER + capacity)
}
