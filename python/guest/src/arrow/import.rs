//! Columns as pyarrow arrays and back, through the Arrow C data interface
//! (<https://arrow.apache.org/docs/format/CDataInterface.html>).
//!
//! Arguments are copied once, because a function may keep its arrays longer than the ring keeps the
//! batch. Some types have another form here than on the wire: HUGEINT and UHUGEINT are
//! `decimal256(39, 0)`, the only Arrow type that holds them exactly, and BIGNUM is `decimal256(76, 0)`; INTERVAL
//! counts nanoseconds; a result ENUM is a string; TIMETZ is a struct of the time and the zone's seconds east of UTC.

use crate::values::objects::overflow;
use crosslane::batch::{Body, Column, Encode, Plan, bit};
use crosslane::builder::Overflow;
use crosslane::{DataType, Field, Layout, code_width, integer, timetz};
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::ffi::{CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::LazyLock;

#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

const NULLABLE: i64 = 2;

/// What a TIMETZ is in Arrow.
static TIMETZ: LazyLock<DataType> = LazyLock::new(|| {
    let field = |name: &str, data_type| Field { name: name.into(), data_type };
    DataType::Struct([field("time", DataType::Time), field("offset", DataType::Integer)].into())
});

/// 10^76, beyond which a `decimal256` has no numbers.
const MOST_BIGNUM: [u64; 4] = [0x0, 0x7775a5f171951000, 0x764b4abe8652979, 0x161bcca7119915b5];

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: who made the array has set this, and who took it over has cleared it.
            unsafe { release(self) };
        }
    }
}

/// What a schema points to; freed by its release callback.
struct SchemaParts {
    _format: CString,
    _name: CString,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

/// What an array points to; freed by its release callback.
struct ArrayParts {
    _data: Vec<Vec<u64>>,
    _buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the consumer calls this once, with a schema that `schema()` made.
    unsafe {
        let parts = Box::from_raw((*schema).private_data.cast::<SchemaParts>());
        for child in parts.children.iter().chain([&parts.dictionary]).filter(|child| !child.is_null()) {
            let child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(ptr::from_ref(&*child).cast_mut());
            }
        }
        (*schema).release = None;
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the consumer calls this once, with an array that `array()` made. A consumer that moved
    // a child out has cleared that child's release.
    unsafe {
        let parts = Box::from_raw((*array).private_data.cast::<ArrayParts>());
        for child in parts.children.iter().chain([&parts.dictionary]).filter(|child| !child.is_null()) {
            drop(Box::from_raw(*child));
        }
        (*array).release = None;
    }
}

/// Whether a type is meant for arguments or for results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Argument,
    Result,
}

fn schema(data_type: &DataType, name: &str, direction: Direction) -> PyResult<Box<ArrowSchema>> {
    use DataType as T;
    let format = match data_type {
        T::Boolean => "b".into(),
        T::TinyInt => "c".into(),
        T::UTinyInt => "C".into(),
        T::SmallInt => "s".into(),
        T::USmallInt => "S".into(),
        T::Integer => "i".into(),
        T::UInteger => "I".into(),
        T::BigInt => "l".into(),
        T::UBigInt => "L".into(),
        T::TimeTz => return schema(&TIMETZ, name, direction),
        T::HugeInt | T::UHugeInt => "d:39,0,256".into(),
        T::BigNum => "d:76,0,256".into(),
        T::Float => "f".into(),
        T::Double => "g".into(),
        T::Decimal { precision, scale } => format!("d:{precision},{scale}"),
        T::Varchar | T::Json | T::Bit => "u".into(),
        T::Blob | T::Geometry => "z".into(),
        T::Date => "tdD".into(),
        T::Time => "ttu".into(),
        T::TimeNs => "ttn".into(),
        T::TimestampS => "tss:".into(),
        T::TimestampMs => "tsm:".into(),
        T::Timestamp => "tsu:".into(),
        T::TimestampNs => "tsn:".into(),
        T::TimestampTz => "tsu:UTC".into(),
        T::Interval => "tin".into(),
        T::Uuid => "w:16".into(),
        T::Enum(_) if direction == Direction::Result => "u".into(),
        T::Enum(values) => match code_width(values.len()) {
            1 => "C".into(),
            2 => "S".into(),
            _ => "I".into(),
        },
        T::List(_) => "+l".into(),
        T::Array(_, length) => format!("+w:{length}"),
        T::Struct(_) | T::Union(_) => "+s".into(),
        T::Map(_) => "+m".into(),
        T::Any => return Err(PyTypeError::new_err("a column has a type, and ANY is none")),
    };
    let names: Vec<&str> = match data_type {
        T::Struct(fields) | T::Union(fields) => fields.iter().map(|field| field.name.as_str()).collect(),
        T::Map(_) => vec!["entries"],
        _ => vec!["item"; data_type.children().len()],
    };
    let mut children = Vec::new();
    for (child, name) in data_type.children().zip(names) {
        let mut child = schema(child, name, direction)?;
        if matches!(data_type, T::Map(_)) {
            child.flags = 0;
            // SAFETY: a map's entries are a struct of key and value, made just above.
            unsafe { (**child.children).flags = 0 };
        }
        children.push(Box::into_raw(child));
    }
    let dictionary = match data_type {
        T::Enum(_) if direction == Direction::Argument => Box::into_raw(schema(&T::Varchar, "", direction)?),
        _ => ptr::null_mut(),
    };
    let mut parts = Box::new(SchemaParts {
        _format: CString::new(format)?,
        _name: CString::new(name)?,
        children,
        dictionary,
    });
    Ok(Box::new(ArrowSchema {
        format: parts._format.as_ptr(),
        name: parts._name.as_ptr(),
        metadata: ptr::null(),
        flags: NULLABLE,
        n_children: parts.children.len() as i64,
        children: parts.children.as_mut_ptr(),
        dictionary,
        release: Some(release_schema),
        private_data: Box::into_raw(parts).cast(),
    }))
}

