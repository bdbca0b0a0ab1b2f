//! The first rows of a state, as bytes.
//!
//! An instance costs many times what a row costs, in time and in memory. If there are many
//! instances, most of the time is spent waiting for memory. So the first rows of a state are
//! pending: they are bytes. They become an instance, all at once, when there are too many of them,
//! or when the state is finished or merged with an instance. In a query with a million groups most
//! instances live only for a moment, and states travel from lane to lane as rows.

use crate::values::overflow;
use bytemuck::pod_read_unaligned;
use crosslane::batch::{Column, bit};
use crosslane::{ColumnBuilder, DataType, Layout};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

/// A state has pending rows of at most so many bytes, which is less than an instance takes.
const MOST_BYTES: usize = 120;
/// A state has at most so many pending rows.
const MOST_ROWS: u32 = 15;
/// So many bytes lie in the state itself, which is as long as a cache line.
const INLINE_BYTES: usize = 40;

/// Pending rows, one behind the other.
pub(crate) struct PendingRows {
    inline: [u8; INLINE_BYTES],
    /// How many bytes of `inline` are used.
    length: u32,
    count: u32,
    /// All bytes, if `inline` is too short for them.
    #[expect(clippy::box_collection, reason = "states are many, and most have none")]
    heap: Option<Box<Vec<u8>>>,
}

impl Default for PendingRows {
    fn default() -> Self {
        Self { inline: [0; INLINE_BYTES], length: 0, count: 0, heap: None }
    }
}

