//! Makes arguments for JavaScript of the columns of a batch. V8 copies the buffers, and makes
//! strings of text.

use crate::isolate::Argument;
use crosslane::Layout;
use crosslane::batch::Column;
use std::sync::atomic::AtomicU64;

/// V8 copies a substring of at most this many characters. A longer one keeps the whole string in
/// memory.
const COPIED: i32 = 12;
/// The longest string from which JavaScript takes substrings, in bytes.
const WHOLE: usize = 1 << 20;

/// Returns the arguments of a call with these columns: the progress word, and the columns' buffers.
/// `make` makes an argument of bytes.
pub(crate) fn arguments<'a>(
    progress: &'a AtomicU64,
    columns: &[Column<'a>],
    make: fn(&'a [u8]) -> Argument<'a>,
) -> Vec<Argument<'a>> {
    let mut arguments = vec![Argument::Word(progress)];
    columns.iter().for_each(|column| add(column, make, &mut arguments));
    arguments
}

/// Adds the arguments of a column and its children, in the order of the prelude's readers. `make`
/// makes an argument of bytes.
fn add<'a>(column: &Column<'a>, make: fn(&'a [u8]) -> Argument<'a>, arguments: &mut Vec<Argument<'a>>) {
    arguments.push(column.validity.map_or(Argument::None, make));
    match column.data_type.layout() {
        Layout::Bits | Layout::Fixed(_) => arguments.push(make(column.data)),
        Layout::Bytes { utf8: true } => {
            let &Column { data: text, offsets, .. } = column;
            let ascii = text.is_ascii();
            let strings = |least| Argument::Strings { text, offsets, ascii, least };
            let short = offsets.windows(2).filter(|ends| ends[1] - ends[0] <= COPIED).count();
            let whole = ascii && text.len() <= WHOLE && 2 * short > column.rows;
            arguments.extend(match whole {
                false => [strings(0), Argument::None, Argument::None],
                true => [
                    if short < column.rows { strings(COPIED + 1) } else { Argument::None },
                    Argument::Ascii(text),
                    Argument::Reused(bytes(offsets)),
                ],
            });
        }
        Layout::Bytes { utf8: false } => {
            arguments.push(make(bytes(column.offsets)));
            arguments.push(make(column.data));
        }
        Layout::List => arguments.push(make(bytes(column.offsets))),
        Layout::FixedList(_) | Layout::Struct => {}
    }
    for child in &column.children {
        add(child, make, arguments);
    }
}

/// The bytes of offsets.
fn bytes(offsets: &[i32]) -> &[u8] {
    // SAFETY: integers are plain memory, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(offsets.as_ptr().cast(), size_of_val(offsets)) }
}
