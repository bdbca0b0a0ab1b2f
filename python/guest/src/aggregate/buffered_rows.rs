//! The rows of a vectorized aggregate. They are buffered, and then added to their groups, all rows
//! of a group at once.

use crate::arrow::{self, Direction};
use crosslane::DataType;
use crosslane::batch::Column;
use crosslane::lane::COUNT;
use crosslane_guest::Groups;
use crosslane_ring::ProgressWord;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::HashSet;

/// The rows are added when there are so many of them, or when their arguments have so many bytes.
const MOST_ROWS: usize = 1 << 20;
const MOST_BYTES: usize = 64 << 20;
/// The buffered rows may take this part of the memory that the function may take. They are copied
/// when they are sorted, and once more for their groups.
const MEMORY_SHARE: u64 = 8;
/// This state marks a row that is left out.
const NO_STATE: u32 = u32::MAX;

/// The rows that are not added yet.
pub(crate) struct BufferedRows<'py> {
    /// The pyarrow types of the arguments.
    types: Vec<Bound<'py, PyAny>>,
    /// The arguments of each batch: a list of arrays.
    chunks: Bound<'py, PyList>,
    /// The states of the rows of all batches.
    states: Vec<u32>,
    bytes: usize,
    /// The rows are added when they have so many bytes.
    most: usize,
}

impl<'py> BufferedRows<'py> {
    pub(crate) fn new<'a>(
        py: Python<'py>,
        types: impl Iterator<Item = &'a DataType>,
        memory_limit: Option<u64>,
    ) -> PyResult<Self> {
        let types = types.map(|data_type| arrow::pyarrow_type(py, data_type, Direction::Argument));
        Ok(Self {
            types: types.collect::<PyResult<_>>()?,
            chunks: PyList::empty(py),
            states: Vec::new(),
            bytes: 0,
            most: memory_limit.map_or(MOST_BYTES, |limit| MOST_BYTES.min((limit / MEMORY_SHARE) as usize)),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.states.len() >= MOST_ROWS || self.bytes >= self.most
    }

    /// Adds the rows of a batch. Rows without a state are left out.
    pub(crate) fn add(
        &mut self,
        columns: &[Column<'_>],
        states: impl Iterator<Item = Option<usize>>,
    ) -> PyResult<()> {
        let arrays = columns.iter().zip(&self.types);
        let arrays = arrays.map(|(column, data_type)| arrow::to_pyarrow(column, data_type));
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        self.chunks.append(PyList::new(self.chunks.py(), arrays)?)?;
        self.states.extend(states.map(|state| state.map_or(NO_STATE, |state| state as u32)));
        self.bytes += columns.iter().map(bytes).sum::<usize>();
        Ok(())
    }

    /// Leaves out the rows of states that have ended.
    pub(crate) fn forget(&mut self, ended: impl Iterator<Item = usize>) {
        if self.is_empty() {
            return;
        }
        let ended: HashSet<u32> = ended.map(|state| state as u32).collect();
        let rows = self.states.iter_mut().filter(|state| ended.contains(state));
        rows.for_each(|state| *state = NO_STATE);
    }

    /// Takes all rows: the arguments of each batch, and the rows sorted by their states.
    pub(super) fn take(&mut self) -> (Bound<'py, PyList>, Groups) {
        let empty = PyList::empty(self.chunks.py());
        let chunks = std::mem::replace(&mut self.chunks, empty);
        let states = std::mem::take(&mut self.states);
        self.bytes = 0;
        let rows = (0..).zip(states.iter().copied()).filter(|(_, state)| *state != NO_STATE);
        (chunks, Groups::new(rows))
    }
}

/// How many bytes the values of a column have.
fn bytes(column: &Column<'_>) -> usize {
    size_of_val(column.data) + size_of_val(column.offsets) + column.children.iter().map(bytes).sum::<usize>()
}

/// An iterator over groups for the loop in Python. It gives an instance, the place of its first
/// row, and how many rows there are. It tells the engine which group is being updated.
#[pyclass]
pub(crate) struct GroupIterator {
    groups: Vec<(Py<PyAny>, u32, u32)>,
    /// How many groups were given.
    given: usize,
    word: ProgressWord,
    sequence: u32,
}

impl GroupIterator {
    pub(crate) fn new(groups: Vec<(Py<PyAny>, u32, u32)>, word: ProgressWord, sequence: u32) -> Self {
        Self { groups, given: 0, word, sequence }
    }

    /// The number of the group that was given last, and how many rows it has.
    pub(crate) fn last(&self) -> Option<(usize, usize)> {
        let at = self.given.checked_sub(1)?;
        Some((at, self.groups.get(at)?.2 as usize))
    }

    /// Gives the last group once more.
    pub(crate) fn repeat(&mut self) {
        self.given = self.given.saturating_sub(1);
    }
}

#[pymethods]
impl GroupIterator {
    fn __iter__(itself: PyRef<'_, Self>) -> PyRef<'_, Self> {
        itself
    }

    fn __next__(&mut self, py: Python<'_>) -> Option<(Py<PyAny>, u32, u32)> {
        let (instance, begin, count) = self.groups.get(self.given)?;
        self.word.set(self.sequence, self.given as u32 | COUNT);
        self.given += 1;
        Some((instance.clone_ref(py), *begin, *count))
    }
}
