//! The values of an array.

use super::buffer::{bit, half, interval, scaled, slice, value};
use super::refusal::Refusal;
use super::schema::{Encoding, Index, Units};
use crate::types::encoding;
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType};
use std::ops::Range;

/// An array and its children.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) node: Shape<'a>,
    pub(super) length: usize,
    /// The index of its first row in its buffers and children.
    pub(super) offset: usize,
    /// Null if no row is NULL.
    pub(super) validity: *const u8,
    /// The buffers after the validity.
    pub(super) buffers: &'a [*const u8],
    pub(super) children: Vec<Values<'a>>,
}

/// The type and encoding of an array.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape<'a> {
    pub(super) data_type: Option<&'a DataType>,
    pub(super) encoding: &'a Encoding,
}

impl<'a> Values<'a> {
    /// Whether the array's own validity says that a row is not NULL.
    pub(super) fn is_valid(&self, row: usize) -> bool {
        // SAFETY: the bitmap has a bit for each row, from the offset on.
        self.validity.is_null() || unsafe { bit(self.validity, self.offset + row) }
    }

    /// Whether a row is NULL. A row of a dictionary, of run lengths or of a union is NULL if its
    /// value is.
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

    /// Adds rows to a column that has space for their fixed part.
    pub(super) fn append_all(&self, rows: Range<usize>, out: &mut ColumnBuilder) -> Result<(), Refusal> {
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
    /// The array must be of values of `N` bytes, and have the rows.
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
    pub(super) fn append(&self, row: usize, out: &mut ColumnBuilder) -> Result<(), Refusal> {
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
                E::Encoded(encoding) => {
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

    /// An integer of `width` bytes.
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
        // SAFETY: as the caller says; the buffer has as many bytes as the array says.
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
        // SAFETY: as the caller says; the last buffer has the lengths of the buffers between the
        // first and itself.
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

    /// The member of a row of a union, and the row in that member.
    fn member(&self, row: usize) -> Result<(usize, usize), Refusal> {
        let Encoding::Union { dense, members } = self.node.encoding else {
            return Err(Refusal::Wrong("no union".into()));
        };
        let at = self.offset + row;
        // SAFETY: the array has the row; its buffers have a type for each row, and a dense union a
        // row of the member.
        let (id, place) = unsafe {
            (value::<i8>(self.buffers[0], at), if *dense { value::<i32>(self.buffers[1], at) } else { 0 })
        };
        let Some(member) = members.get(&id) else {
            return Err(Refusal::Wrong(format!("a union's type {id}, which its schema does not have")));
        };
        let row = if *dense { usize::try_from(place) } else { Ok(at) };
        Ok((*member, row.map_err(|_| format!("a union's row {place}"))?))
    }

    /// The index of the run of a row.
    fn run(&self, row: usize, width: usize) -> Result<usize, Refusal> {
        let ends = &self.children[0];
        let at = (self.offset + row) as i64;
        let (mut low, mut high) = (0, ends.length);
        while low < high {
            let middle = low + (high - low) / 2;
            // SAFETY: the index is below the number of ends.
            let end = unsafe { Self::integer(ends.buffers[0], ends.offset + middle, width) };
            if end > at { high = middle } else { low = middle + 1 }
        }
        if low == ends.length {
            return Err(Refusal::Wrong(format!("{low} runs, which end before row {at}")));
        }
        Ok(low)
    }

    /// The index in the dictionary of a row's value.
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
