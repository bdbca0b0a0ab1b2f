//! What opening a scan of a table function is told.

use crosslane::batch::{Body, Encode, Plan};
use crosslane::call::Input;
use crosslane::{ColumnBuilder, DataType, Error};
use crosslane_vectors::Projection;
use std::ops::Range;
use std::sync::Arc;

/// The arguments, and the places of the wanted columns.
pub(crate) struct Opening<'a> {
    arguments: &'a dyn Input,
    wanted: ColumnBuilder,
}

impl<'a> Opening<'a> {
    /// One row of both.
    ///
    /// # Errors
    /// [`Error::Engine`] if there is no memory for it.
    pub(crate) fn new(arguments: &'a dyn Input, projection: &Projection) -> Result<Self, Error> {
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
