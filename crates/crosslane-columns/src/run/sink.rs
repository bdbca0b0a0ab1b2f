//! Where an instruction writes its results.

use crate::program::Comparison;

/// The results of an instruction, and the rows that leave. All slices are of the same length.
pub(super) struct Sink<'a, T> {
    pub(super) out: &'a mut [T],
    pub(super) left: &'a mut [u8],
    /// The rows for which the instruction counts. None stands for all rows.
    pub(super) mask: Option<&'a [u8]>,
}

impl<T> Sink<'_, T> {
    /// Writes the results of all rows.
    #[inline(always)]
    pub(super) fn all(self, each: impl Iterator<Item = T>) {
        self.out.iter_mut().zip(each).for_each(|(out, value)| *out = value);
    }

    /// Writes the results of all rows. A row leaves if its flag is set, and the instruction counts
    /// for it.
    #[inline(always)]
    pub(super) fn checked(self, each: impl Iterator<Item = (T, bool)>) {
        let rows = self.out.iter_mut().zip(self.left).zip(each);
        match self.mask {
            None => rows.for_each(|((out, left), (value, leaves))| {
                *out = value;
                *left |= u8::from(leaves);
            }),
            Some(mask) => rows.zip(mask).for_each(|(((out, left), (value, leaves)), mask)| {
                *out = value;
                *left |= u8::from(leaves) & mask;
            }),
        }
    }

    /// As [`Sink::checked`], for an operation that costs more than a look at the mask.
    #[inline(always)]
    pub(super) fn costly(self, each: impl Fn(usize) -> (T, bool)) {
        for (row, (out, left)) in self.out.iter_mut().zip(self.left).enumerate() {
            if self.mask.is_none_or(|mask| mask[row] != 0) {
                let (value, leaves) = each(row);
                *out = value;
                *left |= u8::from(leaves);
            }
        }
    }
}

impl Sink<'_, u8> {
    /// Writes whether the values of each pair compare in this way. NaN is equal to nothing.
    #[inline(always)]
    pub(super) fn compare<T: PartialOrd>(self, comparison: Comparison, pairs: impl Iterator<Item = (T, T)>) {
        match comparison {
            Comparison::Less => self.all(pairs.map(|(a, b)| u8::from(a < b))),
            Comparison::LessOrEqual => self.all(pairs.map(|(a, b)| u8::from(a <= b))),
            Comparison::Equal => self.all(pairs.map(|(a, b)| u8::from(a == b))),
            Comparison::NotEqual => self.all(pairs.map(|(a, b)| u8::from(a != b))),
            Comparison::Greater => self.all(pairs.map(|(a, b)| u8::from(a > b))),
            Comparison::GreaterOrEqual => self.all(pairs.map(|(a, b)| u8::from(a >= b))),
        }
    }
}

/// The pairs of two columns.
#[inline(always)]
pub(super) fn pairs<'a, A: Copy, B: Copy>(
    a: &'a [A],
    b: &'a [B],
) -> impl Iterator<Item = (A, B)> + use<'a, A, B> {
    a.iter().copied().zip(b.iter().copied())
}
