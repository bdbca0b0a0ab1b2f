//! DuckDB's strings in vectors, and how they are copied into a batch.

use std::ops::Range;

/// The most bytes that a string holds in itself.
pub(crate) const INLINE: usize = 12;

/// DuckDB's string: its length, then up to 12 bytes, or the first four of more and their address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct DuckString([u8; 16]);

impl DuckString {
    /// The string of these bytes of `all`. It holds up to 12 bytes in itself; of more it holds the
    /// first four and the address.
    ///
    /// # Panics
    /// If the range is not within `all`.
    #[inline]
    pub(crate) fn new(all: &[u8], bytes: Range<usize>, address: *const u8) -> Self {
        assert!(bytes.end <= all.len());
        let length = bytes.len();
        // Two words, composed in registers: reading a word that was just written in parts is slow.
        let (low, high) = match all[bytes.start..].first_chunk::<INLINE>() {
            Some([a, b, c, d, rest @ ..]) => {
                let (first, rest) = (u32::from_le_bytes([*a, *b, *c, *d]), u64::from_le_bytes(*rest));
                match length {
                    0..4 => (first & ((1 << (8 * length)) - 1), 0),
                    // The bytes after the string are cut off.
                    4..=INLINE => (first, rest & ((1u128 << (8 * (length - 4))) - 1) as u64),
                    _ => (first, address as u64),
                }
            }
            None => {
                let short = all[bytes].iter().rev().fold(0, |rest, byte| rest << 8 | u128::from(*byte));
                (short as u32, (short >> 32) as u64)
            }
        };
        Self((length as u128 | u128::from(low) << 32 | u128::from(high) << 64).to_le_bytes())
    }

    #[inline]
    pub(crate) fn length(&self) -> usize {
        u128::from_le_bytes(self.0) as u32 as usize
    }

    /// The address of the bytes of a string that does not hold them in itself.
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
        // SAFETY: a string of up to 12 bytes follows its length; a longer one is at its address.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}

/// Writes strings into a batch: the offset of each, and all bytes one after another.
pub(crate) struct Texts<'a> {
    offsets: &'a mut [[u8; 4]],
    out: &'a mut [u8],
    end: usize,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(offsets: &'a mut [u8], out: &'a mut [u8]) -> Self {
        Self { offsets: bytemuck::cast_slice_mut(offsets), out, end: 0 }
    }

    fn next_offsets(&mut self, count: usize) -> &'a mut [[u8; 4]] {
        let (next, rest) = std::mem::take(&mut self.offsets).split_at_mut(count);
        self.offsets = rest;
        next
    }

    /// Adds a text. An empty text after the last one stores the end.
    ///
    /// # Panics
    /// If there is no space for it.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.next_offsets(1)[0] = (self.end as i32).to_le_bytes();
        self.out[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Adds strings. A string for which `is_valid` is false may be undefined, and is added as an
    /// empty one.
    ///
    /// # Safety
    /// The others must be DuckDB's own, and alive.
    ///
    /// # Panics
    /// If there is no space for them.
    #[inline(always)]
    pub(crate) unsafe fn add_strings(&mut self, strings: &[DuckString], is_valid: impl Fn(usize) -> bool) {
        let mut end = self.end;
        for (at, (string, offset)) in strings.iter().zip(self.next_offsets(strings.len())).enumerate() {
            *offset = (end as i32).to_le_bytes();
            let length = if is_valid(at) { string.length() } else { 0 };
            let out = &mut self.out[end..];
            if length > INLINE {
                // SAFETY: a string of more than 12 bytes is at its address, and is alive, as the
                // caller says.
                copy_long(out, unsafe { std::slice::from_raw_parts(string.address(), length) });
            } else if let Some(place) = out.first_chunk_mut::<16>() {
                // The most bytes that a string holds in itself, and zeros. The next string overwrites the
                // bytes after this one.
                *place = (u128::from_le_bytes(string.0) >> 32).to_le_bytes();
            } else {
                out[..length].copy_from_slice(&string.0[4..4 + length]);
            }
            end += length;
        }
        self.end = end;
    }
}

/// Copies more than 12 bytes to the start of `out`. Most strings are short: two loads and two
/// stores, which overlap in the middle, take less time than a call.
#[inline(always)]
fn copy_long(out: &mut [u8], bytes: &[u8]) {
    let out = &mut out[..bytes.len()];
    match bytes.len() {
        16..=32 => copy_ends::<16>(out, bytes),
        33..=64 => copy_ends::<32>(out, bytes),
        8..16 => copy_ends::<8>(out, bytes),
        _ => out.copy_from_slice(bytes),
    }
}

