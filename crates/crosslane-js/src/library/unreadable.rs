//! The error of a file that cannot be read as source.

/// Why a file is no module: a message, and the line and column if they are known.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) message: String,
    pub(crate) place: Option<(usize, usize)>,
}
