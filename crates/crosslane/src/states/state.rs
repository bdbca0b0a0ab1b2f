//! A state in the engine's memory.

use std::marker::PhantomData;
use std::ops::Range;

/// The engine's memory of a state. Before the first row, all its bytes are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct State {
    /// The number of the lane in the registry; 0 before the first row.
    pub(super) lane: u64,
    /// The number of the state in the lane.
    pub(super) number: u64,
}

/// The states of a chunk's rows, in the engine's memory. Several rows may have the same state.
#[derive(Debug, Clone, Copy)]
pub struct States<'a> {
    pub(super) places: &'a [*mut State],
    pub(super) _engine: PhantomData<&'a mut State>,
}

impl<'a> States<'a> {
    /// # Safety
    /// Each pointer must point to a state, aligned or not. No other code may use the state while
    /// the result lives.
    pub unsafe fn new(places: &'a [*mut State]) -> Self {
        Self { places, _engine: PhantomData }
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, row: usize) -> State {
        // SAFETY: the caller of `States::new` promises that the pointer is valid and exclusive.
        unsafe { self.places[row].read_unaligned() }
    }

    pub(super) fn set(&self, row: usize, state: State) {
        // SAFETY: as in `get`.
        unsafe { self.places[row].write_unaligned(state) };
    }

    /// The lane of each row's state. The engine can sort the rows by lane with it.
    pub fn lanes(&self) -> impl Iterator<Item = u64> {
        (0..self.count()).map(|row| self.get(row).lane)
    }

    /// Ranges of consecutive rows whose states are in the same lane, each with that lane.
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
