//! Which rows of a vector are read.

use crosslane::Error;
use std::ops::Range;

/// Rows of a vector: one range, or several ranges in any order (the elements of lists). There are
/// at most as many ranges as rows in the parent vector, however long the lists are.
pub(crate) enum Rows {
    Range(Range<usize>),
    Ranges(Vec<Range<usize>>),
}

impl Rows {
    pub(super) fn ranges(&self) -> &[Range<usize>] {
        match self {
            Rows::Range(range) => std::slice::from_ref(range),
            Rows::Ranges(ranges) => ranges,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ranges().iter().map(Range::len).sum()
    }

    #[inline]
    pub(super) fn each(&self, mut visit: impl FnMut(usize, usize)) {
        let mut to = 0;
        for range in self.ranges() {
            for from in range.clone() {
                visit(to, from);
                to += 1;
            }
        }
    }

    /// The rows of the elements of ARRAYs of a length. Their numbers may exceed 32 bits.
    pub(super) fn elements(&self, length: usize) -> Result<Self, Error> {
        self.map(|range| range.start * length..range.end * length)
    }

    /// Maps each range.
    pub(super) fn map(&self, map: impl Fn(&Range<usize>) -> Range<usize>) -> Result<Self, Error> {
        Ok(match self {
            Rows::Range(range) => Rows::Range(map(range)),
            Rows::Ranges(ranges) => {
                let mut mapped = Vec::new();
                reserve(&mut mapped, ranges.len())?;
                mapped.extend(ranges.iter().map(map));
                Rows::Ranges(mapped)
            }
        })
    }
}

/// Reserves space, or returns an error.
pub(super) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), Error> {
    list.try_reserve(more).map_err(|_| Error::memory((list.len() + more).saturating_mul(size_of::<T>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_elements_of_arrays_are_counted_beyond_32_bits() {
        // DuckDB's longest ARRAY, in a list long enough.
        let length = 100_000;
        let elements = Rows::Range(50_000..50_001).elements(length).unwrap();
        assert_eq!(elements.ranges()[0], 5_000_000_000..5_000_100_000);
        let elements = Rows::Ranges(vec![50_000..50_001, 0..1, 42_949..42_950]).elements(length).unwrap();
        assert_eq!(
            elements.ranges(),
            [5_000_000_000..5_000_100_000, 0..100_000, 4_294_900_000..4_295_000_000]
        );
        assert_eq!(elements.len(), 300_000);
    }
}
