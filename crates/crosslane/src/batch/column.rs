//! Reads batches, and checks every count, offset and length.

use super::encode::{Body, Encode, Plan};
use super::header::{BATCH, FAILURE, HEADER, Header, LAST, LONG, LONGEST_FAILURE, Node, Span};
use crate::error::Error;
use crate::types::{DataType, Layout};
use bytemuck::Pod;

/// A frame that breaks the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a malformed batch: {0}")]
pub struct Malformed(pub String);

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Error::Engine(malformed.to_string())
    }
}

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(Malformed(format!($($message)*)));
        }
    };
}

/// A column of a batch, borrowed from the frame's bytes.
#[derive(Debug, Clone)]
pub struct Column<'a> {
    /// The type of the values.
    pub data_type: &'a DataType,
    /// The number of rows.
    pub rows: usize,
    /// The validity bitmap, with one bit per row; `None` if no row is NULL.
    pub validity: Option<&'a [u8]>,
    /// For columns of bytes and lists, `rows + 1` offsets that start at 0 and never decrease. Empty
    /// for all others.
    pub offsets: &'a [i32],
    /// The values of a column of bits, of fixed-width values or of bytes.
    pub data: &'a [u8],
    /// The children of nested columns.
    pub children: Vec<Column<'a>>,
}

impl<'a> Column<'a> {
    /// Whether a row is not NULL.
    #[inline]
    pub fn is_valid(&self, row: usize) -> bool {
        self.validity.is_none_or(|bits| bit(bits, row))
    }

    /// The rows as fixed-width values of up to 8 bytes; `None` if `T` has another width.
    #[inline]
    pub fn values<T: Pod>(&self) -> Option<&'a [T]> {
        bytemuck::try_cast_slice(self.data).ok()
    }

    /// One fixed-width value, of any alignment.
    ///
    /// # Panics
    /// If the row does not exist, or `T` has another width than the column.
    #[inline]
    pub fn value<T: Pod>(&self, row: usize) -> T {
        bytemuck::pod_read_unaligned(&self.data[row * size_of::<T>()..(row + 1) * size_of::<T>()])
    }

    /// The bytes of a row of a VARCHAR, JSON or BLOB column.
    #[inline]
    pub fn bytes(&self, row: usize) -> &'a [u8] {
        &self.data[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// The rows of the child that belong to a row of a LIST, ARRAY or MAP.
    #[inline]
    pub fn elements(&self, row: usize) -> std::ops::Range<usize> {
        match self.data_type.layout() {
            Layout::FixedList(length) => row * length..(row + 1) * length,
            _ => self.offsets[row] as usize..self.offsets[row + 1] as usize,
        }
    }
}

/// Copies a column that was read, one buffer at a time, so that a batch of one lane becomes a batch
/// of another lane. This code checks no values, because guests trust the engine. So the engine must
/// have checked the values of a guest before ([`crate::types::values::unfit`]). The column must
/// have its values, as [`columns`] and [`column`] return it.
impl Encode for Column<'_> {
    fn plan(&self, plan: &mut Plan) {
        let nulls = self.validity.map_or(0, |bits| self.rows - ones(bits, self.rows));
        plan.column(self.data_type.layout(), self.rows, nulls, self.data.len());
        self.children.iter().for_each(|child| child.plan(plan));
    }
    fn write(&self, body: &mut Body<'_>) {
        let validity = self.validity.unwrap_or_default();
        body.column(self.data_type.layout(), validity, self.offsets, self.data);
        self.children.iter().for_each(|child| child.write(body));
    }
}

/// The number of set bits among the first `rows` bits of an Arrow bitmap.
fn ones(bits: &[u8], rows: usize) -> usize {
    let (whole, rest) = bits.split_at(rows / 8);
    let set: usize = whole.iter().map(|byte| byte.count_ones() as usize).sum();
    let last = rest.first().map_or(0, |byte| byte & ((1 << (rows % 8)) - 1));
    set + last.count_ones() as usize
}

/// The child of a UNION that has the value of this row; `None` if the row has no valid tag.
pub fn member(column: &Column<'_>, row: usize) -> Option<usize> {
    let tags = column.children.first().filter(|tags| tags.is_valid(row))?;
    let child = usize::from(*tags.data.get(row)?) + 1;
    (child < column.children.len()).then_some(child)
}

/// Bit `row` of an Arrow bitmap.
#[inline]
pub fn bit(bits: &[u8], row: usize) -> bool {
    bits[row / 8] >> (row % 8) & 1 == 1
}

