//! DuckDB's strings, as they lie in its vectors.

/// The most bytes that a string holds in place.
pub(crate) const INLINE: usize = 12;

/// DuckDB's string: its length, then up to 12 bytes, or the first four of more and their address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct DuckString([u8; 16]);

impl DuckString {
    /// A string of up to 12 bytes in place, a longer one as its first bytes and its address.
    pub(crate) fn new(bytes: &[u8], address: *const u8) -> Self {
        let length = bytes.len() as u32;
        let rest = match bytes.first_chunk::<4>() {
            Some(prefix) if bytes.len() > INLINE => {
                u128::from(u32::from_le_bytes(*prefix)) | u128::from(address as u64) << 32
            }
            _ => bytes.iter().rev().fold(0, |rest, byte| rest << 8 | u128::from(*byte)),
        };
        Self((u128::from(length) | rest << 32).to_le_bytes())
    }

    #[inline]
    pub(crate) fn length(&self) -> usize {
        u128::from_le_bytes(self.0) as u32 as usize
    }

    /// Where the bytes of a string are that does not hold them in place.
    #[inline]
    pub(crate) fn address(&self) -> *const u8 {
        (u128::from_le_bytes(self.0) >> 64) as u64 as *const u8
    }

    /// # Safety
    /// The string must be DuckDB's own, and alive.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        let length = self.length();
        let start = if length <= INLINE { self.0[4..].as_ptr() } else { self.address() };
        // SAFETY: a string of up to 12 bytes lies behind its length, a longer one at its address.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}
