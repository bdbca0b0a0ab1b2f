//! The values of arrays.

use super::schema::{Encoding, Index, Node, Schema, Units};
use crate::types::encoding;
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType};
use libduckdb_sys as ffi;
use std::ops::Range;

/// The rows that a stream gave at once.
#[derive(Debug)]
pub struct Batch<'a> {
    all: Values<'a>,
}

/// Why a value cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The rows are too many, or there is no memory.
    Overflow(Overflow),
    /// What is wrong with the array, or with a value.
    Wrong(String),
}

impl From<Overflow> for Refusal {
    fn from(overflow: Overflow) -> Self {
        Refusal::Overflow(overflow)
    }
}

impl From<String> for Refusal {
    fn from(what: String) -> Self {
        Refusal::Wrong(what)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Overflow(overflow) => overflow.fmt(f),
            Refusal::Wrong(what) => f.write_str(what),
        }
    }
}

/// An array, with what belongs to it.
#[derive(Debug)]
struct Values<'a> {
    node: Shape<'a>,
    length: usize,
    /// Where its rows begin in its buffers, and in its children.
    offset: usize,
    /// Null if no row is.
    validity: *const u8,
    /// Those behind the validity.
    buffers: &'a [*const u8],
    children: Vec<Values<'a>>,
}

/// What an array is.
#[derive(Debug, Clone, Copy)]
struct Shape<'a> {
    data_type: Option<&'a DataType>,
    encoding: &'a Encoding,
}

/// The array of a whole batch is a STRUCT of its columns.
const BATCH: Encoding = Encoding::Struct;

impl<'a> Batch<'a> {
    /// The rows of an array.
    ///
    /// # Errors
    /// How the array differs from the schema, or cannot be one.
    ///
    /// # Safety
    /// It must be an array of the C data interface that was not released, of a stream with this schema, and stay as it is.
    pub unsafe fn new(schema: &'a Schema, array: &'a ffi::ArrowArray) -> Result<Self, String> {
        // SAFETY: as the caller says.
        let all = unsafe {
            let shape = Shape { data_type: None, encoding: &BATCH };
            let arrays = children(array)?;
            if arrays.len() != schema.columns.len() {
                let (given, due) = (arrays.len(), schema.columns.len());
                return Err(format!("an array of {given} columns, where the stream's schema has {due}"));
            }
            let columns = schema.columns.iter().zip(arrays).map(|(column, array)| {
                Values::new(column, array).map_err(|why| format!("column {}: {why}", column.name))
            });
            Values::with(shape, array, columns.collect::<Result<_, _>>()?)?
        };
        Ok(Self { all })
    }

    /// How many there are.
    pub fn rows(&self) -> usize {
        self.all.length
    }

    /// Adds some rows of a column.
    ///
    /// # Errors
    /// [`Refusal`]; then the column holds a part of them.
    pub fn append(&self, column: usize, rows: Range<usize>, out: &mut ColumnBuilder) -> Result<(), Refusal> {
        out.reserve(rows.len())?;
        let values = &self.all.children[column];
        let first = self.all.offset;
        if self.all.validity.is_null() {
            return values.append_all(first + rows.start..first + rows.end, out);
        }
        for row in rows {
            if self.all.is_valid(row) { values.append(first + row, out)? } else { out.null() }
        }
        Ok(())
    }
}

impl<'a> Values<'a> {
    /// # Safety
    /// As [`Batch::new`].
    unsafe fn new(node: &'a Node, array: &'a ffi::ArrowArray) -> Result<Self, String> {
        // SAFETY: as the caller says.
        unsafe {
            let arrays = match &node.encoding {
                Encoding::Dictionary(_) => {
                    let values = array.dictionary.as_ref().ok_or("an array without its dictionary")?;
                    vec![values]
                }
                _ => children(array)?,
            };
            if arrays.len() != node.children.len() {
                let (given, due) = (arrays.len(), node.children.len());
                return Err(format!("an array of {given} children, where its schema has {due}"));
            }
            let parts = node.children.iter().zip(arrays).map(|(node, array)| Values::new(node, array));
            let shape = Shape { data_type: Some(&node.data_type), encoding: &node.encoding };
            Values::with(shape, array, parts.collect::<Result<_, _>>()?)
        }
    }

