//! The failure of a call.

/// An error of a call, and the row that it is about.
#[derive(Debug)]
pub struct CallError<E> {
    /// The language's error.
    pub error: E,
    /// The row to blame, if it is one row.
    pub row: Option<usize>,
}

impl<E> From<E> for CallError<E> {
    fn from(error: E) -> Self {
        Self { error, row: None }
    }
}

impl<E> From<(E, usize)> for CallError<E> {
    fn from((error, row): (E, usize)) -> Self {
        Self { error, row: Some(row) }
    }
}
