//! Converts Arrow arrays to columns of a frame, and back.
//!
//! Both have the layout of Arrow's columnar format. So the buffers of an array are written into a
//! ring as they are. A frame has only offsets of 32 bits that begin at 0, and rows that begin at
//! the first. Arrays may have others, which are converted first. An INTERVAL counts microseconds in
//! a frame and nanoseconds in an array.

use arrow_array::cast::AsArray;
use arrow_array::types::IntervalMonthDayNanoType;
use arrow_array::{
    Array, ArrayRef, BinaryArray, FixedSizeListArray, IntervalMonthDayNanoArray, ListArray, MapArray,
    StringArray, StructArray, make_array,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, IntervalMonthDayNano, NullBuffer, OffsetBuffer, ScalarBuffer,
};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType as Arrow, Field, FieldRef};
use bytemuck::{Pod, Zeroable};
use crosslane::Error;
use crosslane::batch::{Body, Column, Encode, Plan};
use std::sync::Arc;

/// An INTERVAL in a frame.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Interval {
    months: i32,
    days: i32,
    microseconds: i64,
}

/// Nanoseconds of a microsecond.
const NANOSECONDS: i64 = 1000;

/// A column that a client has given: the buffers of its array.
#[derive(Debug)]
pub(super) struct Given {
    rows: usize,
    nulls: usize,
    /// The validity, and those behind it.
    buffers: Vec<Buffer>,
    children: Vec<Given>,
}

impl Encode for Given {
    fn plan(&self, plan: &mut Plan) {
        plan.node(self.rows, self.nulls);
        self.buffers.iter().for_each(|buffer| plan.buffer(buffer.len()));
        self.children.iter().for_each(|child| child.plan(plan));
    }
    fn write(&self, body: &mut Body<'_>) {
        self.buffers.iter().for_each(|buffer| body.buffer().copy_from_slice(buffer));
        self.children.iter().for_each(|child| child.write(body));
    }
}

impl Given {
    /// The rows of an array whose type [fits](super::types::fits) that of the column, `due`.
    ///
    /// # Errors
    /// [`Error::Engine`] if a value does not fit, or there are too many for offsets of 32 bits.
    pub(super) fn new(array: &ArrayRef, due: &Arrow) -> Result<Self, Error> {
        Self::read(array, due).map_err(|error| Error::Engine(format!("a column of {due}: {error}")))
    }

    fn read(array: &ArrayRef, due: &Arrow) -> Result<Self, ArrowError> {
        let given = array.data_type();
        let (buffers, children) = match (given, due) {
            (Arrow::Struct(_), Arrow::Struct(parts)) => {
                let columns = array.as_struct().columns().iter().zip(parts);
                let children = columns.map(|(child, part)| Self::read(child, part.data_type()));
                (Vec::new(), children.collect::<Result<_, _>>()?)
            }
            (Arrow::FixedSizeList(..), Arrow::FixedSizeList(element, _)) => {
                let child = Self::read(array.as_fixed_size_list().values(), element.data_type())?;
                (Vec::new(), vec![child])
            }
            (Arrow::List(_), Arrow::List(element)) => {
                let list = array.as_list::<i32>();
                Self::lists(list.offsets(), list.values(), element)?
            }
            (Arrow::LargeList(_), Arrow::List(element)) => {
                let list = array.as_list::<i64>();
                Self::lists(list.offsets(), list.values(), element)?
            }
            (Arrow::Map(..), Arrow::Map(entries, _)) => {
                let map = array.as_map();
                let elements: ArrayRef = Arc::new(map.entries().clone());
                Self::lists(map.offsets(), &elements, entries)?
            }
            (Arrow::Boolean, Arrow::Boolean) => {
                let bits = array.as_boolean().values();
                (vec![bits.sliced().slice_with_length(0, bits.len().div_ceil(8))], Vec::new())
            }
            (Arrow::Utf8, Arrow::Utf8) => {
                let text = array.as_string::<i32>();
                (Self::bytes(text.offsets(), text.values())?, Vec::new())
            }
            (Arrow::Binary, Arrow::Binary) => {
                let bytes = array.as_binary::<i32>();
                (Self::bytes(bytes.offsets(), bytes.values())?, Vec::new())
            }
            (Arrow::Interval(_), Arrow::Interval(_)) => (vec![intervals(array)?], Vec::new()),
            // The same integers, of whatever zone.
            (Arrow::Timestamp(..), Arrow::Timestamp(..)) => (vec![fixed(array)], Vec::new()),
            _ if given == due => (vec![fixed(array)], Vec::new()),
            _ => {
                let options = arrow_cast::CastOptions { safe: false, ..Default::default() };
                return Self::read(&arrow_cast::cast_with_options(array, due, &options)?, due);
            }
        };
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        let validity =
            nulls.map(|nulls| nulls.inner().sliced().slice_with_length(0, array.len().div_ceil(8)));
        let mut all = vec![validity.unwrap_or_default()];
        all.extend(buffers);
        let nulls = nulls.map_or(0, NullBuffer::null_count);
        Ok(Self { rows: array.len(), nulls, buffers: all, children })
    }

    /// The offsets of lists, and their elements.
    fn lists<O: ArrowNativeType>(
        offsets: &[O],
        elements: &ArrayRef,
        element: &FieldRef,
    ) -> Result<(Vec<Buffer>, Vec<Self>), ArrowError> {
        let (offsets, first, length) = from_zero(offsets)?;
        let child = Self::read(&elements.slice(first, length), element.data_type())?;
        Ok((vec![offsets], vec![child]))
    }