    /// # Safety
    /// As [`Batch::new`].
    unsafe fn with(
        node: Shape<'a>,
        array: &'a ffi::ArrowArray,
        children: Vec<Values<'a>>,
    ) -> Result<Self, String> {
        let sizes = (usize::try_from(array.length), usize::try_from(array.offset));
        let (Ok(length), Ok(offset)) = sizes else {
            return Err(format!("an array of {} rows from {} on", array.length, array.offset));
        };
        let Some(end) = length.checked_add(offset) else {
            return Err(format!("an array of {length} rows from {offset} on"));
        };
        let (with_validity, least) = buffers(node.encoding);
        let due = usize::from(with_validity) + least;
        let exact = !matches!(innermost(node.encoding), Encoding::BytesView | Encoding::Null);
        let count = usize::try_from(array.n_buffers).unwrap_or_default();
        if count < due || (exact && count > due) || (due > 0 && array.buffers.is_null()) {
            return Err(format!("an array of {} buffers, where {due} are due", array.n_buffers));
        }
        let all: &[*const u8] = if count == 0 || array.buffers.is_null() {
            &[]
        } else {
            // SAFETY: as the caller says, there are so many.
            unsafe { std::slice::from_raw_parts(array.buffers.cast(), count) }
        };
        let (first, behind) = all.split_at(usize::from(with_validity));
        let validity = match first {
            [validity] if array.null_count != 0 => *validity,
            _ => std::ptr::null(),
        };
        if array.null_count > 0 && with_validity && validity.is_null() && length > 0 {
            return Err(format!("an array with {} NULLs and no validity", array.null_count));
        }
        // Where all texts are empty there need be no bytes.
        let needed = match innermost(node.encoding) {
            Encoding::Bytes { .. } | Encoding::BytesView => 1,
            Encoding::Blob(0) | Encoding::Null => 0,
            _ => least,
        };
        if end > 0 && behind[..needed].iter().any(|buffer| buffer.is_null()) {
            return Err("an array without one of its buffers".into());
        }
        let rows = match node.encoding {
            Encoding::Struct | Encoding::Union { dense: false, .. } => Some(end),
            Encoding::FixedList(size) => {
                Some(end.checked_mul(*size).ok_or_else(|| format!("{end} lists of {size} elements"))?)
            }
            _ => None,
        };
        if let (Some(rows), Some(short)) =
            (rows, children.iter().find(|child| rows.is_some_and(|rows| child.length < rows)))
        {
            return Err(format!("a child of {} rows, where {rows} belong", short.length));
        }
        Ok(Self { node, length, offset, validity, buffers: behind, children })
    }

    /// Whether the array itself does not say that a row is NULL.
    fn is_valid(&self, row: usize) -> bool {
        // SAFETY: the bitmap has a bit for each row, behind the offset.
        self.validity.is_null() || unsafe { bit(self.validity, self.offset + row) }
    }

    /// Whether a row is NULL, which encoded values and those of unions are by what they stand for.
    fn is_null(&self, row: usize) -> Result<bool, Refusal> {
        self.check(row)?;
        if !self.is_valid(row) {
            return Ok(true);
        }
        match self.node.encoding {
            Encoding::Null => Ok(true),
            Encoding::Dictionary(index) => self.children[0].is_null(self.index(row, *index)?),
            Encoding::Runs(width) => self.children[1].is_null(self.run(row, *width)?),
            Encoding::Union { .. } => {
                let (member, row) = self.member(row)?;
                Ok(member == 0 && self.children[member].is_null(row)?)
            }
            _ => Ok(false),
        }
    }

