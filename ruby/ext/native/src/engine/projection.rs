//! The columns of a table function that a query wants: no others are made into values, sent or written.

use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::Input;
use crosslane::{ColumnBuilder, DataType, Error};
use crosslane_vectors::Arguments;
use libduckdb_sys as ffi;
use std::ops::Range;
use std::sync::Arc;

/// The columns that one scan makes.
pub(crate) struct Projection {
    /// Their places among all columns, ascending.
    wanted: Vec<usize>,
    /// A STRUCT of them.
    pub(crate) rows: DataType,
    /// For each vector of a chunk, which of them it takes.
    vectors: Vec<usize>,
}

impl Projection {
    /// What DuckDB wants of a STRUCT of all columns.
    ///
    /// # Errors
    /// [`Error::Engine`] for a column that there is not.
    ///
    /// # Safety
    /// The info must be that of an `init` callback.
    pub(crate) unsafe fn of(info: ffi::duckdb_init_info, all: &DataType) -> Result<Self, Error> {
        // SAFETY: as the caller says.
        let asked: Vec<usize> = unsafe {
            let count = ffi::duckdb_init_get_column_count(info);
            (0..count).map(|at| ffi::duckdb_init_get_column_index(info, at) as usize).collect()
        };
        Self::new(&asked, all)
    }

    /// The columns in the order in which they are asked for.
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
        Ok(Self { wanted, rows, vectors })
    }

    /// The column of each vector, out of rows of [`Projection::rows`].
    pub(crate) fn vectors<'a, 'b>(&'a self, rows: &'a Column<'b>) -> impl Iterator<Item = &'a Column<'b>> {
        self.vectors.iter().map(|column| &rows.children[*column])
    }
}

/// What opening a scan is told: the arguments, and the places of the wanted columns.
pub(crate) struct Opening<'a> {
    arguments: Arguments<'a>,
    wanted: ColumnBuilder,
}

impl<'a> Opening<'a> {
    /// One row of both.
    ///
    /// # Errors
    /// [`Error::Engine`] if there is no memory for it.
    pub(crate) fn new(arguments: Arguments<'a>, projection: &Projection) -> Result<Self, Error> {
        let mut wanted = ColumnBuilder::new(&DataType::List(Arc::new(DataType::BigInt)));
        projection.wanted.iter().for_each(|column| wanted.children[0].fixed(*column as i64));
        wanted.nested().map_err(|error| Error::Engine(error.to_string()))?;
        Ok(Self { arguments, wanted })
    }
}

impl Input for Opening<'_> {
    fn rows(&self) -> usize {
        1
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        self.arguments.slice(rows, &mut |arguments| take(&Told { arguments, wanted: &self.wanted }))
    }
}

struct Told<'a> {
    arguments: &'a dyn Encode,
    wanted: &'a ColumnBuilder,
}

impl Encode for Told<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.arguments.plan(plan);
        self.wanted.plan(plan);
    }

    fn write(&self, body: &mut Body<'_>) {
        self.arguments.write(body);
        self.wanted.write(body);
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
        assert_eq!((projection.wanted, projection.vectors), (vec![0, 2], vec![1, 0, 1]));
        assert_eq!(Projection::new(&[], &all).unwrap().rows.children().len(), 0);
        assert!(Projection::new(&[0, usize::MAX], &all).is_err());
    }
}