/// Reads the header of a frame.
///
/// # Errors
/// [`Malformed`] if the frame is shorter than a header.
pub fn header(frame: &[u8]) -> Result<Header, Malformed> {
    ensure!(frame.len() >= HEADER, "{} bytes are no header", frame.len());
    Ok(bytemuck::pod_read_unaligned(&frame[..HEADER]))
}

/// The bytes after the header of a [`FAILURE`].
///
/// # Errors
/// [`Malformed`] if the frame is shorter than its header says, or longer than any failure of
/// [`crate::Failure::bounded`].
pub fn failure_text(frame: &[u8]) -> Result<&[u8], Malformed> {
    let length = header(frame)?.rows as usize;
    ensure!(length <= LONGEST_FAILURE, "a failure of {length} bytes");
    frame.get(HEADER..HEADER + length).ok_or_else(|| Malformed("a failure longer than its frame".into()))
}

/// Writes a [`FAILURE`] frame.
pub fn failure_frame(mut header: Header, text: &[u8]) -> Vec<u8> {
    header.kind = FAILURE;
    header.flags = LAST;
    header.rows = text.len() as u32;
    [bytemuck::bytes_of(&header), text].concat()
}

/// The ends of three parts of a frame: its nodes, its buffer list, and the text of its types.
fn ends(header: &Header) -> [usize; 3] {
    let nodes = HEADER + header.nodes as usize * size_of::<Node>();
    let spans = nodes + header.buffers as usize * size_of::<Span>();
    [nodes, spans, spans + header.types as usize]
}

/// The types of a call's arguments as text, if its function takes arguments of any type.
///
/// # Errors
/// [`Malformed`] if the frame is shorter than its header says, or if the types are not UTF-8.
pub fn types(frame: &[u8]) -> Result<Option<&str>, Malformed> {
    let header = header(frame)?;
    if header.types == 0 {
        return Ok(None);
    }
    let [_, spans, types] = ends(&header);
    ensure!(types <= frame.len(), "types of {} bytes in a short frame", header.types);
    let text = std::str::from_utf8(&frame[spans..types]);
    text.map(Some).map_err(|error| Malformed(format!("types that are no text: {error}")))
}

/// Reads the columns of a frame with the given types.
///
/// It checks every count, offset and length. It does not check the values: [`crate::types::values`]
/// does that. The address of the frame must be a multiple of 8.
///
/// # Errors
/// [`Malformed`], with the first violation.
pub fn columns<'a>(
    frame: &'a [u8],
    types: impl Iterator<Item = &'a DataType>,
) -> Result<Vec<Column<'a>>, Malformed> {
    let (mut reader, rows) = Reader::new(frame)?;
    let columns = types.map(|data_type| reader.column(data_type, rows)).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(columns)
}

/// Reads a frame of one column, such as the results of a call, in the way of [`columns`].
///
/// # Errors
/// As [`columns`].
pub fn column<'a>(frame: &'a [u8], data_type: &'a DataType) -> Result<Column<'a>, Malformed> {
    let (mut reader, rows) = Reader::new(frame)?;
    let column = reader.column(data_type, rows)?;
    reader.end()?;
    Ok(column)
}

/// The place of a frame's last buffer. `None` unless the frame is a batch of one column without
/// children, and its last buffer is long and comes after all others. `head` is the first [`HEAD`]
/// bytes of the frame, and `length` is the length of the frame.
pub fn last_buffer(head: &[u8], length: usize) -> Option<usize> {
    let header = header(head).ok()?;
    let [nodes, spans, body] = ends(&header);
    if header.kind != BATCH || header.nodes != 1 || header.types != 0 {
        return None;
    }
    let mut spans = head.get(nodes..spans)?.chunks_exact(size_of::<Span>()).map(bytemuck::pod_read_unaligned);
    let last: Span = spans.next_back()?;
    let before = |span: Span| span.offset.checked_add(span.length).is_some_and(|end| end <= last.offset);
    let start = (body.next_multiple_of(64) as u64).checked_add(last.offset)?;
    let long = start.checked_add(LONG as u64).is_some_and(|end| end <= length as u64);
    (spans.all(before) && long).then_some(start as usize)
}