impl PendingRows {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Whether there are too many of them.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.count > MOST_ROWS || self.bytes().len() > MOST_BYTES
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match &self.heap {
            Some(heap) => heap,
            None => &self.inline[..self.length as usize],
        }
    }

    #[inline]
    fn add(&mut self, bytes: &[u8], count: u32) -> PyResult<()> {
        self.count += count;
        let length = self.length as usize;
        match &mut self.heap {
            None if length + bytes.len() <= INLINE_BYTES => {
                self.inline[length..length + bytes.len()].copy_from_slice(bytes);
                self.length += bytes.len() as u32;
            }
            heap => {
                let room = |_| PyMemoryError::new_err("no memory for the rows of a state");
                let heap = heap.get_or_insert_default();
                let first = if heap.is_empty() { &self.inline[..length] } else { &[] };
                // The memory is reserved at once for the most bytes that may be pending.
                heap.try_reserve((first.len() + bytes.len()).max(MOST_BYTES - heap.len().min(MOST_BYTES)))
                    .map_err(room)?;
                heap.extend_from_slice(first);
                heap.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Adds rows behind these.
    pub(crate) fn append(&mut self, others: &PendingRows) -> PyResult<()> {
        self.add(others.bytes(), others.count)
    }

    /// A copy of the rows.
    pub(crate) fn copy(&self) -> PyResult<Self> {
        let mut copy = Self::default();
        copy.append(self)?;
        Ok(copy)
    }

    /// Writes a mark and the rows into `out`, for [`PendingRows::load`].
    pub(crate) fn save(&self, mark: u8, out: &mut Vec<u8>) {
        out.clear();
        out.push(mark);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(self.bytes());
    }

    pub(crate) fn load(saved: &[u8]) -> PyResult<Self> {
        let (count, bytes) =
            saved.get(1..).and_then(|rest| rest.split_first_chunk()).ok_or_else(malformed)?;
        let mut rows = Self::default();
        rows.add(bytes, u32::from_le_bytes(*count))?;
        Ok(rows)
    }
}

/// The format of the values of a parameter.
struct Parameter {
    data_type: DataType,
    layout: Layout,
    admits_null: bool,
}

/// The format of the pending rows of an aggregate.
pub(crate) struct RowFormat {
    parameters: Vec<Parameter>,
    /// The bytes of a row, without the bytes of its texts.
    fixed: usize,
}

impl RowFormat {
    /// None if a parameter has a nested type, whose values cannot be pending.
    pub(crate) fn new<'a>(parameters: impl Iterator<Item = (&'a DataType, bool)>) -> Option<Self> {
        let parameters = parameters.map(|(data_type, admits_null)| {
            let layout = data_type.layout();
            let flat = match layout {
                Layout::Bits | Layout::Bytes { .. } => true,
                Layout::Fixed(width) => matches!(width, 1 | 2 | 4 | 8 | 16),
                Layout::List | Layout::FixedList(_) | Layout::Struct => false,
            };
            flat.then(|| Parameter { data_type: data_type.clone(), layout, admits_null })
        });
        let parameters = parameters.collect::<Option<Vec<_>>>()?;
        let fixed = parameters.iter().map(|parameter| {
            let value = match parameter.layout {
                Layout::Fixed(width) => width,
                Layout::Bytes { .. } => size_of::<u32>(),
                _ => 1,
            };
            value + usize::from(parameter.admits_null)
        });
        let fixed = fixed.sum();
        Some(Self { parameters, fixed })
    }

    /// Adds a row of a batch. Returns false if there is no room for it.
    #[inline]
    pub(crate) fn add(&self, columns: &[Column<'_>], row: usize, rows: &mut PendingRows) -> PyResult<bool> {
        let mut size = self.fixed;
        for (column, parameter) in columns.iter().zip(&self.parameters) {
            if let Layout::Bytes { .. } = parameter.layout {
                size += column.bytes(row).len();
            }
        }
        if rows.count >= MOST_ROWS || rows.bytes().len() + size > MOST_BYTES {
            return Ok(false);
        }
        let mut bytes = [0; MOST_BYTES];
        let mut length = 0;
        let mut push = |value: &[u8]| {
            bytes[length..length + value.len()].copy_from_slice(value);
            length += value.len();
        };
        for (column, parameter) in columns.iter().zip(&self.parameters) {
            if parameter.admits_null {
                push(&[u8::from(column.is_valid(row))]);
            }
            match parameter.layout {
                Layout::Fixed(8) => push(&column.data[row * 8..row * 8 + 8]),
                Layout::Fixed(width) => push(&column.data[row * width..(row + 1) * width]),
                Layout::Bytes { .. } => {
                    let value = column.bytes(row);
                    push(&(value.len() as u32).to_le_bytes());
                    push(value);
                }
                _ => push(&[u8::from(bit(column.data, row))]),
            }
        }
        rows.add(&bytes[..length], 1)?;
        Ok(true)
    }

    /// Columns without rows.
    pub(crate) fn columns(&self) -> Vec<ColumnBuilder> {
        self.parameters.iter().map(|parameter| ColumnBuilder::new(&parameter.data_type)).collect()
    }

    /// The columns of builders.
    pub(crate) fn built<'a>(&'a self, columns: &'a [ColumnBuilder]) -> Vec<Column<'a>> {
        let columns = columns.iter().zip(&self.parameters);
        columns.map(|(column, parameter)| column.column(&parameter.data_type)).collect()
    }

    /// Adds all rows to columns.
    pub(crate) fn read(&self, rows: &PendingRows, columns: &mut [ColumnBuilder]) -> PyResult<()> {
        if let ([Parameter { layout: Layout::Fixed(8), admits_null: false, .. }], [column]) =
            (&self.parameters[..], &mut *columns)
        {
            // Most aggregates have one parameter.
            let (values, rest) = rows.bytes().as_chunks::<8>();
            values.iter().for_each(|value| column.fixed(*value));
            let whole = rest.is_empty() && values.len() == rows.count();
            return if whole { Ok(()) } else { Err(malformed()) };
        }
        let mut rest = rows.bytes();
        for _ in 0..rows.count {
            for (column, parameter) in columns.iter_mut().zip(&self.parameters) {
                let valid = !parameter.admits_null || take(&mut rest, 1)?[0] != 0;
                let length = match parameter.layout {
                    Layout::Fixed(width) => width,
                    Layout::Bytes { .. } => pod_read_unaligned::<u32>(take(&mut rest, 4)?) as usize,
                    _ => 1,
                };
                let value = take(&mut rest, length)?;
                if !valid {
                    column.null();
                    continue;
                }
                match parameter.layout {
                    Layout::Fixed(1) => column.fixed::<u8>(value[0]),
                    Layout::Fixed(2) => column.fixed::<u16>(pod_read_unaligned(value)),
                    Layout::Fixed(4) => column.fixed::<u32>(pod_read_unaligned(value)),
                    Layout::Fixed(8) => column.fixed::<u64>(pod_read_unaligned(value)),
                    Layout::Fixed(_) => column.fixed::<u128>(pod_read_unaligned(value)),
                    Layout::Bytes { .. } => column.bytes(value).map_err(overflow)?,
                    _ => column.boolean(value[0] != 0),
                }
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(malformed()) }
    }
}

fn malformed() -> PyErr {
    PyValueError::new_err("rows of a state that are not what they were")
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> PyResult<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length).ok_or_else(malformed)?;
    *rest = behind;
    Ok(taken)
}
