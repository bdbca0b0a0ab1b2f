//! pyarrow arrays as results.

use super::c_data::ArrowArray;
use super::memory::{widen, zeros};
use super::schema::TIMETZ;
use crate::values::overflow;
use crosslane::batch::{Body, Encode, Plan, bit};
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType, Layout, Rows, code_width, timetz};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::ptr;
use std::sync::Arc;

/// A pyarrow array whose parts are results. It is not copied.
pub(crate) struct Exported(ArrowArray);

/// Some rows of an array, as results. They keep the array's buffers alive.
pub(crate) struct Results {
    column: ResultColumn,
    _array: Arc<Exported>,
}

// SAFETY: no code writes to an exported array, and pyarrow may release it on any thread. No code touches
// a Python object.
unsafe impl Send for Exported {}
// SAFETY: no code writes to an exported array.
unsafe impl Sync for Exported {}
// SAFETY: as for the array, whose memory the pointers of the column lead to.
unsafe impl Send for Results {}
// SAFETY: as above.
unsafe impl Sync for Results {}

/// A column of results. Buffers that are the same on the wire stay in pyarrow's memory.
struct ResultColumn {
    rows: usize,
    nulls: usize,
    validity: Vec<u8>,
    offsets: Option<Vec<i32>>,
    data: Option<Data>,
    children: Vec<ResultColumn>,
}

enum Data {
    Borrowed(*const u8, usize),
    Owned(Vec<u8>),
}

impl Exported {
    pub(crate) fn new(array: &Bound<'_, PyAny>) -> PyResult<Arc<Self>> {
        // SAFETY: all-zero is a valid ArrowArray: null pointers and no release.
        let mut exported = Self(unsafe { std::mem::zeroed() });
        array.call_method1("_export_to_c", (&raw mut exported.0 as usize,))?;
        Ok(Arc::new(exported))
    }

    /// How many rows it has.
    pub(crate) fn rows(&self) -> usize {
        self.0.length as usize
    }
}

impl Results {
    /// Takes an array of the pyarrow type of `data_type`.
    pub(crate) fn new(array: &Bound<'_, PyAny>, data_type: &DataType) -> PyResult<Self> {
        let array = Exported::new(array)?;
        Self::part(&array, data_type, 0, array.rows())
    }

    /// Some rows of an array. It must have them, and be of the pyarrow type of `data_type`.
    pub(crate) fn part(
        array: &Arc<Exported>,
        data_type: &DataType,
        first: usize,
        rows: usize,
    ) -> PyResult<Self> {
        if first + rows > array.rows() {
            return Err(PyRuntimeError::new_err("an array without these rows"));
        }
        // SAFETY: pyarrow exported the array, which has these rows, and the results keep it.
        let column = unsafe { ResultColumn::read(&array.0, data_type, first, rows)? };
        Ok(Self { column, _array: Arc::clone(array) })
    }
}

/// Some rows of a column, from an array or from objects.
pub(crate) enum Piece<'a> {
    Array(Results),
    Rows(Rows<'a>),
    Values(ColumnBuilder),
}

impl Encode for Piece<'_> {
    fn plan(&self, plan: &mut Plan) {
        match self {
            Piece::Array(results) => results.plan(plan),
            Piece::Rows(rows) => rows.plan(plan),
            Piece::Values(values) => values.plan(plan),
        }
    }
    fn write(&self, body: &mut Body<'_>) {
        match self {
            Piece::Array(results) => results.write(body),
            Piece::Rows(rows) => rows.write(body),
            Piece::Values(values) => values.write(body),
        }
    }
}

impl Encode for Results {
    fn plan(&self, plan: &mut Plan) {
        self.column.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.column.write(body);
    }
}

impl ResultColumn {
    fn empty() -> Self {
        Self { rows: 0, nulls: 0, validity: Vec::new(), offsets: None, data: None, children: Vec::new() }
    }

