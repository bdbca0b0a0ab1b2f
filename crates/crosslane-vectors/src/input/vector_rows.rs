//! The rows of a vector as a column of a batch.
//!
//! A [`VectorRows`] is a tree over the vectors of one column, for some of its rows. It is measured
//! when it is made and written once, straight into the lane's ring. The values of NULL rows are
//! never read: DuckDB leaves any bytes there.

use super::rows::{Rows, reserve};
use crate::types::{decimal_width, encoding};
use crate::vector::string::{DuckString, Texts};
use crate::vector::{memory, validity};
use crosslane::batch::{Body, Encode, Plan};
use crosslane::{DataType, Error, Layout, code_width};
use libduckdb_sys as ffi;
use std::ops::Range;

/// Some rows of a vector and of the vectors below it.
pub(crate) struct VectorRows<'a> {
    data_type: &'a DataType,
    data: *const u8,
    /// DuckDB's validity mask, unless no row is NULL.
    mask: Option<&'a [u64]>,
    rows: Rows,
    nulls: usize,
    /// The bytes of all strings, or the elements of all lists.
    total: usize,
    /// For types with an encoding of DuckDB's own: the decoded bytes, and where each row ends.
    decoded: Option<(Vec<u8>, Vec<usize>)>,
    children: Vec<VectorRows<'a>>,
}

impl<'a> VectorRows<'a> {
    #[inline]
    fn is_valid(&self, row: usize) -> bool {
        self.mask.is_none_or(|mask| validity::is_set(mask, row))
    }

    /// # Safety
    /// The data must be DuckDB's values of type `T`, with this row.
    #[inline]
    unsafe fn value<T: Copy>(&self, row: usize) -> T {
        // SAFETY: the caller vouches for type and row.
        unsafe { self.data.cast::<T>().add(row).read() }
    }

    /// # Safety
    /// The data must be strings, and the row not NULL.
    #[inline]
    unsafe fn bytes(&self, row: usize) -> &[u8] {
        // SAFETY: as the caller says.
        unsafe { (*self.data.cast::<DuckString>().add(row)).bytes() }
    }
}

impl<'a> VectorRows<'a> {
    /// # Safety
    /// The vector must be of this type, have these rows, and outlive the result.
    pub(crate) unsafe fn new(
        vector: ffi::duckdb_vector,
        data_type: &'a DataType,
        rows: Rows,
    ) -> Result<Self, Error> {
        // SAFETY: the caller vouches for the vector.
        let (data, mask) = unsafe {
            (ffi::duckdb_vector_get_data(vector).cast_const().cast(), ffi::duckdb_vector_get_validity(vector))
        };
        let end = rows.ranges().iter().map(|range| range.end).max().unwrap_or_default();
        let mask = mask.cast_const();
        // SAFETY: a mask that is not null has a bit for each row of the vector, and lives as long.
        let mask = (!mask.is_null()).then(|| unsafe { std::slice::from_raw_parts(mask, end.div_ceil(64)) });
        let (decoded, children) = (None, Vec::new());
        let mut source = Self { data_type, data, mask, rows, nulls: 0, total: 0, decoded, children };
        source.nulls = source.count_nulls();
        // SAFETY: the layouts tell the child vectors; the element rows come from DuckDB's
        // entries.
        unsafe {
            match data_type.layout() {
                Layout::Bits | Layout::Fixed(_) => {}
                Layout::Bytes { .. } if encoding::is_encoded(data_type) => source.decode()?,
                Layout::Bytes { .. } => source.total = source.total_bytes(),
                Layout::List => {
                    let elements = source.elements()?;
                    source.total = elements.len();
                    source.add_children([ffi::duckdb_list_vector_get_child(vector)], &elements)?;
                }
                Layout::FixedList(length) => {
                    let elements = source.rows.elements(length)?;
                    source.add_children([ffi::duckdb_array_vector_get_child(vector)], &elements)?;
                }
                Layout::Struct => {
                    let count = data_type.children().len();
                    let children =
                        (0..count).map(|at| ffi::duckdb_struct_vector_get_child(vector, at as ffi::idx_t));
                    let rows = source.rows.map(Range::clone)?;
                    source.add_children(children, &rows)?;
                }
            }
        }
        Ok(source)
    }

    /// # Safety
    /// As [`VectorRows::new`], for each child.
    unsafe fn add_children(
        &mut self,
        vectors: impl IntoIterator<Item = ffi::duckdb_vector>,
        rows: &Rows,
    ) -> Result<(), Error> {
        for (data_type, vector) in self.data_type.children().zip(vectors) {
            // SAFETY: the caller vouches for the children.
            self.children.push(unsafe { VectorRows::new(vector, data_type, rows.map(Range::clone)?)? });
        }
        Ok(())
    }

