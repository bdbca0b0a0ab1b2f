//! The columns of a table function that a query uses. Only these are converted, sent and written.

use crosslane::batch::Column;
use crosslane::{DataType, Error};
use libduckdb_sys as ffi;
use std::sync::Arc;

/// The columns of one scan.
#[derive(Debug)]
pub struct Projection {
    /// Their indices among all columns, ascending.
    pub(crate) wanted: Arc<[usize]>,
    /// A STRUCT of them.
    pub(crate) rows: DataType,
    /// For each vector of a chunk, the index of its column among the wanted ones.
    vectors: Vec<usize>,
}

impl Projection {
    /// The columns that DuckDB wants out of a STRUCT of all columns.
    ///
    /// # Errors
    /// [`Error::Engine`] for a column that does not exist.
    ///
    /// # Safety
    /// The info must be that of an `init` callback.
    pub unsafe fn of(info: ffi::duckdb_init_info, all: &DataType) -> Result<Self, Error> {
        // SAFETY: as the caller says.
        let asked: Vec<usize> = unsafe {
            let count = ffi::duckdb_init_get_column_count(info);
            (0..count).map(|at| ffi::duckdb_init_get_column_index(info, at) as usize).collect()
        };
        Self::new(&asked, all)
    }

    /// The columns, in the order in which DuckDB asks for them.
    fn new(asked: &[usize], all: &DataType) -> Result<Self, Error> {
        let DataType::Struct(fields) = all else {
            return Err(Error::Engine(format!("{all} has no columns")));
        };
        if let Some(column) = asked.iter().find(|column| **column >= fields.len()) {
            return Err(Error::Engine(format!("DuckDB asks for column {column} of {all}")));
        }
        let mut wanted = asked.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let vectors = asked.iter().map(|column| wanted.partition_point(|before| before < column)).collect();
        let rows = DataType::Struct(wanted.iter().map(|column| fields[*column].clone()).collect());
        Ok(Self { wanted: wanted.into(), rows, vectors })
    }

    /// For each vector of a chunk, the index of its column among all columns.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> {
        self.vectors.iter().map(|column| self.wanted[*column])
    }

    /// The column of each vector, out of rows of [`Projection::rows`].
    pub(crate) fn vectors<'a, 'b>(&'a self, rows: &'a Column<'b>) -> impl Iterator<Item = &'a Column<'b>> {
        self.vectors.iter().map(|column| &rows.children[*column])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_made_once_and_given_as_they_are_asked_for() {
        let all: DataType = "STRUCT(a BIGINT, b VARCHAR, c DATE)".parse().unwrap();
        let projection = Projection::new(&[2, 0, 2], &all).unwrap();
        assert_eq!(projection.rows.to_string(), "STRUCT(a BIGINT, c DATE)");
        assert_eq!(projection.columns().collect::<Vec<_>>(), [2, 0, 2]);
        assert_eq!((&*projection.wanted, projection.vectors), (&[0, 2][..], vec![1, 0, 1]));
        assert_eq!(Projection::new(&[], &all).unwrap().rows.children().len(), 0);
        assert!(Projection::new(&[0, usize::MAX], &all).is_err());
    }
}