    fn check(&self, row: usize) -> Result<(), Refusal> {
        if row < self.length {
            return Ok(());
        }
        Err(Refusal::Wrong(format!("an array of {} rows, which is asked for row {row}", self.length)))
    }

    /// Adds rows to a column that has room for what is fixed of them.
    fn append_all(&self, rows: Range<usize>, out: &mut ColumnBuilder) -> Result<(), Refusal> {
        if let Some(last) = rows.clone().last() {
            self.check(last)?;
        }
        // SAFETY: the array has the rows, and none of them is NULL.
        let plain = self.validity.is_null()
            && unsafe {
                match self.node.encoding {
                    Encoding::Fixed(1) => self.copy::<1>(&rows, out),
                    Encoding::Fixed(2) => self.copy::<2>(&rows, out),
                    Encoding::Fixed(4) => self.copy::<4>(&rows, out),
                    Encoding::Fixed(8) => self.copy::<8>(&rows, out),
                    Encoding::Fixed(16) => self.copy::<16>(&rows, out),
                    _ => false,
                }
            };
        if plain { Ok(()) } else { rows.into_iter().try_for_each(|row| self.append(row, out)) }
    }

    /// # Safety
    /// The array must be of values of so many bytes, and have the rows.
    unsafe fn copy<const N: usize>(&self, rows: &Range<usize>, out: &mut ColumnBuilder) -> bool
    where
        [u8; N]: bytemuck::Pod,
    {
        if !rows.is_empty() {
            // SAFETY: as the caller says; bytes have no alignment.
            let values = unsafe {
                let first = self.buffers[0].cast::<[u8; N]>().add(self.offset + rows.start);
                std::slice::from_raw_parts(first, rows.len())
            };
            out.fixed_all(values);
        }
        true
    }

    /// Adds a row.
    fn append(&self, row: usize, out: &mut ColumnBuilder) -> Result<(), Refusal> {
        use Encoding as E;
        self.check(row)?;
        if !self.is_valid(row) {
            out.null();
            return Ok(());
        }
        let at = self.offset + row;
        // SAFETY: the array has the row, and its buffers the values of it.
        unsafe {
            match self.node.encoding {
                E::Null => out.null(),
                E::Bits => out.boolean(bit(self.buffers[0], at)),
                E::Flags => out.boolean(self.value::<i8>(at) != 0),
                E::Fixed(1) => out.fixed(self.value::<[u8; 1]>(at)),
                E::Fixed(2) => out.fixed(self.value::<[u8; 2]>(at)),
                E::Fixed(4) => out.fixed(self.value::<[u8; 4]>(at)),
                E::Fixed(8) => out.fixed(self.value::<[u8; 8]>(at)),
                E::Fixed(_) => out.fixed(self.value::<[u8; 16]>(at)),
                E::Half => out.fixed(half(self.value(at))),
                E::Decimal(width) => out.fixed(self.decimal(at, *width)?),
                E::Units(units) if self.node.data_type == Some(&DataType::Date) => {
                    let days = self.units(at, *units)?;
                    let days = i32::try_from(days).map_err(|_| format!("{days} days, which is no DATE"))?;
                    out.fixed(days);
                }
                E::Units(units) => out.fixed(self.units(at, *units)?),
                E::Duration(units) => out.fixed(interval(0, 0, self.units(at, *units)?)),
                E::Months => out.fixed(interval(self.value(at), 0, 0)),
                E::DaysAndMillis => {
                    let [days, millis] = self.value::<[i32; 2]>(at);
                    out.fixed(interval(0, days, i64::from(millis) * 1000));
                }
                E::MonthsDaysNanos => {
                    let [months, days] = self.value::<[i32; 2]>(at * 2);
                    let nanos = self.value::<i64>(at * 2 + 1);
                    out.fixed(interval(months, days, scaled(nanos, 1, 1000)?));
                }
                E::Blob(_) | E::Bytes { .. } | E::BytesView => {
                    out.bytes(self.bytes(self.node.encoding, at)?)?
                }
                E::Recoded(encoding) => {
                    let bytes = self.bytes(encoding, at)?;
                    let data_type = self.node.data_type.unwrap_or(&DataType::Bit);
                    let mut value = Vec::new();
                    let most = encoding::longest(data_type, bytes.len());
                    value.try_reserve(most).map_err(|_| Overflow::NoMemory)?;
                    encoding::decode(data_type, bytes, &mut value);
                    out.bytes(&value)?;
                }
                E::List { .. } | E::ListView { .. } | E::FixedList(_) => {
                    let elements = self.elements(at)?;
                    out.children[0].reserve(elements.len())?;
                    self.children[0].append_all(elements, &mut out.children[0])?;
                    out.nested()?;
                }
                E::Struct => {
                    for (child, out) in self.children.iter().zip(&mut out.children) {
                        child.append(at, out)?;
                    }
                    out.nested()?;
                }
                E::Union { .. } => {
                    let (member, row) = self.member(row)?;
                    if member == 0 && self.children[member].is_null(row)? {
                        out.null();
                        return Ok(());
                    }
                    out.children[0].fixed(member as u8);
                    for (index, out) in out.children[1..].iter_mut().enumerate() {
                        if index == member { self.children[member].append(row, out)? } else { out.null() }
                    }
                    out.nested()?;
                }
                E::Runs(width) => self.children[1].append(self.run(row, *width)?, out)?,
                E::Dictionary(index) => self.children[0].append(self.index(row, *index)?, out)?,
            }
        }
        Ok(())
    }

