//! A growable buffer that begins at a multiple of eight, as batches need.

use std::collections::TryReserveError;

/// A buffer for one batch after another.
#[derive(Debug, Default)]
pub struct Aligned {
    words: Vec<u64>,
    length: usize,
}

/// A buffer that grew beyond this for one batch is not kept for the next.
const KEEP: usize = 4 << 20;

impl Aligned {
    /// Makes room for `length` bytes, whose content is left over from before.
    ///
    /// # Errors
    /// If there is no memory. The buffer is empty then.
    pub fn resize(&mut self, length: usize) -> Result<&mut [u8], TryReserveError> {
        self.length = 0;
        if length <= KEEP && self.words.len() * 8 > KEEP {
            self.words = Vec::new();
        }
        let words = length.div_ceil(8);
        if self.words.len() < words {
            // What is in the old memory is not needed any more, so both are never held at once.
            // Small buffers grow in leaps.
            self.words = Vec::new();
            self.words.try_reserve_exact(words.next_power_of_two().min(words.max(KEEP / 8)))?;
            self.words.resize(words, 0);
        }
        self.length = length;
        Ok(&mut bytemuck::cast_slice_mut(&mut self.words)[..length])
    }

    /// Leaves the first bytes, and the memory of the others.
    pub(crate) fn cut(&mut self, length: usize) {
        debug_assert!(length <= self.length);
        self.length = length;
    }

    /// Adds so many bytes, for which there was room before it was cut, and whose content is left over.
    pub(crate) fn append(&mut self, more: usize) -> &mut [u8] {
        let start = self.length;
        self.length += more;
        &mut bytemuck::cast_slice_mut(&mut self.words)[start..self.length]
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    /// The same, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}
