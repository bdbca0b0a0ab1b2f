//! Columns as pyarrow arrays.

use super::c_data::ArrowArray;
use super::memory::{copy, widen, zeros};
use super::schema::TIMETZ;
use crosslane::batch::Column;
use crosslane::{DataType, Layout, integer, timetz};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use std::ffi::c_void;
use std::ptr;

/// 10^76, the first number that a `decimal256` does not have.
const MOST_BIGNUM: [u64; 4] = [0x0, 0x7775a5f171951000, 0x764b4abe8652979, 0x161bcca7119915b5];

/// The memory that an array points to. The release callback frees it.
struct ArrayParts {
    _data: Vec<Vec<u64>>,
    _buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the consumer calls this once, with an array that `array()` made. A consumer that
    // moved a child out has cleared that child's release.
    unsafe {
        let parts = Box::from_raw((*array).private_data.cast::<ArrayParts>());
        for child in parts.children.iter().chain([&parts.dictionary]).filter(|child| !child.is_null()) {
            drop(Box::from_raw(*child));
        }
        (*array).release = None;
    }
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

/// TIMETZs as structs.
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
