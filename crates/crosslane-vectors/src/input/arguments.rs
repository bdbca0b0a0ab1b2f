//! The columns of a chunk as the arguments of a call.

use super::rows::Rows;
use super::vector_rows::VectorRows;
use crosslane::batch::{self, Body, Encode, Frame, Plan};
use crosslane::builder::Overflow;
use crosslane::call::Input;
use crosslane::{ColumnBuilder, DataType, Error, Function};
use libduckdb_sys as ffi;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// The types of columns; a few need no allocation.
type Types<'a> = SmallVec<[&'a DataType; FEW]>;

/// Calls with at most this many arguments make no allocation.
const FEW: usize = 4;

/// The columns of a chunk: the arguments of a callback, or the rows of a result.
#[derive(Debug)]
pub struct Arguments<'a> {
    chunk: ffi::duckdb_data_chunk,
    types: Types<'a>,
    rest: Option<Rest<'a>>,
    /// The types as text, if calls carry them.
    text: Option<&'a Arc<str>>,
    rows: usize,
}

/// The columns of a variadic parameter. They become one column of LISTs.
#[derive(Debug)]
struct Rest<'a> {
    element: &'a DataType,
    columns: usize,
    /// Whether a NULL among the elements makes the whole row NULL.
    skips: bool,
}

impl<'a> Arguments<'a> {
    /// # Safety
    /// The chunk must live as long as the result, and have columns of these types.
    pub unsafe fn new(chunk: ffi::duckdb_data_chunk, types: impl IntoIterator<Item = &'a DataType>) -> Self {
        // SAFETY: the caller vouches for the chunk.
        let rows = unsafe { ffi::duckdb_data_chunk_get_size(chunk) } as usize;
        Self { chunk, types: types.into_iter().collect(), rest: None, text: None, rows }
    }

    /// The arguments of a function's call.
    ///
    /// # Safety
    /// The chunk must live as long as the result, and have the columns that the function was
    /// registered with.
    pub unsafe fn of(chunk: ffi::duckdb_data_chunk, function: &'a Function) -> Self {
        let signature = &function.signature;
        let types: Types<'_> = signature.fixed().iter().map(|parameter| &parameter.data_type).collect();
        // SAFETY: the caller vouches for the chunk.
        let columns = unsafe { ffi::duckdb_data_chunk_get_column_count(chunk) } as usize;
        let rest = signature.rest().map(|element| Rest {
            element,
            columns: columns.saturating_sub(types.len()),
            skips: function.spec.admits_null.last() != Some(&true),
        });
        // SAFETY: as the caller says.
        Self { rest, text: function.types.as_ref(), ..unsafe { Self::new(chunk, types) } }
    }

    /// The same columns with this number of rows.
    #[must_use]
    pub(crate) fn with_rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Some rows of a column.
    fn column(
        &self,
        index: usize,
        data_type: &'a DataType,
        rows: &Range<usize>,
    ) -> Result<VectorRows<'a>, Error> {
        // SAFETY: the chunk has a column of this type at this index, with these rows, and outlives
        // self.
        unsafe {
            let vector = ffi::duckdb_data_chunk_get_vector(self.chunk, index as ffi::idx_t);
            VectorRows::new(vector, data_type, Rows::Range(rows.clone()))
        }
    }
}

impl<'a> Rest<'a> {
    /// The lists, or `None` if they are too large for a batch.
    fn lists(&self, columns: &Sources<'a>, rows: usize) -> Result<Option<ColumnBuilder>, Error> {
        let mut plan = Plan::default();
        columns.plan(&mut plan);
        if plan.is_too_large() {
            return Ok(None);
        }
        let frame = Frame::new(columns, rows)?;
        let columns = batch::columns(frame.bytes(), std::iter::repeat_n(self.element, self.columns))?;
        match ColumnBuilder::lists(self.element, &columns, rows, self.skips) {
            Ok(lists) => Ok(Some(lists)),
            Err(Overflow::TooLarge) => Ok(None),
            Err(Overflow::NoMemory) => Err(Error::memory(frame.bytes().len())),
        }
    }
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        if rows.start > rows.end || rows.end > self.rows {
            return Err(Error::Engine(format!("rows {rows:?} of a chunk of {}", self.rows)));
        }
        let types = self.types.iter().copied().enumerate();
        let fixed = types.map(|(index, data_type)| self.column(index, data_type, &rows));
        let fixed = Sources { columns: fixed.collect::<Result<_, _>>()?, text: self.text };
        let Some(rest) = &self.rest else {
            take(&fixed);
            return Ok(());
        };
        let columns = (0..rest.columns).map(|at| self.column(self.types.len() + at, rest.element, &rows));
        let columns = Sources { columns: columns.collect::<Result<_, _>>()?, text: None };
        let lists = rest.lists(&columns, rows.len())?;
        take(&WithRest { fixed, lists });
        Ok(())
    }
}

/// The arguments of a variadic function.
struct WithRest<'a> {
    fixed: Sources<'a>,
    /// `None` if they are too large for a batch, which is then cut.
    lists: Option<ColumnBuilder>,
}

impl Encode for WithRest<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.fixed.plan(plan);
        match &self.lists {
            Some(lists) => lists.plan(plan),
            None => plan.overflow(),
        }
    }
    fn write(&self, body: &mut Body<'_>) {
        self.fixed.write(body);
        self.lists.iter().for_each(|lists| lists.write(body));
    }
}

struct Sources<'a> {
    columns: SmallVec<[VectorRows<'a>; FEW]>,
    /// Their types as text, if the batch carries them.
    text: Option<&'a Arc<str>>,
}

impl Encode for Sources<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.text.into_iter().for_each(|text| plan.types(text));
        self.columns.iter().for_each(|source| source.plan(plan));
    }
    fn write(&self, body: &mut Body<'_>) {
        self.columns.iter().for_each(|source| source.write(body));
    }
}