    /// Reads `rows` rows from `first` on, counted without the array's own offset.
    ///
    /// # Safety
    /// `array` must be a valid array of the type's layout with at least `first + rows` rows, and
    /// must outlive the result.
    unsafe fn read(array: &ArrowArray, data_type: &DataType, first: usize, rows: usize) -> PyResult<Self> {
        let start = array.offset as usize + first;
        let buffer = |index: usize| -> *const u8 {
            if index as i64 >= array.n_buffers {
                return ptr::null();
            }
            // SAFETY: an array has as many buffers as it says.
            unsafe { (*array.buffers.add(index)).cast() }
        };
        // SAFETY: the bitmap covers `start + rows` bits.
        let validity = unsafe { bits(buffer(0), start, rows)? };
        let nulls =
            if validity.is_empty() { 0 } else { (0..rows).filter(|row| !bit(&validity, *row)).count() };
        let mut out = Self { rows, nulls, ..Self::empty() };
        if nulls > 0 {
            out.validity = validity;
        }
        // SAFETY: offsets and data cover the rows, as the format demands; children likewise.
        unsafe {
            match data_type {
                DataType::Enum(values) => {
                    out.data = Some(Data::Owned(out.codes(data_type, values, buffer(1), buffer(2), start)?))
                }
                DataType::HugeInt | DataType::UHugeInt => {
                    out.data = Some(Data::Owned(out.narrow(data_type, buffer(1), start)?))
                }
                DataType::TimeTz => {
                    let parts = Self::read(array, &TIMETZ, first, rows)?;
                    out.data = Some(Data::Owned(out.times_with_zones(&parts)?));
                }
                DataType::BigNum => {
                    let data = slice(buffer(1), start * 32, rows * 32);
                    if i32::try_from(data.len()).is_err() {
                        return Err(overflow(Overflow::TooLarge));
                    }
                    out.data = Some(Data::Borrowed(data.as_ptr(), data.len()));
                    out.offsets = Some((0..=rows).map(|row| row as i32 * 32).collect());
                }
                DataType::Interval => {
                    let nanos = slice(buffer(1), start * 16, rows * 16);
                    let mut bytes = zeros(nanos.len())?;
                    bytes.copy_from_slice(nanos);
                    for value in bytes.chunks_exact_mut(16) {
                        let nanos: i64 = bytemuck::pod_read_unaligned(&value[8..]);
                        value[8..].copy_from_slice(&nanos.div_euclid(1000).to_le_bytes());
                    }
                    out.data = Some(Data::Owned(bytes));
                }
                _ => match data_type.layout() {
                    Layout::Bits => {
                        let packed = bits(buffer(1), start, rows)?;
                        out.data = Some(Data::Owned(if packed.is_empty() {
                            zeros(rows.div_ceil(8))?
                        } else {
                            packed
                        }));
                    }
                    Layout::Fixed(width) => {
                        let data = slice(buffer(1), start * width, rows * width);
                        out.data = Some(Data::Borrowed(data.as_ptr(), data.len()));
                    }
                    Layout::Bytes { .. } => {
                        let (offsets, begin, length) = rebase(buffer(1), start, rows)?;
                        let data = slice(buffer(2), begin, length);
                        out.data = Some(Data::Borrowed(data.as_ptr(), data.len()));
                        out.offsets = Some(offsets);
                    }
                    Layout::List => {
                        let (offsets, begin, length) = rebase(buffer(1), start, rows)?;
                        out.offsets = Some(offsets);
                        out.read_children(array, data_type, begin, length)?;
                    }
                    Layout::FixedList(length) => {
                        out.read_children(array, data_type, start * length, rows * length)?
                    }
                    Layout::Struct => out.read_children(array, data_type, start, rows)?,
                },
            }
        }
        Ok(out)
    }

