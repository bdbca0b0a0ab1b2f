//! The ring itself: positions, frames, the end-of-ring marker.

use crate::park;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The word that means "the next frame begins at offset 0". No frame has this word, because its
/// length would exceed every ring.
pub const END_OF_RING: u64 = u64::MAX;
const WORD: u64 = 8;
/// An empty ring continues at offset 0 after this fraction of it was used. The fraction has room
/// for several usual frames, and is small enough to stay in a core's cache.
const FRONT: u64 = 16;

/// An error of a ring.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The other side stored a position that is smaller than before, past this side's position, or
    /// not aligned.
    #[error("the ring's {which} position {value} is impossible (own position {own})")]
    Position {
        /// `read` or `write`.
        which: &'static str,
        /// The value that was found.
        value: u64,
        /// The position of the side that found the error.
        own: u64,
    },
    /// A frame's length reaches past the published data.
    #[error("a frame of {length} bytes at position {at} reaches past the published data")]
    Length {
        /// The length in the frame's word.
        length: u64,
        /// Where the frame begins.
        at: u64,
    },
    /// The frame can never fit. The caller must send it outside of the ring.
    #[error("a frame of {length} bytes does not fit a ring (at most {most})")]
    TooLarge {
        /// The requested length.
        length: usize,
        /// The longest length that fits.
        most: usize,
    },
}

/// A value in a cache line of its own, so the two sides do not invalidate each other's lines.
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

/// The memory of a ring.
///
/// # Safety
/// `capacity` must be a power of two, at least 64, and the same for both sides. If `at .. at +
/// length` lies inside the capacity, `load` and `store` must access this range of the data and
/// nothing else. `load_word` and `store_word` must access only the eight bytes at `at`, once. A
/// load must return a copy that the other side cannot change any more.
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
    /// Loads one word. The other side may change the word at the same time.
    ///
    /// # Safety
    /// `at` must be a multiple of eight and less than the capacity.
    unsafe fn load_word(&self, at: usize) -> u64;
    /// Stores one word.
    ///
    /// # Safety
    /// As for `load_word`. Also, the word must belong to the producer.
    unsafe fn store_word(&self, at: usize, word: u64);
}

fn framed(length: usize) -> u64 {
    WORD + (length as u64).next_multiple_of(WORD)
}

/// Space for one frame that is not yet published. It borrows its producer.
#[derive(Debug)]
#[must_use = "an uncommitted grant publishes nothing"]
pub struct Grant<'a, M> {
    pub(crate) producer: &'a mut Producer<M>,
    start: u64,
    length: usize,
}

