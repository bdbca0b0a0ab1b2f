//! The ring itself: positions, frames, the end-of-ring marker.

use crate::park;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The word that says "the next frame begins at place 0". No frame has it, because its length would
/// exceed every ring.
pub const END_OF_RING: u64 = u64::MAX;
const WORD: u64 = 8;

/// What the other side of a ring did wrong.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// A position moved backwards, past the other side's, or off its alignment.
    #[error("the ring's {which} position {value} is impossible (own position {own})")]
    Position {
        /// `read` or `write`.
        which: &'static str,
        /// The value that was found.
        value: u64,
        /// The finder's own position.
        own: u64,
    },
    /// A frame's length reaches past what was published.
    #[error("a frame of {length} bytes at position {at} reaches past the published data")]
    Length {
        /// The length that the frame claims.
        length: u64,
        /// Where the frame begins.
        at: u64,
    },
    /// The frame can never fit; it has to travel outside the ring.
    #[error("a frame of {length} bytes does not fit a ring (at most {most})")]
    TooLarge {
        /// The length asked for.
        length: usize,
        /// The most that fits.
        most: usize,
    },
}

/// One cache line, so that the two sides do not invalidate each other's.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// The shared words of one ring, at its start in shared memory.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RingHeader {
    /// Bytes published. Stored by the producer.
    pub(crate) write: Line<AtomicU64>,
    /// Bytes consumed. Stored by the consumer.
    pub(crate) read: Line<AtomicU64>,
    /// 1 while the consumer sleeps for data.
    pub(crate) data_wait: Line<AtomicU32>,
    /// 1 while the producer sleeps for space.
    pub(crate) space_wait: Line<AtomicU32>,
}

/// Where a ring lives.
///
/// # Safety
/// `capacity` must be a power of two, at least 64 and the same for both sides; `load` and `store`
/// must access `at .. at + length` of the data and nothing else whenever that lies inside the
/// capacity.
pub unsafe trait Memory {
    /// The ring's shared words.
    fn header(&self) -> &RingHeader;
    /// The size of the data in bytes.
    fn capacity(&self) -> usize;
    /// Copies bytes out of the data.
    ///
    /// # Safety
    /// `at + out.len()` must not exceed the capacity.
    unsafe fn load(&self, at: usize, out: &mut [u8]);
    /// Copies bytes into the data.
    ///
    /// # Safety
    /// `at + bytes.len()` must not exceed the capacity, and the range must belong to the producer.
    unsafe fn store(&self, at: usize, bytes: &[u8]);
}

fn framed(length: usize) -> u64 {
    WORD + (length as u64).next_multiple_of(WORD)
}

/// Room for one frame, not yet published.
#[derive(Debug)]
#[must_use = "an uncommitted grant publishes nothing"]
pub struct Grant {
    start: u64,
    length: usize,
}

impl Grant {
    /// The most bytes that the frame may have.
    pub fn length(&self) -> usize {
        self.length
    }
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer<M> {
    pub(crate) memory: M,
    write: u64,
    read_seen: u64,
}

impl<M: Memory> Producer<M> {
    /// # Safety
    /// There must be no other producer of this ring, in this process or another, and the ring must
    /// be fresh (all positions 0).
    pub unsafe fn new(memory: M) -> Self {
        Self { memory, write: 0, read_seen: 0 }
    }

    /// The longest frame that this ring takes.
    pub fn most(&self) -> usize {
        self.memory.capacity() / 2 - WORD as usize
    }

    /// Room for a frame of at most `length` bytes, or `None` while the ring is too full.
    ///
    /// # Errors
    /// [`RingError::TooLarge`] if the frame can never fit; [`RingError::Position`] if the consumer
    /// stored an impossible position.
    pub fn reserve(&mut self, length: usize) -> Result<Option<Grant>, RingError> {
        if length > self.most() {
            return Err(RingError::TooLarge { length, most: self.most() });
        }
        let capacity = self.memory.capacity() as u64;
        let rest = capacity - self.write % capacity;
        let frame = framed(length);
        let skip = if rest < frame { rest } else { 0 };
        if capacity - (self.write - self.read_seen) < skip + frame {
            self.look()?;
            if capacity - (self.write - self.read_seen) < skip + frame {
                return Ok(None);
            }
        }
        Ok(Some(Grant { start: self.write + skip, length }))
    }

    fn look(&mut self) -> Result<(), RingError> {
        let read = self.memory.header().read.0.load(Ordering::Acquire);
        if read < self.read_seen || read > self.write || !read.is_multiple_of(WORD) {
            return Err(RingError::Position { which: "read", value: read, own: self.write });
        }
        self.read_seen = read;
        Ok(())
    }

    /// Where the frame's bytes go, as a place in the data.
    pub(crate) fn place(&self, grant: &Grant) -> usize {
        (grant.start % self.memory.capacity() as u64) as usize + WORD as usize
    }

    /// Copies `bytes` to the start of the frame.
    ///
    /// # Panics
    /// If `bytes` is longer than the grant.
    pub fn fill(&mut self, grant: &Grant, bytes: &[u8]) {
        assert!(bytes.len() <= grant.length, "{} bytes for a grant of {}", bytes.len(), grant.length);
        // SAFETY: `reserve` made sure that the grant lies inside the data and is not published.
        unsafe { self.memory.store(self.place(grant), bytes) }
    }