    /// # Safety
    /// As [`ResultColumn::read`], of the children.
    unsafe fn read_children(
        &mut self,
        array: &ArrowArray,
        data_type: &DataType,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        for (index, child) in data_type.children().enumerate() {
            if index as i64 >= array.n_children {
                return Err(PyRuntimeError::new_err("pyarrow exported too few children"));
            }
            // SAFETY: the index was checked; the child covers its parent's rows.
            self.children
                .push(unsafe { ResultColumn::read(&**array.children.add(index), child, first, rows)? });
        }
        Ok(())
    }

    /// The codes of ENUM values that are strings.
    ///
    /// # Safety
    /// The buffers must be a string array's, covering the rows.
    unsafe fn codes(
        &self,
        data_type: &DataType,
        values: &[String],
        offsets: *const u8,
        text: *const u8,
        start: usize,
    ) -> PyResult<Vec<u8>> {
        let known: std::collections::HashMap<&[u8], u32> =
            values.iter().zip(0..).map(|(value, code)| (value.as_bytes(), code)).collect();
        // SAFETY: the caller vouches for the buffers.
        let (offsets, begin, length) = unsafe { rebase(offsets, start, self.rows)? };
        // SAFETY: as above.
        let text = unsafe { slice(text, begin, length) };
        let width = code_width(values.len());
        let mut codes = zeros(self.rows * width)?;
        for (row, place) in codes.chunks_exact_mut(width).enumerate() {
            let value = &text[offsets[row] as usize..offsets[row + 1] as usize];
            let valid = self.is_valid(row);
            let code = match known.get(value) {
                Some(code) => *code,
                None if !valid => 0,
                None => {
                    let value = String::from_utf8_lossy(value);
                    return Err(PyValueError::new_err(format!(
                        "returned '{value}', which is none of {data_type}"
                    )));
                }
            };
            place.copy_from_slice(&code.to_le_bytes()[..width]);
        }
        Ok(codes)
    }

    /// TIMETZs from structs.
    fn times_with_zones(&self, parts: &ResultColumn) -> PyResult<Vec<u8>> {
        let mut bits_of = zeros(self.rows * 8)?;
        let [times, offsets] = &parts.children[..] else { return Ok(bits_of) };
        for (row, place) in bits_of.chunks_exact_mut(8).enumerate().filter(|(row, _)| self.is_valid(*row)) {
            let (Some(time), Some(offset)) = (times.fixed(row, 8), offsets.fixed(row, 4)) else {
                return Err(PyValueError::new_err(format!(
                    "row {row} of the result has a NULL in the time or the offset of a TIMETZ"
                )));
            };
            let (time, offset): (i64, i32) =
                (bytemuck::pod_read_unaligned(time), bytemuck::pod_read_unaligned(offset));
            if !(0..=86_400_000_000).contains(&time) || offset.unsigned_abs() > timetz::MOST_SECONDS as u32 {
                return Err(PyOverflowError::new_err(format!("row {row} of the result does not fit TIMETZ")));
            }
            place.copy_from_slice(&timetz::bits(time, offset).to_le_bytes());
        }
        Ok(bits_of)
    }

    /// The bytes of a row. None if it is NULL.
    fn fixed(&self, row: usize, width: usize) -> Option<&[u8]> {
        let bytes = self.data.as_ref()?.bytes().get(row * width..(row + 1) * width)?;
        self.is_valid(row).then_some(bytes)
    }

    fn is_valid(&self, row: usize) -> bool {
        self.nulls == 0 || bit(&self.validity, row)
    }

