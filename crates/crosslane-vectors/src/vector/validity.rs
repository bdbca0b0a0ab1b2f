//! Which rows are not NULL. DuckDB has masks of 64-bit words, and batches have bitmaps of bytes.
//! Both have a bit for each row, from the lowest bit on, which is 1 if the row is not NULL. So 64
//! rows are copied and counted at a time.

use std::ops::Range;

/// Whether a row is not NULL.
#[inline]
pub(crate) fn is_set(mask: &[u64], row: usize) -> bool {
    mask[row / 64] >> (row % 64) & 1 == 1
}

/// A word whose lowest bits are 1.
fn lowest(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The bits of a range, up to 64 at a time, and how many they are. Higher bits of the word are 0.
fn pieces(mask: &[u64], range: Range<usize>) -> impl Iterator<Item = (u64, usize)> {
    range.clone().step_by(64).map(move |at| {
        let (index, shift, count) = (at / 64, at % 64, 64.min(range.end - at));
        let mut word = mask[index] >> shift;
        if shift + count > 64 {
            word |= mask[index + 1] << (64 - shift);
        }
        (word & lowest(count), count)
    })
}

/// How many rows of a range are NULL.
pub(crate) fn nulls(mask: &[u64], range: Range<usize>) -> usize {
    pieces(mask, range).map(|(word, count)| count - word.count_ones() as usize).sum()
}

/// Writes ranges of a mask, one after another, into a bitmap with just enough bytes.
pub(crate) fn copy<'a>(mask: &[u64], ranges: impl Iterator<Item = &'a Range<usize>>, bitmap: &mut [u8]) {
    let (mut word, mut filled, mut to) = (0, 0, 0);
    for (bits, count) in ranges.flat_map(|range| pieces(mask, range.clone())) {
        word |= bits << filled;
        filled += count;
        if filled >= 64 {
            bitmap[to..to + 8].copy_from_slice(&word.to_le_bytes());
            to += 8;
            filled -= 64;
            // The bits that did not fit. None are left if the word was empty before.
            word = if filled == 0 { 0 } else { bits >> (count - filled) };
        }
    }
    let rest = filled.div_ceil(8);
    bitmap[to..to + rest].copy_from_slice(&word.to_le_bytes()[..rest]);
}

/// The NULLs among the first rows of a bitmap: for each 64 rows the index of the first, and a word
/// in which NULLs are 1.
fn missing(bitmap: &[u8], rows: usize) -> impl Iterator<Item = (usize, u64)> {
    bitmap[..rows.div_ceil(8)].chunks(8).enumerate().map(move |(index, bytes)| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        (index * 64, !u64::from_le_bytes(word) & lowest(rows - index * 64))
    })
}

/// Makes those rows of a mask NULL, from `first` on, that are NULL in a bitmap.
pub(crate) fn mark(mask: &mut [u64], first: usize, bitmap: &[u8], rows: usize) {
    for (at, word) in missing(bitmap, rows) {
        let (index, shift) = ((first + at) / 64, (first + at) % 64);
        mask[index] &= !(word << shift);
        if shift > 0 && word >> (64 - shift) != 0 {
            mask[index + 1] &= !(word >> (64 - shift));
        }
    }
}

/// Makes a range of rows NULL.
pub(crate) fn mark_all(mask: &mut [u64], range: Range<usize>) {
    let mut at = range.start;
    while at < range.end {
        let shift = at % 64;
        let count = (64 - shift).min(range.end - at);
        mask[at / 64] &= !(lowest(count) << shift);
        at += count;
    }
}

/// Visits the rows of a bitmap that are NULL.
pub(crate) fn each_null(bitmap: &[u8], rows: usize, mut visit: impl FnMut(usize)) {
    for (at, mut word) in missing(bitmap, rows) {
        while word != 0 {
            visit(at + word.trailing_zeros() as usize);
            word &= word - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 320;

    /// A mask without a pattern.
    fn mask() -> Vec<u64> {
        (1..=ROWS as u64 / 64).map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
    }

    fn bit(mask: &[u64], row: usize) -> bool {
        mask[row / 64] >> (row % 64) & 1 == 1
    }

    /// Ranges that begin and end at the ends of words, and near them.
    fn ranges() -> impl Iterator<Item = Range<usize>> {
        let ends = [0, 1, 7, 8, 63, 64, 65, 100, 127, 128, 129, 192, 255, 256, 319, 320];
        ends.into_iter().flat_map(move |start| ends.into_iter().map(move |end| start..end.max(start)))
    }

    #[test]
    fn nulls_are_counted() {
        for range in ranges() {
            let expected = range.clone().filter(|row| !bit(&mask(), *row)).count();
            assert_eq!(nulls(&mask(), range.clone()), expected, "{range:?}");
        }
    }

    #[test]
    fn ranges_of_a_mask_become_one_bitmap() {
        for (one, two) in ranges().flat_map(|one| ranges().map(move |two| (one.clone(), two))) {
            let expected: Vec<bool> = one.clone().chain(two.clone()).map(|row| bit(&mask(), row)).collect();
            let mut bitmap = vec![0xFF; expected.len().div_ceil(8)];
            copy(&mask(), [&one, &two].into_iter(), &mut bitmap);
            let found: Vec<bool> =
                (0..bitmap.len() * 8).map(|row| bitmap[row / 8] >> (row % 8) & 1 == 1).collect();
            assert_eq!(found[..expected.len()], expected, "{one:?} and {two:?}");
            assert!(!found[expected.len()..].contains(&true), "bits behind {one:?} and {two:?}");
        }
    }

    #[test]
    fn nulls_of_a_bitmap_are_made_and_visited() {
        let bitmap: Vec<u8> = mask().iter().flat_map(|word| word.to_le_bytes()).collect();
        for range in ranges() {
            let (first, rows) = (range.start, range.len());
            let expected: Vec<usize> = (0..rows).filter(|row| !bit(&mask(), *row)).collect();
            let mut visited = Vec::new();
            each_null(&bitmap, rows, |row| visited.push(row));
            assert_eq!(visited, expected);
            // The mask has no word after the last row.
            let mut made = vec![u64::MAX; range.end.div_ceil(64)];
            mark(&mut made, first, &bitmap[..rows.div_ceil(8)], rows);
            let found: Vec<usize> = (0..made.len() * 64).filter(|row| !bit(&made, *row)).collect();
            assert_eq!(found, expected.iter().map(|row| first + row).collect::<Vec<_>>());
            let mut made = vec![u64::MAX; range.end.div_ceil(64)];
            mark_all(&mut made, range.clone());
            let found: Vec<usize> = (0..made.len() * 64).filter(|row| !bit(&made, *row)).collect();
            assert_eq!(found, range.collect::<Vec<_>>());
        }
    }
}