    /// # Safety
    /// The first buffer must have such a value there.
    unsafe fn value<T: bytemuck::Pod>(&self, at: usize) -> T {
        // SAFETY: as the caller says.
        unsafe { value(self.buffers[0], at) }
    }

    /// An integer of so many bytes.
    ///
    /// # Safety
    /// The buffer must have one there.
    unsafe fn integer(buffer: *const u8, at: usize, width: usize) -> i64 {
        // SAFETY: as the caller says.
        unsafe {
            match width {
                1 => value::<i8>(buffer, at).into(),
                2 => value::<i16>(buffer, at).into(),
                4 => value::<i32>(buffer, at).into(),
                _ => value(buffer, at),
            }
        }
    }

    /// # Safety
    /// As [`Values::value`].
    unsafe fn units(&self, at: usize, units: Units) -> Result<i64, Refusal> {
        // SAFETY: as the caller says.
        Ok(scaled(unsafe { Self::integer(self.buffers[0], at, units.width) }, units.times, units.per)?)
    }

    /// # Safety
    /// As [`Values::value`].
    unsafe fn decimal(&self, at: usize, width: usize) -> Result<i128, Refusal> {
        // SAFETY: as the caller says.
        unsafe {
            if width == 32 {
                let [low, high] = self.value::<[i128; 2]>(at);
                if high != low >> 127 {
                    return Err(Refusal::Wrong("a decimal of more than 38 digits".into()));
                }
                return Ok(low);
            }
            if width == 16 {
                return Ok(self.value(at));
            }
            Ok(Self::integer(self.buffers[0], at, width).into())
        }
    }