    /// The offsets of texts or bytes, and these.
    fn bytes(offsets: &[i32], values: &Buffer) -> Result<Vec<Buffer>, ArrowError> {
        let (offsets, first, length) = from_zero(offsets)?;
        Ok(vec![offsets, values.slice_with_length(first, length)])
    }
}

/// Offsets of 32 bits that begin at 0; and where they began, and how far they go.
fn from_zero<O: ArrowNativeType>(offsets: &[O]) -> Result<(Buffer, usize, usize), ArrowError> {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    if i32::try_from(last - first).is_err() {
        return Err(ArrowError::InvalidArgumentError("more than 2 GiB, or 2^31 elements".into()));
    }
    let from_zero = offsets.iter().map(|offset| (offset.as_usize() - first) as i32);
    Ok((Buffer::from_vec(from_zero.collect::<Vec<i32>>()), first, last - first))
}

/// The values of an array with values of one width.
fn fixed(array: &ArrayRef) -> Buffer {
    let data = array.to_data();
    let width = match array.data_type() {
        Arrow::FixedSizeBinary(width) => *width as usize,
        plain => plain.primitive_width().unwrap_or_default(),
    };
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

/// INTERVALs as a frame has them.
fn intervals(array: &ArrayRef) -> Result<Buffer, ArrowError> {
    let array = array.as_primitive::<IntervalMonthDayNanoType>();
    let intervals = array.iter().map(|interval| {
        let IntervalMonthDayNano { months, days, nanoseconds } = interval.unwrap_or_default();
        if nanoseconds % NANOSECONDS != 0 {
            let what = format!("{nanoseconds} ns are no whole microseconds");
            return Err(ArrowError::InvalidArgumentError(what));
        }
        Ok(Interval { months, days, microseconds: nanoseconds / NANOSECONDS })
    });
    let intervals = intervals.collect::<Result<Vec<_>, _>>()?;
    Ok(Buffer::from_slice_ref(bytemuck::cast_slice::<_, u8>(&intervals)))
}

/// A column of a frame as an array of the type that [`field`](super::types::field) gives its type. Rows whose text is
/// not UTF-8 are NULL: they are errors, or become NULL, elsewhere.
///
/// # Errors
/// If a value does not fit Arrow's type.
pub(super) fn array(column: &Column<'_>, due: &Arrow) -> Result<ArrayRef, Error> {
    made(column, due).map_err(|error| Error::Engine(format!("results of {due}: {error}")))
}

fn made(column: &Column<'_>, due: &Arrow) -> Result<ArrayRef, ArrowError> {
    let rows = column.rows;
    let nulls = column
        .validity
        .map(|bits| NullBuffer::new(BooleanBuffer::new(Buffer::from_slice_ref(bits), 0, rows)));
    let offsets = || OffsetBuffer::new(ScalarBuffer::<i32>::from(column.offsets.to_vec()));
    let child = |at: usize, part: &Field| made(&column.children[at], part.data_type());
    Ok(match due {
        Arrow::Struct(parts) => {
            let columns = parts.iter().enumerate().map(|(at, part)| child(at, part));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            Arc::new(StructArray::try_new_with_length(parts.clone(), columns, nulls, rows)?)
        }
        Arrow::List(element) => {
            Arc::new(ListArray::try_new(Arc::clone(element), offsets(), child(0, element)?, nulls)?)
        }
        Arrow::FixedSizeList(element, length) => {
            let values = child(0, element)?;
            let lists =
                FixedSizeListArray::try_new_with_length(Arc::clone(element), *length, values, nulls, rows);
            Arc::new(lists?)
        }
        Arrow::Map(entries, sorted) => {
            let parts = child(0, entries)?.as_struct().clone();
            Arc::new(MapArray::try_new(Arc::clone(entries), offsets(), parts, nulls, *sorted)?)
        }
        Arrow::Utf8 => {
            let bytes = Buffer::from_slice_ref(column.data);
            match StringArray::try_new(offsets(), bytes, nulls) {
                Ok(text) => Arc::new(text),
                Err(_) => {
                    let text =
                        |row| std::str::from_utf8(column.bytes(row)).ok().filter(|_| column.is_valid(row));
                    Arc::new(StringArray::from_iter((0..rows).map(text)))
                }
            }
        }
        Arrow::Binary => {
            Arc::new(BinaryArray::try_new(offsets(), Buffer::from_slice_ref(column.data), nulls)?)
        }
        Arrow::Interval(_) => Arc::new(as_intervals(column, nulls)?),
        _ => {
            let data = ArrayData::builder(due.clone())
                .len(rows)
                .nulls(nulls)
                .add_buffer(Buffer::from_slice_ref(column.data));
            make_array(data.build()?)
        }
    })
}

fn as_intervals(
    column: &Column<'_>,
    nulls: Option<NullBuffer>,
) -> Result<IntervalMonthDayNanoArray, ArrowError> {
    let intervals = (0..column.rows).map(|row| {
        if !column.is_valid(row) {
            return Ok(IntervalMonthDayNano::default());
        }
        let Interval { months, days, microseconds } = column.value(row);
        let nanoseconds = microseconds.checked_mul(NANOSECONDS).ok_or_else(|| {
            ArrowError::InvalidArgumentError(format!(
                "{microseconds} µs are more than Arrow's nanoseconds hold"
            ))
        })?;
        Ok(IntervalMonthDayNano { months, days, nanoseconds })
    });
    let intervals = intervals.collect::<Result<Vec<_>, ArrowError>>()?;
    IntervalMonthDayNanoArray::try_new(intervals.into(), nulls)
}
