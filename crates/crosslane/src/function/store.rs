//! Results that outlive the program (`cache`).

use std::fmt;

/// The results of a function that later programs find. An engine's threads use it at the same time.
///
/// A store that cannot read or write says so where its user looks, and finds or keeps nothing. The
/// function is called then, as without it.
pub trait Store: fmt::Debug + Send + Sync {
    /// The results for some arguments of these types, if they are kept: the batch of the result, and
    /// when it was made, in milliseconds since 1970. The batch is not checked.
    fn find(&self, types: &str, keys: &[&[u8]]) -> Vec<Option<(Vec<u8>, u64)>>;

    /// Keeps results, which were made at this time: the key of the arguments, and a batch of one row.
    fn keep(&self, types: &str, results: &[(&[u8], &[u8])], made: u64);
}