    /// # Safety
    /// The array must have the row at this place, and this encoding.
    unsafe fn bytes(&self, encoding: &Encoding, at: usize) -> Result<&'a [u8], Refusal> {
        // SAFETY: as the caller says; there are so many bytes where an array says so.
        unsafe {
            match encoding {
                Encoding::Blob(width) => {
                    Ok(std::slice::from_raw_parts(self.buffers[0].add(at * width), *width))
                }
                Encoding::BytesView => self.view(at),
                _ => {
                    let width = if let Encoding::Bytes { large: true } = encoding { 8 } else { 4 };
                    let [start, end] = [at, at + 1].map(|at| Self::integer(self.buffers[0], at, width));
                    if start < 0 || end < start {
                        return Err(Refusal::Wrong(format!("bytes from {start} to {end}")));
                    }
                    slice(self.buffers[1], start as usize, (end - start) as usize)
                }
            }
        }
    }

    /// # Safety
    /// As [`Values::bytes`].
    unsafe fn view(&self, at: usize) -> Result<&'a [u8], Refusal> {
        // SAFETY: as the caller says; the last buffer has the lengths of those between it and the first.
        unsafe {
            let place = self.buffers[0].add(at * 16);
            let [length, _, buffer, offset] = value::<[i32; 4]>(place, 0);
            let wrong =
                || Refusal::Wrong(format!("a view of {length} bytes of buffer {buffer} from {offset} on"));
            let count = usize::try_from(length).map_err(|_| wrong())?;
            if count <= 12 {
                return Ok(std::slice::from_raw_parts(place.add(4), count));
            }
            let [sizes, rest @ ..] = &self.buffers[1..] else { return Err(wrong()) };
            let (sizes, buffers) = match rest {
                [between @ .., last] => (*last, std::iter::once(sizes).chain(between)),
                [] => return Err(wrong()),
            };
            let (Ok(index), Ok(start)) = (usize::try_from(buffer), usize::try_from(offset)) else {
                return Err(wrong());
            };
            let Some(bytes) = buffers.copied().nth(index) else { return Err(wrong()) };
            if sizes.is_null() || (start + count) as i64 > value::<i64>(sizes, index) {
                return Err(wrong());
            }
            slice(bytes, start, count)
        }
    }

    /// The rows of the child that belong to a list.
    ///
    /// # Safety
    /// The array must have the row at this place, and be one of lists.
    unsafe fn elements(&self, at: usize) -> Result<Range<usize>, Refusal> {
        let wide = |large: bool| if large { 8 } else { 4 };
        // SAFETY: as the caller says.
        let (start, end) = unsafe {
            match self.node.encoding {
                Encoding::FixedList(size) => return Ok(at * size..(at + 1) * size),
                Encoding::ListView { large } => {
                    let start = Self::integer(self.buffers[0], at, wide(*large));
                    (start, start.saturating_add(Self::integer(self.buffers[1], at, wide(*large))))
                }
                encoding => {
                    let width = wide(matches!(encoding, Encoding::List { large: true }));
                    let [start, end] = [at, at + 1].map(|at| Self::integer(self.buffers[0], at, width));
                    (start, end)
                }
            }
        };
        let length = self.children[0].length;
        if start < 0 || end < start || end as usize > length {
            return Err(Refusal::Wrong(format!("a list of elements {start} to {end} out of {length}")));
        }
        Ok(start as usize..end as usize)
    }

    /// The member that a row of a union has, and its row.
    fn member(&self, row: usize) -> Result<(usize, usize), Refusal> {
        let Encoding::Union { dense, members } = self.node.encoding else {
            return Err(Refusal::Wrong("no union".into()));
        };
        let at = self.offset + row;
        // SAFETY: the array has the row, and its buffers a type, and if it is dense a place, for each.
        let (id, place) = unsafe {
            (value::<i8>(self.buffers[0], at), if *dense { value::<i32>(self.buffers[1], at) } else { 0 })
        };
        let Some(member) = members.get(&id) else {
            return Err(Refusal::Wrong(format!("a union's type {id}, which its schema does not have")));
        };
        let row = if *dense { usize::try_from(place) } else { Ok(at) };
        Ok((*member, row.map_err(|_| format!("a union's row {place}"))?))
    }

    /// The value of the run that a row belongs to.
    fn run(&self, row: usize, width: usize) -> Result<usize, Refusal> {
        let ends = &self.children[0];
        let at = (self.offset + row) as i64;
        let (mut low, mut high) = (0, ends.length);
        while low < high {
            let middle = low + (high - low) / 2;
            // SAFETY: there are so many ends.
            let end = unsafe { Self::integer(ends.buffers[0], ends.offset + middle, width) };
            if end > at { high = middle } else { low = middle + 1 }
        }
        if low == ends.length {
            return Err(Refusal::Wrong(format!("{low} runs, which end before row {at}")));
        }
        Ok(low)
    }

    /// The value of a dictionary that a row stands for.
    fn index(&self, row: usize, index: Index) -> Result<usize, Refusal> {
        // SAFETY: the array has the row, and an index of this width for it.
        let given = unsafe { Self::integer(self.buffers[0], self.offset + row, index.width) };
        let given = match index.width {
            _ if index.signed => i128::from(given),
            8 => i128::from(given as u64),
            width => i128::from(given as u64 & ((1 << (width * 8)) - 1)),
        };
        let length = self.children[0].length;
        match usize::try_from(given) {
            Ok(index) if index < length => Ok(index),
            _ => Err(Refusal::Wrong(format!("index {given} of a dictionary of {length} values"))),
        }
    }
}

