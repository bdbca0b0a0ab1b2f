//! The error for a file that is not a module.

/// Why a file is not a module: a message, and the line and column if they are known.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) message: String,
    pub(crate) place: Option<(usize, usize)>,
}
