//! What our C++ callbacks see, for the callbacks of the C API that run inside of them.

use std::cell::Cell;

/// Arguments of a C++ callback that the callbacks of the C API do not get.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentCall {
    /// The address of the bind data.
    pub(super) bound: usize,
    /// Whether the sources of a combine are still used after it.
    pub(super) keeps: bool,
    /// How many rows an update adds.
    pub(super) rows: usize,
}

thread_local! {
    /// The arguments of the callback that runs on this thread.
    pub(super) static CURRENT_CALL: Cell<Option<CurrentCall>> = const { Cell::new(None) };
}