/// Whether there is a validity, and how many buffers follow at least.
fn buffers(encoding: &Encoding) -> (bool, usize) {
    use Encoding as E;
    match encoding {
        E::Null | E::Runs(_) => (false, 0),
        E::Union { dense, .. } => (false, 1 + usize::from(*dense)),
        E::Struct | E::FixedList(_) => (true, 0),
        E::Bytes { .. } | E::ListView { .. } | E::BytesView => (true, 2),
        E::Recoded(encoding) => buffers(encoding),
        _ => (true, 1),
    }
}

/// How the bytes lie of what is recoded.
fn innermost(encoding: &Encoding) -> &Encoding {
    if let Encoding::Recoded(encoding) = encoding { encoding } else { encoding }
}

/// # Safety
/// As [`Batch::new`].
unsafe fn children(array: &ffi::ArrowArray) -> Result<Vec<&ffi::ArrowArray>, String> {
    let missing = || "an array without the children that it counts".to_string();
    let count = usize::try_from(array.n_children).map_err(|_| missing())?;
    if count > 0 && array.children.is_null() {
        return Err(missing());
    }
    // SAFETY: as the caller says.
    (0..count).map(|at| unsafe { (*array.children.add(at)).as_ref() }.ok_or_else(missing)).collect()
}

/// # Safety
/// The buffer must have such a value there.
unsafe fn value<T: bytemuck::Pod>(buffer: *const u8, at: usize) -> T {
    // SAFETY: as the caller says. Buffers need not be aligned.
    unsafe { buffer.cast::<T>().add(at).read_unaligned() }
}

/// # Safety
/// The bitmap must have the bit.
unsafe fn bit(bitmap: *const u8, at: usize) -> bool {
    // SAFETY: as the caller says.
    unsafe { *bitmap.add(at / 8) >> (at % 8) & 1 == 1 }
}

/// # Safety
/// The buffer must have the bytes.
unsafe fn slice<'a>(buffer: *const u8, start: usize, length: usize) -> Result<&'a [u8], Refusal> {
    if length == 0 {
        return Ok(&[]);
    }
    if buffer.is_null() {
        return Err(Refusal::Wrong("an array without one of its buffers".into()));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(buffer.add(start), length) })
}

/// A number in another unit.
fn scaled(number: i64, times: i64, per: i64) -> Result<i64, String> {
    if number % per != 0 {
        return Err(format!(
            "{number}, which is no multiple of {per}: the unit is finer than SQL's; cast it"
        ));
    }
    (number / per)
        .checked_mul(times)
        .ok_or_else(|| format!("{number} times {times}, which does not fit 64 bits"))
}

fn interval(months: i32, days: i32, micros: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&months.to_le_bytes());
    bytes[4..8].copy_from_slice(&days.to_le_bytes());
    bytes[8..].copy_from_slice(&micros.to_le_bytes());
    bytes
}

/// A number of 16 bits: a sign, 5 bits of an exponent, 10 of a fraction.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f32::from(bits & 0x3FF));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}
