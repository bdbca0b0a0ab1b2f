//! A growable buffer that begins at a multiple of eight bytes, as batches need.

use std::collections::TryReserveError;

/// A buffer that holds one batch after another.
#[derive(Debug, Default)]
pub struct Aligned {
    words: Vec<u64>,
    length: usize,
}

/// The most bytes that stay allocated for the next batch.
const KEEP: usize = 4 << 20;

impl Aligned {
    /// Makes the buffer `length` bytes long. The bytes have the content of earlier batches.
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
            // The old memory is freed first, so that both are never held at once. Its content is
            // not needed any more. Small buffers grow to the next power of two.
            self.words = Vec::new();
            self.words.try_reserve_exact(words.next_power_of_two().min(words.max(KEEP / 8)))?;
            self.words.resize(words, 0);
        }
        self.length = length;
        Ok(&mut bytemuck::cast_slice_mut(&mut self.words)[..length])
    }

    /// Shortens the buffer to its first bytes. It keeps the memory of the others.
    pub(crate) fn cut(&mut self, length: usize) {
        debug_assert!(length <= self.length);
        self.length = length;
    }

    /// Adds `more` bytes, which the buffer had before it was cut. They have their old content.
    pub(crate) fn append(&mut self, more: usize) -> &mut [u8] {
        let start = self.length;
        self.length += more;
        &mut bytemuck::cast_slice_mut(&mut self.words)[start..self.length]
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    /// Its bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}
