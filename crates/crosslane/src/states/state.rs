//! A state, as the engine's memory holds it.

use std::marker::PhantomData;
use std::ops::Range;

/// What the engine's memory holds of a state: nothing but zeros before its first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct State {
    /// The lane's place in the registry; 0 if there is no state yet.
    pub(super) lane: u64,
    /// Its number there.
    pub(super) number: u64,
}

/// The states of a chunk's rows, where the engine has them. Rows may have the same.
#[derive(Debug, Clone, Copy)]
pub struct States<'a> {
    pub(super) places: &'a [*mut State],
    pub(super) _engine: PhantomData<&'a mut State>,
}

impl<'a> States<'a> {
    /// # Safety
    /// Each must point to a state, aligned or not, that nobody else uses as long as this lives.
    pub unsafe fn new(places: &'a [*mut State]) -> Self {
        Self { places, _engine: PhantomData }
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, row: usize) -> State {
        // SAFETY: as the maker said.
        unsafe { self.places[row].read_unaligned() }
    }

    pub(super) fn set(&self, row: usize, state: State) {
        // SAFETY: as the maker said.
        unsafe { self.places[row].write_unaligned(state) };
    }

    /// The lane of each row's state, so that the rows of a lane can be put one behind the other.
    pub fn lanes(&self) -> impl Iterator<Item = u64> {
        (0..self.count()).map(|row| self.get(row).lane)
    }

    /// Neighbours whose states are in the same lane.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, Range<usize>)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let lane = (from < self.count()).then(|| self.get(from).lane)?;
            let end = (from..self.count()).find(|row| self.get(*row).lane != lane).unwrap_or(self.count());
            let rows = from..end;
            from = end;
            Some((lane, rows))
        })
    }

    pub(super) fn numbers(&self, rows: Range<usize>) -> Vec<i64> {
        rows.map(|row| self.get(row).number as i64).collect()
    }
}