/// Copies the first and the last `N` bytes of a string that has at most twice as many.
#[inline(always)]
fn copy_ends<const N: usize>(out: &mut [u8], bytes: &[u8]) {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<N>(), bytes.last_chunk::<N>()) {
        if let Some(place) = out.first_chunk_mut::<N>() {
            *place = *first;
        }
        if let Some(place) = out.last_chunk_mut::<N>() {
            *place = *last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_lie_in_place_or_at_their_address() {
        let all: Vec<u8> = (1..=40).collect();
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let string = DuckString::new(&all, start..end, all[start..].as_ptr());
                assert_eq!(string.length(), end - start);
                // SAFETY: the string points into the bytes, which are alive.
                assert_eq!(unsafe { string.bytes() }, &all[start..end]);
                let (place, length) = (&string.0[4..], end - start);
                if length > INLINE {
                    assert_eq!(place[..4], all[start..start + 4]);
                } else {
                    assert!(place[length..].iter().all(|byte| *byte == 0), "what lies behind {length} bytes");
                }
            }
        }
    }

    /// Lengths on both sides of the limits from which strings are kept or copied in another way.
    const LENGTHS: [usize; 19] = [0, 1, 3, 4, 7, 8, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200];

    /// The offsets and bytes of strings in a batch. The strings in `missing` may have any bytes.
    fn written(strings: &[DuckString], missing: Range<usize>, total: usize) -> (Vec<i32>, Vec<u8>) {
        let (mut offsets, mut out) = (vec![0xEE; 4 * strings.len() + 4], vec![0xEE; total]);
        let mut texts = Texts::new(&mut offsets, &mut out);
        // SAFETY: the callers' strings are alive, but for the missing ones.
        unsafe { texts.add_strings(strings, |at| !missing.contains(&at)) };
        texts.add(&[]);
        (offsets.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(), out)
    }

    #[test]
    fn strings_lie_behind_each_other_in_a_batch() {
        let all: Vec<u8> = (0..=255).collect();
        let string = |start, length| DuckString::new(&all, start..start + length, all[start..].as_ptr());
        for (a, b) in LENGTHS.into_iter().flat_map(|a| LENGTHS.map(|b| (a, b))) {
            for c in LENGTHS {
                let offsets = [0, a, a + b, a + b + c].map(|offset| offset as i32);
                let bytes = [&all[1..1 + a], &all[2..2 + b], &all[3..3 + c]].concat();
                let strings = [string(1, a), string(2, b), string(3, c)];
                assert_eq!(written(&strings, 0..0, bytes.len()), (offsets.to_vec(), bytes), "{a}, {b}, {c}");
            }
            // The code does not look at a NULL row, wherever it is. The row's address is invalid.
            let garbage = DuckString([0xFF; 16]);
            let bytes = [&all[1..1 + a], &all[2..2 + b]].concat();
            for missing in 0..3 {
                let mut strings = vec![string(1, a), string(2, b)];
                strings.insert(missing, garbage);
                let mut offsets = [0, a, a + b].map(|offset| offset as i32).to_vec();
                offsets.insert(missing, offsets[missing]);
                let found = written(&strings, missing..missing + 1, bytes.len());
                assert_eq!(found, (offsets, bytes.clone()), "NULL at {missing}, {a}, {b}");
            }
        }
    }

    #[test]
    fn strings_are_read_to_their_end_and_no_further() {
        const PAGE: usize = 4096;
        // SAFETY: a mapping at a place that the kernel chooses, of which the second page admits no
        // access.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base =
                libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            std::slice::from_raw_parts_mut(base.cast::<u8>(), PAGE)
        };
        page.iter_mut().zip(0..).for_each(|(byte, at)| *byte = (at % 251) as u8);
        for length in LENGTHS {
            let start = PAGE - length;
            let string = DuckString::new(page, start..PAGE, page[start..].as_ptr());
            // After the first copy, the output ends, or has the space of the second copy.
            for strings in [vec![string], vec![string, string]] {
                let bytes = page[start..].repeat(strings.len());
                assert_eq!(written(&strings, 0..0, bytes.len()).1, bytes, "{length} bytes");
            }
        }
        // SAFETY: the memory was mapped above, and is not used any more.
        unsafe { libc::munmap(page.as_mut_ptr().cast(), 2 * PAGE) };
    }

    #[test]
    #[should_panic(expected = "range")]
    fn strings_without_space_are_refused() {
        let all = [1; 40];
        written(&[DuckString::new(&all, 0..40, all.as_ptr())], 0..0, 39);
    }
}