    /// Publishes the first `length` bytes of the grant as one frame, and wakes the consumer if it
    /// sleeps.
    ///
    /// # Panics
    /// If `length` exceeds the grant.
    pub fn commit(&mut self, grant: Grant, length: usize, tag: u32) {
        assert!(length <= grant.length, "{length} bytes committed of a grant of {}", grant.length);
        let capacity = self.memory.capacity() as u64;
        let word = length as u64 | u64::from(tag) << 32;
        // SAFETY: both words lie in the part of the data that `reserve` found free; the marker is
        // only written where the data's end was too short for the frame, which leaves a word.
        unsafe {
            if grant.start != self.write {
                self.memory.store((self.write % capacity) as usize, &END_OF_RING.to_le_bytes());
            }
            self.memory.store((grant.start % capacity) as usize, &word.to_le_bytes());
        }
        self.write = grant.start + framed(length);
        let header = self.memory.header();
        header.write.0.store(self.write, Ordering::Release);
        park::wake(&header.data_wait.0);
    }

    /// Copies `bytes` into the ring as one frame; `false` while the ring is too full.
    ///
    /// # Errors
    /// As [`Producer::reserve`].
    pub fn push(&mut self, bytes: &[u8], tag: u32) -> Result<bool, RingError> {
        let Some(grant) = self.reserve(bytes.len())? else { return Ok(false) };
        self.fill(&grant, bytes);
        self.commit(grant, bytes.len(), tag);
        Ok(true)
    }

    /// Whether the consumer has taken something since the last look (or stored nonsense, which the
    /// next `reserve` reports).
    pub(crate) fn has_news(&self) -> bool {
        self.memory.header().read.0.load(Ordering::Acquire) != self.read_seen
    }
}

/// A published frame that has not been released yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    start: u64,
    /// Bytes in the frame.
    pub length: usize,
    /// What the producer said the frame is.
    pub tag: u32,
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    pub(crate) memory: M,
    read: u64,
    write_seen: u64,
}

impl<M: Memory> Consumer<M> {
    /// # Safety
    /// There must be no other consumer of this ring, in this process or another, and the ring must
    /// be fresh (all positions 0).
    pub unsafe fn new(memory: M) -> Self {
        Self { memory, read: 0, write_seen: 0 }
    }

    /// The oldest frame, or `None` while the ring is empty.
    ///
    /// # Errors
    /// [`RingError`] if the producer stored a position or a length that cannot be.
    pub fn peek(&mut self) -> Result<Option<Frame>, RingError> {
        let capacity = self.memory.capacity() as u64;
        if self.write_seen == self.read {
            let write = self.memory.header().write.0.load(Ordering::Acquire);
            if write < self.read || write - self.read > capacity || !write.is_multiple_of(WORD) {
                return Err(RingError::Position { which: "write", value: write, own: self.read });
            }
            if write == self.read {
                return Ok(None);
            }
            self.write_seen = write;
        }
        let mut start = self.read;
        let mut word = self.word(start);
        if word == END_OF_RING {
            start = start.next_multiple_of(capacity);
            if start == self.read || start >= self.write_seen {
                return Err(RingError::Position { which: "end-of-ring", value: start, own: self.read });
            }
            word = self.word(start);
        }
        let length = word & u64::from(u32::MAX);
        let frame = framed(length as usize);
        if frame > self.write_seen - start || frame > capacity - start % capacity {
            return Err(RingError::Length { length, at: start });
        }
        Ok(Some(Frame { start, length: length as usize, tag: (word >> 32) as u32 }))
    }

    fn word(&self, position: u64) -> u64 {
        let mut word = [0; WORD as usize];
        let place = (position % self.memory.capacity() as u64) as usize;
        // SAFETY: positions and the capacity are multiples of eight, so a word fits at any place.
        unsafe { self.memory.load(place, &mut word) };
        u64::from_le_bytes(word)
    }

    pub(crate) fn place(&self, frame: &Frame) -> usize {
        (frame.start % self.memory.capacity() as u64) as usize + WORD as usize
    }

    /// Copies the first `out.len()` bytes of the frame.
    ///
    /// # Panics
    /// If `out` is longer than the frame.
    pub fn copy(&self, frame: &Frame, out: &mut [u8]) {
        assert!(out.len() <= frame.length, "{} bytes of a frame of {}", out.len(), frame.length);
        // SAFETY: `peek` made sure that the frame lies inside the data.
        unsafe { self.memory.load(self.place(frame), out) }
    }

    /// Gives the frame's space, and all before it, back to the producer.
    pub fn release(&mut self, frame: Frame) {
        self.read = frame.start + framed(frame.length);
        let header = self.memory.header();
        header.read.0.store(self.read, Ordering::Release);
        park::wake(&header.space_wait.0);
    }

    /// Takes the oldest frame as an owned copy.
    ///
    /// # Errors
    /// As [`Consumer::peek`].
    pub fn pop(&mut self) -> Result<Option<(u32, Vec<u8>)>, RingError> {
        let Some(frame) = self.peek()? else { return Ok(None) };
        let mut bytes = vec![0; frame.length];
        self.copy(&frame, &mut bytes);
        self.release(frame);
        Ok(Some((frame.tag, bytes)))
    }

    /// Whether something was published that was not taken (or nonsense stored, which `peek`
    /// reports).
    pub fn has_news(&self) -> bool {
        self.memory.header().write.0.load(Ordering::Acquire) != self.read
    }
}