    /// 128-bit integers from `decimal256`.
    ///
    /// # Safety
    /// The buffer must cover the rows.
    unsafe fn narrow(&self, data_type: &DataType, buffer: *const u8, start: usize) -> PyResult<Vec<u8>> {
        // SAFETY: the caller vouches for the buffer.
        let wide = unsafe { slice(buffer, start * 32, self.rows * 32) };
        let mut narrow = zeros(self.rows * 16)?;
        let places = narrow.chunks_exact_mut(16);
        for (row, (place, value)) in places.zip(wide.chunks_exact(32)).enumerate() {
            let low: [u8; 16] = bytemuck::pod_read_unaligned(&value[..16]);
            let negative = value[31] & 0x80 != 0;
            let signed = *data_type == DataType::HugeInt;
            let fits = value == widen(low, negative)
                && if signed { (low[15] & 0x80 != 0) == negative } else { !negative };
            if !fits && self.is_valid(row) {
                return Err(PyOverflowError::new_err(format!(
                    "row {row} of the result does not fit {data_type}"
                )));
            }
            place.copy_from_slice(&low);
        }
        Ok(narrow)
    }
}

impl Encode for ResultColumn {
    fn plan(&self, plan: &mut Plan) {
        plan.node(self.rows, self.nulls);
        plan.buffer(self.validity.len());
        if let Some(offsets) = &self.offsets {
            plan.buffer(offsets.len() * 4);
        }
        if let Some(data) = &self.data {
            plan.buffer(data.bytes().len());
        }
        self.children.iter().for_each(|child| child.plan(plan));
    }

    fn write(&self, body: &mut Body<'_>) {
        body.buffer().copy_from_slice(&self.validity);
        if let Some(offsets) = &self.offsets {
            body.buffer().copy_from_slice(bytemuck::cast_slice(offsets));
        }
        if let Some(data) = &self.data {
            body.buffer().copy_from_slice(data.bytes());
        }
        self.children.iter().for_each(|child| child.write(body));
    }
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the array that owns this memory lives as long as the `Results` around self.
            Data::Borrowed(start, length) => unsafe { slice(*start, 0, *length) },
            Data::Owned(bytes) => bytes,
        }
    }
}

/// # Safety
/// `start .. start + length` must be readable from `base` on, unless `length` is 0.
unsafe fn slice<'a>(base: *const u8, start: usize, length: usize) -> &'a [u8] {
    if length == 0 || base.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for the range.
    unsafe { std::slice::from_raw_parts(base.add(start), length) }
}

/// `rows` bits from `start` on, moved to the start of the bytes. Empty if there is no bitmap.
///
/// # Safety
/// The bitmap must cover the bits, or be null.
unsafe fn bits(bitmap: *const u8, start: usize, rows: usize) -> PyResult<Vec<u8>> {
    if bitmap.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller vouches for the bits.
    let bytes = unsafe { slice(bitmap, start / 8, (start % 8 + rows).div_ceil(8)) };
    let shift = start % 8;
    let mut moved = zeros(rows.div_ceil(8))?;
    if shift == 0 {
        moved.copy_from_slice(bytes);
        return Ok(moved);
    }
    for (index, byte) in moved.iter_mut().enumerate() {
        let next = bytes.get(index + 1).copied().unwrap_or(0);
        *byte = bytes[index] >> shift | next << (8 - shift);
    }
    Ok(moved)
}

/// The offsets moved so that they begin at 0, where they began before, and how far they reach.
///
/// # Safety
/// The buffer must hold `start + rows + 1` 32-bit offsets, unless `rows` is 0.
unsafe fn rebase(buffer: *const u8, start: usize, rows: usize) -> PyResult<(Vec<i32>, usize, usize)> {
    let mut offsets = zeros::<i32>(rows + 1)?;
    if rows == 0 || buffer.is_null() {
        return Ok((offsets, 0, 0));
    }
    // SAFETY: the caller vouches for the range.
    let bytes = unsafe { slice(buffer, start * 4, (rows + 1) * 4) };
    bytemuck::cast_slice_mut(&mut offsets).copy_from_slice(bytes);
    let first = offsets[0];
    let length = offsets[rows] - first;
    offsets.iter_mut().for_each(|offset| *offset -= first);
    Ok((offsets, first as usize, length as usize))
}
