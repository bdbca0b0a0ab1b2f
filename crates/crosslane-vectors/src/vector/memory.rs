//! Whether there is memory for what DuckDB is about to allocate.
//!
//! DuckDB's C interface throws a C++ exception if an allocation fails. An exception must not pass
//! through a callback in Rust: the process would end. So large sizes are allocated here first, and
//! freed at once. Another thread may take the memory in between; that is as unlikely as DuckDB
//! itself running out of memory at that moment.

use crate::types::decimal_width;
use crosslane::{DataType, Error, Layout};

/// Smaller allocations are not checked.
const LARGE: usize = 1 << 20;
/// The size of DuckDB's largest vector in bytes (`DConstants::MAX_VECTOR_SIZE`). It throws beyond
/// this too.
const MOST: usize = 1 << 37;

/// What DuckDB's allocator may take in addition, for its own lists and for rounding up.
const SLACK: usize = 32 << 20;

/// Checks that `bytes` bytes can be allocated.
pub(crate) fn check(bytes: usize) -> Result<(), Error> {
    if bytes > MOST || (bytes >= LARGE && Vec::<u8>::new().try_reserve_exact(bytes + SLACK).is_err()) {
        return Err(Error::memory(bytes));
    }
    Ok(())
}

/// Checks that bytes of strings can be allocated, which DuckDB rounds up to a power of two.
pub(crate) fn check_strings(bytes: usize) -> Result<(), Error> {
    check(bytes.checked_next_power_of_two().unwrap_or(usize::MAX))
}

/// Checks that the elements of a LIST can be allocated, whose number DuckDB rounds up to a power of
/// two.
pub(crate) fn check_list(element: &DataType, elements: usize) -> Result<(), Error> {
    check(list(element, elements))
}

/// The bytes of the elements of a LIST.
pub(crate) fn list(element: &DataType, elements: usize) -> usize {
    let elements = elements.checked_next_power_of_two().unwrap_or(usize::MAX);
    elements.saturating_mul(width(element))
}

/// The bytes of a row in DuckDB's vectors, with its validity rounded up.
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