impl<M: Memory> Grant<'_, M> {
    /// Returns the most bytes that the frame may have.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the offset of the frame's bytes in the data.
    pub(crate) fn offset(&self) -> usize {
        (self.start % self.producer.memory.capacity() as u64) as usize + WORD as usize
    }

    /// Copies `bytes` to the start of the frame.
    ///
    /// # Panics
    /// If `bytes` is longer than the grant.
    pub fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length, "{} bytes for a grant of {}", bytes.len(), self.length);
        // SAFETY: `reserve` made sure that the grant lies inside the data and is not published.
        unsafe { self.producer.memory.store(self.offset(), bytes) }
    }

    /// Publishes the first `length` bytes of the grant as one frame, and wakes the consumer if it
    /// sleeps.
    ///
    /// # Panics
    /// If `length` exceeds the grant.
    pub fn commit(self, length: usize, tag: u32) {
        assert!(length <= self.length, "{length} bytes committed of a grant of {}", self.length);
        let Producer { memory, write, .. } = self.producer;
        let capacity = memory.capacity() as u64;
        let word = length as u64 | u64::from(tag) << 32;
        // SAFETY: both words lie in the part of the data that `reserve` found free. This includes
        // the marker's word, because positions are multiples of a word and the ring was not full.
        unsafe {
            if self.start != *write {
                memory.store_word((*write % capacity) as usize, END_OF_RING);
            }
            memory.store_word((self.start % capacity) as usize, word);
        }
        *write = self.start + framed(length);
        let header = memory.header();
        header.write.0.store(*write, Ordering::Release);
        park::wake(&header.data_wait.0);
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
    /// be new (all positions 0).
    pub unsafe fn new(memory: M) -> Self {
        Self { memory, write: 0, read_seen: 0 }
    }

    /// Returns the length of the longest frame that this ring takes.
    pub fn most(&self) -> usize {
        self.memory.capacity() / 2 - WORD as usize
    }

    /// Reserves space for a frame of at most `length` bytes. `None` while the ring is too full.
    ///
    /// # Errors
    /// [`RingError::TooLarge`] if the frame can never fit. [`RingError::Position`] if the consumer
    /// stored an impossible position.
    pub fn reserve(&mut self, length: usize) -> Result<Option<Grant<'_, M>>, RingError> {
        if length > self.most() {
            return Err(RingError::TooLarge { length, most: self.most() });
        }
        let capacity = self.memory.capacity() as u64;
        let rest = capacity - self.write % capacity;
        let frame = framed(length);
        // The memory at offset 0 was used recently, so it is in the caches. Until the consumer
        // releases this frame, there is space up to the last written offset. This is enough for at
        // least one more frame.
        let back = (2 * frame).max(capacity / FRONT) <= self.write % capacity && self.is_empty()?;
        let skip = if back || rest < frame { rest } else { 0 };
        if capacity - (self.write - self.read_seen) < skip + frame {
            self.look()?;
            if capacity - (self.write - self.read_seen) < skip + frame {
                return Ok(None);
            }
        }
        Ok(Some(Grant { start: self.write + skip, producer: self, length }))
    }

    /// Returns whether the consumer has released all frames.
    ///
    /// # Errors
    /// As [`Producer::reserve`].
    pub fn is_empty(&mut self) -> Result<bool, RingError> {
        if self.read_seen != self.write {
            self.look()?;
        }
        Ok(self.read_seen == self.write)
    }

    fn look(&mut self) -> Result<(), RingError> {
        let read = self.memory.header().read.0.load(Ordering::Acquire);
        if read < self.read_seen || read > self.write || !read.is_multiple_of(WORD) {
            return Err(RingError::Position { which: "read", value: read, own: self.write });
        }
        self.read_seen = read;
        Ok(())
    }

    /// Copies `bytes` into the ring as one frame. Returns `false` while the ring is too full.
    ///
    /// # Errors
    /// As [`Producer::reserve`].
    pub fn push(&mut self, bytes: &[u8], tag: u32) -> Result<bool, RingError> {
        let Some(mut grant) = self.reserve(bytes.len())? else { return Ok(false) };
        grant.fill(bytes);
        grant.commit(bytes.len(), tag);
        Ok(true)
    }

    /// Returns whether the consumer has released a frame since the last look. Also true for an
    /// impossible position, which the next `reserve` reports.
    pub(crate) fn has_news(&self) -> bool {
        self.memory.header().read.0.load(Ordering::Acquire) != self.read_seen
    }
}

/// A frame whose position and length were checked.
#[derive(Debug, Clone, Copy)]
struct Found {
    start: u64,
    length: usize,
    tag: u32,
}

/// The oldest published frame that the consumer has not released. Dropping this leaves the frame in
/// the ring.
#[derive(Debug)]
pub struct Frame<'a, M> {
    consumer: &'a mut Consumer<M>,
    found: Found,
}

impl<M: Memory> Frame<'_, M> {
    /// Returns the number of bytes in the frame.
    pub fn length(&self) -> usize {
        self.found.length
    }

    /// Returns the tag that the producer stored with the length. It shows the kind of the frame.
    pub fn tag(&self) -> u32 {
        self.found.tag
    }

    /// Copies the first `out.len()` bytes of the frame.
    ///
    /// # Panics
    /// If `out` is longer than the frame.
    pub fn copy(&self, out: &mut [u8]) {
        self.copy_from(0, out);
    }

    /// Copies `out.len()` bytes of the frame from byte `start` on.
    ///
    /// # Panics
    /// If the frame ends before `start + out.len()`.
    pub fn copy_from(&self, start: usize, out: &mut [u8]) {
        let length = self.found.length;
        assert!(start <= length && out.len() <= length - start, "{} bytes of a frame of {length}", out.len());
        // SAFETY: `peek` made sure that the frame lies inside the data.
        unsafe { self.consumer.memory.load(self.consumer.offset(self.found) + start, out) }
    }

    /// Gives the frame's space back to the producer.
    pub fn release(self) {
        self.consumer.release();
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    pub(crate) memory: M,
    read: u64,
    write_seen: u64,
    /// The oldest frame, after it was peeked. The producer may be hostile, so the consumer reads
    /// the frame's word only once.
    found: Option<Found>,
    /// The position of the first frame that [`Consumer::ahead`] has not returned.
    ahead: u64,
}

impl<M: Memory> Consumer<M> {
    /// # Safety
    /// There must be no other consumer of this ring, in this process or another, and the ring must
    /// be new (all positions 0).
    pub unsafe fn new(memory: M) -> Self {
        Self { memory, read: 0, write_seen: 0, found: None, ahead: 0 }
    }