/// The pyarrow type of a SQL type.
pub(crate) fn pyarrow_type<'py>(
    py: Python<'py>,
    data_type: &DataType,
    direction: Direction,
) -> PyResult<Bound<'py, PyAny>> {
    let schema = schema(data_type, "", direction)?;
    let address = ptr::from_ref(&*schema) as usize;
    py.import("pyarrow")?.getattr("DataType")?.call_method1("_import_from_c", (address,))
}

/// So many zeros, if there is memory for them.
fn zeros<T: bytemuck::Zeroable + Copy>(count: usize) -> PyResult<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| {
        let bytes = count.saturating_mul(size_of::<T>());
        PyMemoryError::new_err(format!("there is no memory for {bytes} bytes of a batch"))
    })
}

/// A copy of bytes at an address that is a multiple of eight.
fn copy(bytes: &[u8]) -> PyResult<Vec<u64>> {
    let mut words = zeros(bytes.len().div_ceil(8).max(1))?;
    bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    Ok(words)
}

/// A 128-bit integer as the 256 bits of a `decimal256`.
fn widen(low: [u8; 16], negative: bool) -> [u8; 32] {
    let mut wide = [if negative { 0xFF } else { 0 }; 32];
    wide[..16].copy_from_slice(&low);
    wide
}

fn data(column: &Column<'_>) -> PyResult<Vec<u64>> {
    match column.data_type {
        DataType::HugeInt | DataType::UHugeInt => {
            let signed = *column.data_type == DataType::HugeInt;
            let mut words = zeros::<u64>((column.rows * 4).max(1))?;
            let wide = bytemuck::cast_slice_mut::<u64, u8>(&mut words).chunks_exact_mut(32);
            for (row, wide) in wide.enumerate() {
                let value: [u8; 16] = column.value(row);
                wide.copy_from_slice(&widen(value, signed && value[15] & 0x80 != 0));
            }
            Ok(words)
        }
        DataType::Interval => {
            let mut words = copy(column.data)?;
            let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
            for (row, value) in bytes.chunks_exact_mut(16).enumerate() {
                let micros: i64 = bytemuck::pod_read_unaligned(&value[8..]);
                let nanos = micros.checked_mul(1000).or((!column.is_valid(row)).then_some(0));
                let nanos = nanos.ok_or_else(|| {
                    PyOverflowError::new_err("an INTERVAL of more than 292 years of time does not fit Arrow")
                })?;
                value[8..].copy_from_slice(&nanos.to_le_bytes());
            }
            Ok(words)
        }
        _ => copy(column.data),
    }
}