    /// How many bytes DuckDB allocates to add these rows to a vector of the type with space for
    /// them: for strings, and for the elements of lists, whose number it rounds up to a power of
    /// two.
    ///
    /// # Safety
    /// The vector must be one of the type.
    pub(crate) unsafe fn bytes_added_to(&self, vector: ffi::duckdb_vector) -> usize {
        let sum = |bytes: usize, (at, child): (usize, &Self)| {
            // SAFETY: as the caller says; the layouts tell the child vectors.
            let below = unsafe {
                match self.data_type.layout() {
                    Layout::List => ffi::duckdb_list_vector_get_child(vector),
                    Layout::FixedList(_) => ffi::duckdb_array_vector_get_child(vector),
                    _ => ffi::duckdb_struct_vector_get_child(vector, at as ffi::idx_t),
                }
            };
            // SAFETY: as above.
            bytes.saturating_add(unsafe { child.bytes_added_to(below) })
        };
        let own = match self.data_type.layout() {
            Layout::Bytes { .. } => self.total,
            Layout::List => {
                // SAFETY: as the caller says.
                let before = unsafe { ffi::duckdb_list_vector_get_size(vector) } as usize;
                self.data_type.children().map(|child| memory::list(child, before + self.total)).sum()
            }
            _ => 0,
        };
        self.children.iter().enumerate().fold(own, sum)
    }

    fn count_nulls(&self) -> usize {
        let Some(mask) = self.mask else { return 0 };
        self.rows.ranges().iter().map(|range| validity::nulls(mask, range.clone())).sum()
    }

    /// # Safety
    /// The data must be strings.
    unsafe fn total_bytes(&self) -> usize {
        let mut total = 0;
        for range in self.rows.ranges() {
            // SAFETY: as the caller says.
            let strings = unsafe { self.strings(range) };
            total += match self.nulls_mask() {
                None => strings.iter().map(DuckString::length).sum::<usize>(),
                Some(mask) => {
                    let lengths = strings.iter().map(DuckString::length).zip(range.clone());
                    lengths.map(|(length, row)| if validity::is_set(mask, row) { length } else { 0 }).sum()
                }
            };
        }
        total
    }

