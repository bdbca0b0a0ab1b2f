//! Memory for buffers, and numbers of other widths in them.

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

/// So many zeros, or MemoryError.
pub(super) fn zeros<T: bytemuck::Zeroable + Copy>(count: usize) -> PyResult<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| {
        let bytes = count.saturating_mul(size_of::<T>());
        PyMemoryError::new_err(format!("there is no memory for {bytes} bytes of a batch"))
    })
}

/// A copy of bytes at an address that is a multiple of eight.
pub(super) fn copy(bytes: &[u8]) -> PyResult<Vec<u64>> {
    let mut words = zeros(bytes.len().div_ceil(8).max(1))?;
    bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    Ok(words)
}

/// A 128-bit integer as the 256 bits of a `decimal256`.
pub(super) fn widen(low: [u8; 16], negative: bool) -> [u8; 32] {
    let mut wide = [if negative { 0xFF } else { 0 }; 32];
    wide[..16].copy_from_slice(&low);
    wide
}