/// BIGNUMs as the values of a `decimal256`.
fn wide_integers(column: &Column<'_>) -> PyResult<Vec<u64>> {
    let mut words = zeros::<u64>((column.rows * 4).max(1))?;
    for (row, wide) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let bytes = integer::trimmed(column.bytes(row));
        let negative = integer::is_negative(bytes);
        let mut place = [if negative { 0xFF } else { 0 }; 32];
        let fits = bytes.len() <= place.len() && {
            place[..bytes.len()].copy_from_slice(bytes);
            *wide = bytemuck::cast(place);
            magnitude(*wide, negative).iter().rev().lt(MOST_BIGNUM.iter().rev())
        };
        if !fits {
            return Err(PyOverflowError::new_err(
                "this BIGNUM lies outside of the 76 digits of Arrow's decimals; a row function can take it",
            ));
        }
    }
    Ok(words)
}

/// The distance of a two's complement from zero.
fn magnitude(words: [u64; 4], negative: bool) -> [u64; 4] {
    let mut carry = negative;
    words.map(|word| {
        let (word, over) = if negative { !word } else { word }.overflowing_add(u64::from(carry));
        carry = over;
        word
    })
}

/// TIMETZs as a struct.
fn times_with_zones(column: &Column<'_>) -> PyResult<Box<ArrowArray>> {
    let (mut times, mut offsets) = (zeros::<i64>(column.rows)?, zeros::<i32>(column.rows)?);
    for (row, (time, offset)) in times.iter_mut().zip(&mut offsets).enumerate() {
        (*time, *offset) = timetz::parts(column.value(row));
    }
    let child = |data_type, data| Column {
        data_type,
        rows: column.rows,
        validity: None,
        offsets: &[],
        data,
        children: Vec::new(),
    };
    let time = child(&DataType::Time, bytemuck::cast_slice(&times));
    let offset = child(&DataType::Integer, bytemuck::cast_slice(&offsets));
    array(&Column { data_type: &TIMETZ, data: &[], children: vec![time, offset], ..column.clone() })
}

fn array(column: &Column<'_>) -> PyResult<Box<ArrowArray>> {
    if *column.data_type == DataType::TimeTz {
        return times_with_zones(column);
    }
    let mut data_parts = Vec::new();
    let mut buffers = vec![ptr::null()];
    let mut push = |words: Vec<u64>| {
        let address = words.as_ptr().cast::<c_void>();
        data_parts.push(words);
        address
    };
    if let Some(validity) = column.validity {
        buffers[0] = push(copy(&validity[..column.rows.div_ceil(8)])?);
    }
    match column.data_type.layout() {
        Layout::Bits | Layout::Fixed(_) => buffers.push(push(data(column)?)),
        Layout::Bytes { .. } if *column.data_type == DataType::BigNum => {
            buffers.push(push(wide_integers(column)?))
        }
        Layout::Bytes { .. } => {
            buffers.push(push(copy(bytemuck::cast_slice(column.offsets))?));
            buffers.push(push(copy(column.data)?));
        }
        Layout::List => buffers.push(push(copy(bytemuck::cast_slice(column.offsets))?)),
        Layout::FixedList(_) | Layout::Struct => {}
    }
    let children = column.children.iter().map(array).collect::<PyResult<Vec<_>>>()?;
    let dictionary = match column.data_type {
        DataType::Enum(values) => {
            let mut offsets = vec![0i32];
            let mut text = Vec::new();
            for value in values.iter() {
                text.extend_from_slice(value.as_bytes());
                offsets.push(text.len() as i32);
            }
            let values = Column {
                data_type: &DataType::Varchar,
                rows: values.len(),
                validity: None,
                offsets: &offsets,
                data: &text,
                children: Vec::new(),
            };
            Box::into_raw(array(&values)?)
        }
        _ => ptr::null_mut(),
    };
    let children = children.into_iter().map(Box::into_raw).collect();
    let mut parts = Box::new(ArrayParts { _data: data_parts, _buffers: buffers, children, dictionary });
    Ok(Box::new(ArrowArray {
        length: column.rows as i64,
        null_count: if column.validity.is_some() { -1 } else { 0 },
        offset: 0,
        n_buffers: parts._buffers.len() as i64,
        n_children: parts.children.len() as i64,
        buffers: parts._buffers.as_mut_ptr(),
        children: parts.children.as_mut_ptr(),
        dictionary,
        release: Some(release_array),
        private_data: Box::into_raw(parts).cast(),
    }))
}

