//! The arrays of a batch, and whether they are what their schema says.

use super::refusal::Refusal;
use super::schema::{Encoding, Node, Schema};
use super::values::{Shape, Values};
use crosslane::ColumnBuilder;
use libduckdb_sys as ffi;
use std::ops::Range;

/// The rows of one array of a stream.
#[derive(Debug)]
pub struct Batch<'a> {
    all: Values<'a>,
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
    /// It must be an array of the C data interface that was not released, of a stream with this
    /// schema, and stay as it is.
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

    /// The number of rows.
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
            // SAFETY: as the caller says, there are `count` buffers.
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
        // The buffer of bytes may be missing if all texts are empty.
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
}

/// Whether an encoding has a validity, and how many other buffers at least.
fn buffers(encoding: &Encoding) -> (bool, usize) {
    use Encoding as E;
    match encoding {
        E::Null | E::Runs(_) => (false, 0),
        E::Union { dense, .. } => (false, 1 + usize::from(*dense)),
        E::Struct | E::FixedList(_) => (true, 0),
        E::Bytes { .. } | E::ListView { .. } | E::BytesView => (true, 2),
        E::Encoded(encoding) => buffers(encoding),
        _ => (true, 1),
    }
}

/// How the bytes of an encoded type are stored.
fn innermost(encoding: &Encoding) -> &Encoding {
    if let Encoding::Encoded(encoding) = encoding { encoding } else { encoding }
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