    /// # Safety
    /// The data must be strings.
    unsafe fn decode(&mut self) -> Result<(), Error> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        reserve(&mut ends, self.rows.len())?;
        let mut outcome = Ok(());
        self.rows.each(|_, row| {
            if self.is_valid(row) && outcome.is_ok() {
                // SAFETY: as the caller says, and the row is not NULL.
                let value = unsafe { self.bytes(row) };
                outcome = reserve(&mut bytes, encoding::longest(self.data_type, value.len()));
                if outcome.is_ok() {
                    encoding::decode(self.data_type, value, &mut bytes);
                }
            }
            ends.push(bytes.len());
        });
        outcome?;
        self.total = bytes.len();
        self.decoded = Some((bytes, ends));
        Ok(())
    }

    /// The rows of the child that belong to the rows of a list.
    ///
    /// # Safety
    /// The data must be list entries.
    unsafe fn elements(&self) -> Result<Rows, Error> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut outcome = Ok(());
        self.rows.each(|_, row| {
            if !self.is_valid(row) || outcome.is_err() {
                return;
            }
            // SAFETY: as the caller says, and the row is not NULL.
            let entry: ffi::duckdb_list_entry = unsafe { self.value(row) };
            let range = entry.offset as usize..(entry.offset + entry.length) as usize;
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ if range.is_empty() => {}
                _ => {
                    outcome = reserve(&mut ranges, 1);
                    if outcome.is_ok() {
                        ranges.push(range);
                    }
                }
            }
        });
        outcome?;
        Ok(match &mut ranges[..] {
            [] => Rows::Range(0..0),
            [range] => Rows::Range(range.clone()),
            _ => Rows::Ranges(ranges),
        })
    }

    fn write_validity(&self, bits: &mut [u8]) {
        if let (Some(mask), true) = (self.mask, self.nulls > 0) {
            validity::copy(mask, self.rows.ranges().iter(), bits);
        }
    }

    fn write_fixed(&self, out: &mut [u8]) {
        use DataType as T;
        // SAFETY: DuckDB stores each type in the width that is read for it.
        unsafe {
            match self.data_type {
                T::Decimal { precision, .. } => match decimal_width(*precision) {
                    2 => self.convert(out, |value: i16| i128::from(value).to_le_bytes()),
                    4 => self.convert(out, |value: i32| i128::from(value).to_le_bytes()),
                    8 => self.convert(out, |value: i64| i128::from(value).to_le_bytes()),
                    _ => self.copy::<[u8; 16]>(out),
                },
                // DuckDB flips the highest bit, so that UUIDs sort as signed integers.
                T::Uuid => {
                    self.convert(out, |value: [u8; 16]| (u128::from_le_bytes(value) ^ 1 << 127).to_be_bytes())
                }
                T::Enum(values) => match code_width(values.len()) {
                    1 => self.copy::<u8>(out),
                    2 => self.copy::<u16>(out),
                    _ => self.copy::<u32>(out),
                },
                _ => match self.data_type.layout() {
                    Layout::Fixed(1) => self.copy::<u8>(out),
                    Layout::Fixed(2) => self.copy::<u16>(out),
                    Layout::Fixed(4) => self.copy::<u32>(out),
                    Layout::Fixed(8) => self.copy::<u64>(out),
                    _ => self.copy::<[u8; 16]>(out),
                },
            }
        }
    }

    /// # Safety
    /// The data must be values of `T`'s width.
    unsafe fn copy<T: Copy>(&self, out: &mut [u8]) {
        let width = size_of::<T>();
        let mut rest = out;
        for range in self.rows.ranges().iter().filter(|range| !range.is_empty()) {
            let (to, behind) = rest.split_at_mut(range.len() * width);
            // SAFETY: the rows exist, and are contiguous.
            to.copy_from_slice(unsafe {
                std::slice::from_raw_parts(self.data.add(range.start * width), to.len())
            });
            rest = behind;
        }
    }

    /// # Safety
    /// The data must be values of type `T`.
    unsafe fn convert<T: Copy>(&self, out: &mut [u8], convert: impl Fn(T) -> [u8; 16]) {
        self.rows.each(|to, from| {
            // SAFETY: as the caller says.
            out[to * 16..to * 16 + 16].copy_from_slice(&convert(unsafe { self.value(from) }));
        });
    }

    /// The validity mask, if a row is NULL.
    fn nulls_mask(&self) -> Option<&'a [u64]> {
        self.mask.filter(|_| self.nulls > 0)
    }

    /// The strings of a range of rows. Those of NULL rows are undefined, also their length.
    ///
    /// # Safety
    /// The data must be strings.
    unsafe fn strings(&self, range: &Range<usize>) -> &[DuckString] {
        if range.is_empty() {
            return &[];
        }
        // SAFETY: the rows exist, are contiguous, and are strings, as the caller says.
        unsafe { std::slice::from_raw_parts(self.data.cast::<DuckString>().add(range.start), range.len()) }
    }

    /// # Safety
    /// The data must be strings.
    unsafe fn write_bytes(&self, offsets: &mut [u8], out: &mut [u8]) {
        let mut texts = Texts::new(offsets, out);
        if let Some((bytes, ends)) = &self.decoded {
            let mut start = 0;
            for end in ends {
                texts.add(&bytes[start..*end]);
                start = *end;
            }
        } else {
            for range in self.rows.ranges() {
                // SAFETY: as the caller says; the strings are DuckDB's, and live as long as the
                // vector.
                unsafe {
                    match self.nulls_mask() {
                        None => texts.add_strings(self.strings(range), |_| true),
                        Some(mask) => texts
                            .add_strings(self.strings(range), |at| validity::is_set(mask, range.start + at)),
                    }
                }
            }
        }
        texts.add(&[]);
    }

    /// # Safety
    /// The data must be list entries.
    unsafe fn write_list(&self, offsets: &mut [u8]) {
        let mut end = 0u64;
        offsets[..4].fill(0);
        self.rows.each(|to, row| {
            if self.is_valid(row) {
                // SAFETY: as the caller says, and the row is not NULL.
                end += unsafe { self.value::<ffi::duckdb_list_entry>(row) }.length;
            }
            offsets[to * 4 + 4..to * 4 + 8].copy_from_slice(&(end as i32).to_le_bytes());
        });
    }
}

impl Encode for VectorRows<'_> {
    fn plan(&self, plan: &mut Plan) {
        if i32::try_from(self.total).is_err() {
            plan.overflow();
        }
        plan.column(self.data_type.layout(), self.rows.len(), self.nulls, self.total);
        self.children.iter().for_each(|child| child.plan(plan));
    }

    fn write(&self, body: &mut Body<'_>) {
        self.write_validity(body.buffer());
        match self.data_type.layout() {
            Layout::Bits => {
                let bits = body.buffer();
                bits.fill(0);
                self.rows.each(|to, from| {
                    // SAFETY: DuckDB stores a BOOLEAN as a byte; a NULL one may hold anything.
                    let byte: u8 = unsafe { self.value(from) };
                    bits[to / 8] |= u8::from(byte == 1) << (to % 8);
                });
            }
            Layout::Fixed(_) => self.write_fixed(body.buffer()),
            // SAFETY: the layout says what the data is.
            Layout::Bytes { .. } => unsafe { self.write_bytes(body.buffer(), body.buffer()) },
            // SAFETY: the layout says what the data is.
            Layout::List => unsafe { self.write_list(body.buffer()) },
            Layout::FixedList(_) | Layout::Struct => {}
        }
        self.children.iter().for_each(|child| child.write(body));
    }
}