/// Reads a column as [`column`] does, from a frame without its last buffer ([`last_buffer`]).
/// `left` is the number of bytes from the start of that buffer to the end of the frame. Returns the
/// column without its values, and the number of bytes of the values. `None` if columns of this type
/// have children, or values of less than a byte.
///
/// # Errors
/// As [`columns`].
pub fn column_before<'a>(
    frame: &'a [u8],
    left: usize,
    data_type: &'a DataType,
) -> Result<Option<(Column<'a>, usize)>, Malformed> {
    let (mut reader, rows) = Reader::new(frame)?;
    let mut column = reader.begin(data_type, rows)?;
    let length = match data_type.layout() {
        Layout::Fixed(width) => rows * width,
        Layout::Bytes { .. } => {
            column.offsets = reader.offsets(data_type, rows)?;
            column.offsets[rows] as usize
        }
        _ => return Ok(None),
    };
    let span = reader.span(data_type)?;
    let there = span.offset == reader.body.len() as u64 && span.length <= left as u64;
    ensure!(there, "{data_type}: a buffer of {} bytes at {} leaves the frame", span.length, span.offset);
    ensure!(span.length >= length as u64, "{data_type}: {} bytes where {length} belong", span.length);
    reader.end()?;
    Ok(Some((column, length)))
}