    /// Returns the oldest frame, or `None` while the ring is empty. The frame stays the oldest
    /// until it is released.
    ///
    /// # Errors
    /// [`RingError`] if the producer stored an impossible position or length.
    pub fn peek(&mut self) -> Result<Option<Frame<'_, M>>, RingError> {
        if self.found.is_none() {
            self.found = self.find()?;
        }
        Ok(self.found.map(|found| Frame { consumer: self, found }))
    }

    fn find(&mut self) -> Result<Option<Found>, RingError> {
        if self.write_seen == self.read {
            self.write_seen = self.written()?;
            if self.write_seen == self.read {
                return Ok(None);
            }
        }
        self.at(self.read, self.write_seen).map(Some)
    }

    /// Returns the end of the published data.
    fn written(&self) -> Result<u64, RingError> {
        let write = self.memory.header().write.0.load(Ordering::Acquire);
        let capacity = self.memory.capacity() as u64;
        if write < self.read || write - self.read > capacity || !write.is_multiple_of(WORD) {
            return Err(RingError::Position { which: "write", value: write, own: self.read });
        }
        Ok(write)
    }

    /// Returns the frame at a position before the end of the published data.
    fn at(&self, position: u64, end: u64) -> Result<Found, RingError> {
        let capacity = self.memory.capacity() as u64;
        let mut start = position;
        let mut word = self.word(start);
        if word == END_OF_RING {
            start = start.next_multiple_of(capacity);
            if start == position || start >= end {
                return Err(RingError::Position { which: "end-of-ring", value: start, own: position });
            }
            word = self.word(start);
        }
        let length = word & u64::from(u32::MAX);
        let frame = framed(length as usize);
        if frame > end - start || frame > capacity - start % capacity {
            return Err(RingError::Length { length, at: start });
        }
        Ok(Found { start, length: length as usize, tag: (word >> 32) as u32 })
    }

    /// Copies the beginning of the next published frame that this method has not returned before.
    /// Returns the frame's length. The frames stay in the ring, so a caller can look at frames
    /// after the oldest one.
    ///
    /// # Errors
    /// As [`Consumer::peek`].
    pub fn ahead(&mut self, head: &mut [u8]) -> Result<Option<usize>, RingError> {
        self.ahead = self.ahead.max(self.read);
        let write = self.written()?;
        // A hostile producer may store a position before one that it published earlier.
        if write <= self.ahead {
            return Ok(None);
        }
        let found = self.at(self.ahead, write)?;
        self.ahead = found.start + framed(found.length);
        let copied = found.length.min(head.len());
        // SAFETY: `at` made sure that the frame lies inside the data.
        unsafe { self.memory.load(self.offset(found), &mut head[..copied]) }
        Ok(Some(found.length))
    }

    fn word(&self, position: u64) -> u64 {
        let offset = (position % self.memory.capacity() as u64) as usize;
        // SAFETY: positions and the capacity are multiples of eight, so a word fits at each offset.
        unsafe { self.memory.load_word(offset) }
    }

    fn offset(&self, found: Found) -> usize {
        (found.start % self.memory.capacity() as u64) as usize + WORD as usize
    }

    /// Returns the offset of the peeked frame in the data, and its length.
    #[cfg(not(loom))]
    pub(crate) fn current(&self) -> Option<(usize, usize)> {
        self.found.map(|found| (self.offset(found), found.length))
    }

    /// Gives the space of the peeked frame and all space before it back to the producer. Does
    /// nothing without a peeked frame.
    pub fn release(&mut self) {
        let Some(found) = self.found.take() else { return };
        self.read = found.start + framed(found.length);
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
        let mut bytes = vec![0; frame.length()];
        frame.copy(&mut bytes);
        let tag = frame.tag();
        frame.release();
        Ok(Some((tag, bytes)))
    }

    /// Returns whether the ring has a published frame that was not released. Also true for an
    /// impossible position, which `peek` reports.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.memory.header().write.0.load(Ordering::Acquire) != self.read
    }

    /// Returns whether the ring has a published frame that was neither released nor returned by
    /// [`Consumer::ahead`].
    #[inline]
    pub fn has_more(&self) -> bool {
        self.memory.header().write.0.load(Ordering::Acquire) != self.ahead.max(self.read)
    }

    /// Returns the numbers that [`Consumer::has_more`] compares: a word, and its value while there
    /// is no such frame. This is for code that checks often and cannot borrow the consumer.
    #[cfg(not(loom))]
    pub fn news(&self) -> (&AtomicU64, u64) {
        (&self.memory.header().write.0, self.ahead.max(self.read))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::heap_ring;

    fn offset<M: Memory>(producer: &mut Producer<M>, length: usize) -> usize {
        producer.reserve(length).unwrap().unwrap().offset() - WORD as usize
    }

    #[test]
    fn an_empty_ring_continues_at_its_beginning() {
        let (mut producer, mut consumer) = heap_ring(1024);
        let mut offsets = Vec::new();
        for _ in 0..6 {
            offsets.push(offset(&mut producer, 56));
            assert!(producer.push(&[1; 56], 1).unwrap());
            // Until the consumer releases this frame, the next frame lies behind it.
            assert_eq!(offset(&mut producer, 56), offsets[offsets.len() - 1] + 64);
            assert_eq!(consumer.pop(), Ok(Some((1, vec![1; 56]))));
        }
        assert_eq!(offsets, [0, 64, 0, 64, 0, 64]);
    }

    #[test]
    fn frames_of_several_lengths_use_no_more_than_three_of_the_longest() {
        let (mut producer, mut consumer) = heap_ring(1024);
        for length in [8, 100, 16, 120, 0, 64, 120, 100].repeat(20) {
            let end = offset(&mut producer, length) as u64 + framed(length);
            assert!(end <= 3 * framed(120), "a frame of {length} bytes ends at {end}");
            assert!(producer.push(&vec![2; length], 2).unwrap());
            assert_eq!(consumer.pop(), Ok(Some((2, vec![2; length]))));
        }
    }

    #[test]
    fn looking_ahead_returns_each_frame_once_and_releases_none() {
        let (mut producer, mut consumer) = heap_ring(1024);
        let mut head = [0; 8];
        // There are enough rounds for frames at the end of the ring and at its beginning.
        for round in 0..50u64 {
            assert_eq!(consumer.ahead(&mut head), Ok(None));
            for frame in 0..3u64 {
                let bytes = [(10 * round + frame).to_le_bytes(); 9].concat();
                assert!(producer.push(&bytes[..8 + 8 * frame as usize], 3).unwrap());
                assert!(consumer.has_more());
                assert_eq!(consumer.ahead(&mut head), Ok(Some(8 + 8 * frame as usize)));
                assert_eq!(u64::from_le_bytes(head), 10 * round + frame);
                assert!(consumer.has_news() && !consumer.has_more());
                assert_eq!(consumer.news().1, producer.write);
            }
            for frame in 0..3u64 {
                let (tag, bytes) = consumer.pop().unwrap().unwrap();
                assert_eq!((tag, &bytes[..8]), (3, &(10 * round + frame).to_le_bytes()[..]));
                assert!(!consumer.has_more());
            }
            // A frame that was released first is not returned.
            assert!(producer.push(&[1; 64], 1).unwrap());
            assert_eq!(consumer.pop(), Ok(Some((1, vec![1; 64]))));
        }
        // The frame is shorter than the buffer.
        assert!(producer.push(&[5; 4], 1).unwrap());
        assert_eq!((consumer.ahead(&mut head), head[..4] == [5; 4]), (Ok(Some(4)), true));
    }

    #[test]
    fn impossible_frames_after_the_oldest_are_refused() {
        let (mut producer, mut consumer) = heap_ring(256);
        assert!(producer.push(&[1; 8], 1).unwrap() && producer.push(&[1; 8], 1).unwrap());
        let memory = consumer.memory.clone();
        let header = memory.header();
        assert_eq!(consumer.ahead(&mut []), Ok(Some(8)));
        header.write.0.store(8, Ordering::Relaxed);
        assert_eq!(consumer.ahead(&mut []), Ok(None), "less than was looked at");
        header.write.0.store(24, Ordering::Relaxed);
        assert_eq!(consumer.ahead(&mut []), Err(RingError::Length { length: 8, at: 16 }));
        header.write.0.store(1000, Ordering::Relaxed);
        let error = RingError::Position { which: "write", value: 1000, own: 0 };
        assert_eq!(consumer.ahead(&mut []), Err(error));
    }

    #[test]
    fn an_impossible_read_position_of_an_empty_ring_is_refused() {
        let (mut producer, mut consumer) = heap_ring(256);
        assert!(producer.push(&[1; 40], 1).unwrap());
        consumer.pop().unwrap();
        consumer.memory.header().read.0.store(4096, Ordering::Relaxed);
        let error = producer.reserve(8).unwrap_err();
        assert_eq!(error, RingError::Position { which: "read", value: 4096, own: 48 });
    }
}