/// A column as a pyarrow array of a type that [`pyarrow_type`] gave.
pub(crate) fn to_pyarrow<'py>(
    column: &Column<'_>,
    pyarrow_type: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = array(column)?;
    let address = ptr::from_ref(&*array) as usize;
    let class = pyarrow_type.py().import("pyarrow")?.getattr("Array")?;
    class.call_method1("_import_from_c", (address, pyarrow_type))
}

/// A pyarrow array as a batch of results. Keeps the array's buffers alive.
pub(crate) struct Results {
    column: Out,
    _array: Box<ArrowArray>,
}

// SAFETY: it is memory that nobody changes, and that pyarrow releases from whatever thread; no Python object is touched.
unsafe impl Send for Results {}
// SAFETY: as above.
unsafe impl Sync for Results {}

/// One column of results: what is as on the wire stays in pyarrow's memory.
struct Out {
    rows: usize,
    nulls: usize,
    validity: Vec<u8>,
    offsets: Option<Vec<i32>>,
    data: Option<Data>,
    children: Vec<Out>,
}

enum Data {
    Borrowed(*const u8, usize),
    Owned(Vec<u8>),
}

impl Results {
    /// Takes an array of the pyarrow type of `data_type` as a result.
    pub(crate) fn new(array: &Bound<'_, PyAny>, data_type: &DataType) -> PyResult<Self> {
        let Exported(exported) = Exported::new(array)?;
        let rows = exported.length as usize;
        // SAFETY: pyarrow just exported the array, and the result keeps it.
        let column = unsafe { Out::read(&exported, data_type, 0, rows)? };
        Ok(Self { column, _array: exported })
    }
}

/// A pyarrow array of which parts are results, without copies of it.
pub(crate) struct Exported(Box<ArrowArray>);

/// Some rows of an array.
pub(crate) struct Part<'a> {
    column: Out,
    _array: PhantomData<&'a Exported>,
}

// SAFETY: nobody writes to an exported array, which pyarrow releases from whatever thread; no Python object is touched.
unsafe impl Send for Exported {}
// SAFETY: nobody writes to an exported array.
unsafe impl Sync for Exported {}
// SAFETY: a part only reads an exported array.
unsafe impl Sync for Part<'_> {}

impl Exported {
    /// How many rows it has.
    pub(crate) fn rows(&self) -> usize {
        self.0.length as usize
    }

    pub(crate) fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: all-zero is a valid ArrowArray: null pointers and no release.
        let mut exported: Box<ArrowArray> = Box::new(unsafe { std::mem::zeroed() });
        array.call_method1("_export_to_c", (&raw mut *exported as usize,))?;
        Ok(Self(exported))
    }

    /// Some rows, of which there must be as many, of an array of the pyarrow type of `data_type`.
    pub(crate) fn part(&self, data_type: &DataType, first: usize, rows: usize) -> PyResult<Part<'_>> {
        if first + rows > self.0.length as usize {
            return Err(PyRuntimeError::new_err("an array without these rows"));
        }
        // SAFETY: pyarrow exported the array, which has these rows and outlives the part.
        let column = unsafe { Out::read(&self.0, data_type, first, rows)? };
        Ok(Part { column, _array: PhantomData })
    }
}

impl Encode for Part<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.column.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.column.write(body);
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

impl Out {
    fn empty() -> Self {
        Self { rows: 0, nulls: 0, validity: Vec::new(), offsets: None, data: None, children: Vec::new() }
    }

    /// Reads `rows` rows from `first` on, counted without the array's own offset.
    ///
    /// # Safety
    /// `array` must be a valid array of the type's layout with at least `first + rows` rows, and must
    /// outlive the result.
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
    /// As [`Out::read`], of the children.
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
            self.children.push(unsafe { Out::read(&**array.children.add(index), child, first, rows)? });
        }
        Ok(())
    }

    /// The codes of ENUM values that come as strings.
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

    /// TIMETZs from a struct, which is not NULL where self is not.
    fn times_with_zones(&self, parts: &Out) -> PyResult<Vec<u8>> {
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

    /// The bytes of a row that is not NULL.
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

impl Encode for Out {
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

/// `rows` bits from `start` on, moved to the start of bytes; empty if there is no bitmap.
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

/// (offsets that begin at 0, where they began, how far they reach).
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