struct Reader<'a> {
    nodes: std::slice::ChunksExact<'a, u8>,
    spans: std::slice::ChunksExact<'a, u8>,
    body: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of a frame, and the number of rows from the frame's header.
    fn new(frame: &'a [u8]) -> Result<(Self, usize), Malformed> {
        let header = header(frame)?;
        let [nodes_end, spans_end, types_end] = ends(&header);
        let body_start = types_end.next_multiple_of(64);
        ensure!(
            body_start <= frame.len(),
            "{} nodes and {} buffers in a short frame",
            header.nodes,
            header.buffers
        );
        let reader = Self {
            nodes: frame[HEADER..nodes_end].chunks_exact(size_of::<Node>()),
            spans: frame[nodes_end..spans_end].chunks_exact(size_of::<Span>()),
            body: &frame[body_start..],
        };
        Ok((reader, header.rows as usize))
    }

    fn end(&self) -> Result<(), Malformed> {
        let ended = self.nodes.len() == 0 && self.spans.len() == 0;
        ensure!(ended, "more nodes or buffers than the types have");
        Ok(())
    }

    /// A column with its validity only.
    fn begin(&mut self, data_type: &'a DataType, rows: usize) -> Result<Column<'a>, Malformed> {
        let Some(node) = self.nodes.next() else { return Err(Malformed("too few nodes".into())) };
        let node: Node = bytemuck::pod_read_unaligned(node);
        ensure!(node.rows == rows as u64, "{data_type}: {} rows where {rows} belong", node.rows);
        ensure!(node.nulls <= node.rows, "{data_type}: {} NULLs in {rows} rows", node.nulls);
        let validity = self.buffer(data_type)?;
        let validity = if node.nulls == 0 {
            None
        } else {
            ensure!(
                validity.len() >= rows.div_ceil(8),
                "{data_type}: a validity bitmap of {} bytes",
                validity.len()
            );
            Some(validity)
        };
        Ok(Column { data_type, rows, validity, offsets: &[], data: &[], children: Vec::new() })
    }

    fn column(&mut self, data_type: &'a DataType, rows: usize) -> Result<Column<'a>, Malformed> {
        let mut column = self.begin(data_type, rows)?;
        match data_type.layout() {
            Layout::Bits => column.data = self.exactly(data_type, rows.div_ceil(8))?,
            Layout::Fixed(width) => column.data = self.exactly(data_type, rows * width)?,
            Layout::Bytes { .. } => {
                column.offsets = self.offsets(data_type, rows)?;
                column.data = self.exactly(data_type, column.offsets[rows] as usize)?;
            }
            Layout::List => {
                column.offsets = self.offsets(data_type, rows)?;
                let elements = column.offsets[rows] as usize;
                self.children(&mut column, elements)?;
            }
            Layout::FixedList(length) => self.children(&mut column, rows * length)?,
            Layout::Struct => self.children(&mut column, rows)?,
        }
        Ok(column)
    }

    fn children(&mut self, column: &mut Column<'a>, rows: usize) -> Result<(), Malformed> {
        column.children =
            column.data_type.children().map(|child| self.column(child, rows)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn span(&mut self, data_type: &DataType) -> Result<Span, Malformed> {
        let Some(span) = self.spans.next() else { return Err(Malformed("too few buffers".into())) };
        let span: Span = bytemuck::pod_read_unaligned(span);
        ensure!(span.offset.is_multiple_of(8), "{data_type}: a buffer at {}", span.offset);
        Ok(span)
    }

    fn buffer(&mut self, data_type: &DataType) -> Result<&'a [u8], Malformed> {
        let span = self.span(data_type)?;
        let end = span.offset.checked_add(span.length).filter(|end| *end <= self.body.len() as u64);
        ensure!(
            end.is_some(),
            "{data_type}: a buffer of {} bytes at {} leaves the frame",
            span.length,
            span.offset
        );
        Ok(&self.body[span.offset as usize..(span.offset + span.length) as usize])
    }

    fn exactly(&mut self, data_type: &DataType, length: usize) -> Result<&'a [u8], Malformed> {
        let buffer = self.buffer(data_type)?;
        ensure!(buffer.len() >= length, "{data_type}: {} bytes where {length} belong", buffer.len());
        Ok(&buffer[..length])
    }

    fn offsets(&mut self, data_type: &DataType, rows: usize) -> Result<&'a [i32], Malformed> {
        let bytes = self.exactly(data_type, (rows + 1) * 4)?;
        let offsets: &[i32] = bytemuck::try_cast_slice(bytes)
            .map_err(|_| Malformed("a frame at an address that is no multiple of 8".into()))?;
        ensure!(offsets[0] == 0, "{data_type}: offsets begin at {}", offsets[0]);
        // A fold without a short circuit, so that the compiler uses vector registers.
        let ascending = offsets.windows(2).fold(true, |ascending, pair| ascending & (pair[0] <= pair[1]));
        ensure!(ascending, "{data_type}: offsets go backwards");
        Ok(offsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Frame;
    use std::sync::Arc;

    /// One row: a list of 50,000 ARRAYs of 100,000 elements each. The elements are empty structs
    /// and take no memory.
    struct Many;

    impl Encode for Many {
        fn plan(&self, plan: &mut Plan) {
            for (rows, offsets) in [(1, Some(8)), (50_000, None), (5_000_000_000, None)] {
                plan.node(rows, 0);
                plan.buffer(0);
                offsets.into_iter().for_each(|length| plan.buffer(length));
            }
        }
        fn write(&self, body: &mut Body<'_>) {
            let (_, offsets) = (body.buffer(), body.buffer());
            offsets.copy_from_slice(bytemuck::cast_slice(&[0i32, 50_000]));
        }
    }

    #[test]
    fn the_elements_of_arrays_are_counted_beyond_32_bits() {
        let array = DataType::Array(Arc::new(DataType::Struct(Arc::new([]))), 100_000);
        let list = DataType::List(Arc::new(array));
        let frame = Frame::new(&Many, 1).unwrap();
        let column = columns(frame.bytes(), [&list].into_iter()).unwrap().remove(0);
        let arrays = &column.children[column.elements(0).start];
        assert_eq!(arrays.children[0].rows, 5_000_000_000);
        assert_eq!(arrays.elements(49_999), 4_999_900_000..5_000_000_000);
        assert!(crate::types::values::unfit(&column).is_empty());
    }

    #[test]
    fn the_set_bits_of_rows_are_counted() {
        for (bits, rows, due) in [
            (&[][..], 0, 0),
            (&[0xFF], 0, 0),
            (&[0xFF], 7, 7),
            (&[0xFF], 8, 8),
            (&[0xFF, 0xFE], 9, 8),
            (&[0x81, 0xFF], 12, 6),
        ] {
            assert_eq!(ones(bits, rows), due, "{bits:?}, {rows}");
        }
    }

    /// A column of the bytes 0 to 9. Only the frame names its type.
    struct Typed(Arc<str>);

    impl Encode for Typed {
        fn plan(&self, plan: &mut Plan) {
            plan.types(&self.0);
            plan.node(10, 0);
            plan.buffer(0);
            plan.buffer(10);
        }
        fn write(&self, body: &mut Body<'_>) {
            body.buffer();
            body.buffer().copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
    }

    #[test]
    fn a_copy_lies_where_columns_can_be_read() {
        for length in 0..20 {
            let bytes: Vec<u8> = (0..length).collect();
            let frame = Frame::of(&bytes);
            assert_eq!(frame.bytes(), bytes);
            assert!(frame.bytes().as_ptr().addr().is_multiple_of(8));
        }
    }

    #[test]
    fn a_frame_may_say_what_types_it_has() {
        for text in ["(UTINYINT)".to_owned(), format!("({}UTINYINT)", " ".repeat(100))] {
            let frame = Frame::new(&Typed(text.as_str().into()), 10).unwrap();
            assert_eq!(types(frame.bytes()), Ok(Some(&text[..])));
            let column = columns(frame.bytes(), [&DataType::UTinyInt].into_iter()).unwrap().remove(0);
            assert_eq!(column.data, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            let mut header = header(frame.bytes()).unwrap();
            header.types = u32::MAX;
            let mut short = frame.bytes().to_vec();
            short[..HEADER].copy_from_slice(bytemuck::bytes_of(&header));
            assert!(types(&short).is_err());
            assert!(columns(&short, [&DataType::UTinyInt].into_iter()).is_err());
        }
        let frame = Frame::new(&Many, 1).unwrap();
        assert_eq!(types(frame.bytes()), Ok(None));
    }
}
