//! Whether there is memory for what DuckDB is about to allocate.
//!
//! DuckDB's C interface throws a C++ exception where it finds no memory, and no exception may leave a callback that
//! is not C++: the process would end. So what is large is allocated here first, and given back at once. Another thread
//! may take it in between, which is as likely as that DuckDB itself runs out of memory at that moment.

use crate::types::decimal_width;
use crosslane::{DataType, Error, Layout};

/// What is smaller is not asked for.
const LARGE: usize = 1 << 20;
/// DuckDB's longest vector in bytes (`DConstants::MAX_VECTOR_SIZE`), beyond which it throws, too.
const MOST: usize = 1 << 37;

/// What DuckDB's allocator may take beside an allocation: for its own lists, and to round up.
const SLACK: usize = 32 << 20;

/// Whether so many bytes can be allocated.
pub(crate) fn check(bytes: usize) -> Result<(), Error> {
    if bytes > MOST || (bytes >= LARGE && Vec::<u8>::new().try_reserve_exact(bytes + SLACK).is_err()) {
        return Err(Error::memory(bytes));
    }
    Ok(())
}

/// Whether so many bytes of strings can be allocated, for which DuckDB takes the next power of two.
pub(crate) fn check_strings(bytes: usize) -> Result<(), Error> {
    check(bytes.checked_next_power_of_two().unwrap_or(usize::MAX))
}

/// Whether a LIST of so many elements of a type can be allocated, for which DuckDB takes the next power of two.
pub(crate) fn check_list(element: &DataType, elements: usize) -> Result<(), Error> {
    check(list(element, elements))
}

/// Bytes of a LIST of so many elements of a type.
pub(crate) fn list(element: &DataType, elements: usize) -> usize {
    let elements = elements.checked_next_power_of_two().unwrap_or(usize::MAX);
    elements.saturating_mul(width(element))
}

/// Bytes of a row in DuckDB's vectors, with its validity rounded up.
fn width(data_type: &DataType) -> usize {
    let children = data_type.children().map(width).fold(0, usize::saturating_add);
    1 + match data_type.layout() {
        Layout::Bits => 1,
        Layout::Bytes { .. } | Layout::List => 16,
        Layout::FixedList(length) => children.saturating_mul(length),
        Layout::Struct => children,
        Layout::Fixed(width) => match data_type {
            DataType::Decimal { precision, .. } => decimal_width(*precision),
            _ => width,
        },
    }
}
