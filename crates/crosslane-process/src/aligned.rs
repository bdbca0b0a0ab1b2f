//! A growable buffer that begins at a multiple of eight, as batches need.

#[derive(Debug, Default)]
pub(crate) struct Aligned {
    words: Vec<u64>,
    length: usize,
}

/// A buffer that grew beyond this for one batch is not kept for the next.
const KEEP: usize = 4 << 20;

impl Aligned {
    /// Makes room for `length` bytes, whose content is left over from before.
    pub(crate) fn resize(&mut self, length: usize) -> &mut [u8] {
        if length <= KEEP && self.words.len() * 8 > KEEP {
            self.words = Vec::new();
        }
        let words = length.div_ceil(8);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        self.length = length;
        &mut bytemuck::cast_slice_mut(&mut self.words)[..length]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }
}
