//! What the answers of a task cost.

/// What a batch cost. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inside the functions.
    pub worked: u64,
    /// In calls, the functions included.
    pub called: u64,
    /// Rows that became NULL because of `on_error = null`.
    pub errors: u64,
    /// Calls that were repeated.
    pub retries: u64,
    /// Workers that ended during a call.
    pub deaths: u64,
}
