//! Runs the batches of a client as calls and scans. These block, so they run on threads of their
//! own.

use super::columns::{self, Given};
use super::function::FlightFunction;
use crate::client::RemoteZygote;
use arrow_array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch, new_empty_array, new_null_array};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::{ArrowError, DataType as Arrow, Fields};
use crosslane::batch::{self, Column, Encode};
use crosslane::call::{Asked, CallGroup, Caller, Input, Output, Row, Scan, Spent, call};
use crosslane::values::unfit;
use crosslane::{DataType, Error, Kind, Library};
use crosslane_remote::context::{self, Calling, TraceContext};
use std::ops::Range;
use std::sync::Arc;

/// Why a batch has no results.
#[derive(Debug)]
pub(super) enum Trouble {
    /// What is wrong with it.
    Wrong(String),
    /// What became of the call.
    Failed(Error),
    /// The client does not want the results any more.
    Left,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ArrowError> for Trouble {
    fn from(error: ArrowError) -> Self {
        Self::Failed(unmade(error))
    }
}

fn unmade(error: ArrowError) -> Error {
    Error::Engine(format!("a batch of results cannot be made: {error}"))
}

/// A function, and what its calls go through.
pub(super) struct Calls {
    pub(super) library: Arc<Library<RemoteZygote>>,
    pub(super) function: Arc<FlightFunction>,
    /// Those of an exchange, which end with it.
    pub(super) group: Arc<CallGroup>,
    /// The calls that the exchange has made.
    pub(super) spent: Spent,
    /// The span of the client that they belong to.
    pub(super) trace: Option<Arc<TraceContext>>,
}

impl Calls {
    /// Does what a batch asks for, and gives the results to `give`, which says whether more are wanted.
    pub(super) fn run(
        &self,
        batch: &RecordBatch,
        mut give: impl FnMut(RecordBatch) -> bool,
    ) -> Result<(), Trouble> {
        context::set(Calling::Within(self.trace.clone()));
        let arguments =
            Arguments { columns: batch.columns(), due: &self.function.inputs, rows: batch.num_rows() };
        self.check(&arguments)?;
        match self.function.function.spec.kind {
            Kind::Table => self.scan(&arguments, &mut give),
            _ => {
                let mut results =
                    Results { due: self.function.value(), parts: Vec::new(), nulls: Vec::new() };
                let caller = Caller::new(&self.group, 1).spending(&self.spent);
                call(&self.library, &self.function.function, caller, &arguments, &mut results)?;
                let column = results.finish(arguments.rows)?;
                give(RecordBatch::try_new(Arc::clone(&self.function.results), vec![column])?);
                Ok(())
            }
        }
    }

    /// Looks at the values: workers trust what they are sent.
    fn check(&self, arguments: &Arguments<'_>) -> Result<(), Trouble> {
        let frame = arguments.frame(0..arguments.rows).map_err(|error| Trouble::Wrong(error.to_string()))?;
        let parameters = &self.function.function.signature.parameters;
        let types = parameters.iter().map(|parameter| &parameter.data_type);
        let columns = batch::columns(frame.bytes(), types).map_err(Error::from)?;
        for (column, parameter) in columns.iter().zip(parameters) {
            if let Some((row, what)) = unfit(column).pop_first() {
                // The words are those about results.
                let what = what.trim_start_matches("returned ");
                let name = &parameter.name;
                return Err(Trouble::Wrong(format!("{what}, in row {} of the batch as {name}", row + 1)));
            }
        }
        Ok(())
    }

    /// The tables of all rows, one after the other.
    fn scan(
        &self,
        arguments: &Arguments<'_>,
        give: &mut dyn FnMut(RecordBatch) -> bool,
    ) -> Result<(), Trouble> {
        let function = &self.function.function;
        let types: Vec<_> =
            function.signature.parameters.iter().map(|field| field.data_type.clone()).collect();
        let wanted: Arc<[usize]> = (0..function.signature.returns.children().len()).collect();
        for at in 0..arguments.rows {
            let one = Only { all: arguments, at };
            let row = Row::of(&one, types.iter().cloned())?;
            if self.is_skipped(&row)? {
                continue;
            }
            let (library, function) = (&self.library, &self.function.function);
            let caller = Caller::new(&self.group, 1);
            for partition in Scan::partitions(library, function, caller, row.clone(), LARGEST_PARTITIONS)? {
                let asked = Asked { partition, wanted: Arc::clone(&wanted), arguments: row.clone() };
                let (library, function) = (Arc::clone(&self.library), Arc::clone(function));
                let returns = function.signature.returns.clone();
                let caller = Caller::new(&self.group, 1);
                let mut scan = Scan::open(library, function, caller, returns, asked)?;
                while let Some(rows) = scan.next(caller)? {
                    if !give(self.table(at, &rows)?) {
                        return Err(Trouble::Left);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a NULL is where the function admits none, so that it is not called.
    fn is_skipped(&self, row: &Row) -> Result<bool, Error> {
        let spec = &self.function.function.spec;
        let columns = row.columns()?;
        let mut parameters = columns.iter().enumerate();
        let is = |flags: &[bool], at: usize| flags.get(at).copied().unwrap_or_default();
        Ok(parameters
            .any(|(at, column)| !is(&spec.admits_null, at) && !is(&spec.named, at) && !column.is_valid(0)))
    }

    /// A batch of the table that a row has made.
    fn table(&self, at: usize, rows: &Column<'_>) -> Result<RecordBatch, Trouble> {
        let due = self.function.value();
        let value = match rows.data_type {
            DataType::Struct(columns) if columns.len() == 1 => columns::array(&rows.children[0], due)?,
            _ => columns::array(rows, due)?,
        };
        let index = Int32Array::from_value(at as i32, rows.rows);
        Ok(RecordBatch::try_new(Arc::clone(&self.function.results), vec![Arc::new(index), value])?)
    }
}

/// All partitions of a table have no more bytes than this.
const LARGEST_PARTITIONS: usize = 64 << 20;

/// The columns of a client's batch.
struct Arguments<'a> {
    columns: &'a [ArrayRef],
    due: &'a Fields,
    rows: usize,
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let given = self
            .columns
            .iter()
            .zip(self.due)
            .map(|(column, due)| Given::new(&column.slice(rows.start, rows.len()), due.data_type()));
        take(&given.collect::<Result<Vec<_>, _>>()?);
        Ok(())
    }
}

/// One row of them.
struct Only<'a> {
    all: &'a Arguments<'a>,
    at: usize,
}

impl Input for Only<'_> {
    fn rows(&self) -> usize {
        1
    }

    fn slice(&self, _rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        self.all.slice(self.at..self.at + 1, take)
    }
}

/// The results of a call: parts in any order, and the rows that are NULL because of errors.
struct Results<'a> {
    due: &'a Arrow,
    parts: Vec<(usize, ArrayRef)>,
    nulls: Vec<usize>,
}

impl Output for Results<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.parts.push((first, columns::array(results, self.due)?));
        Ok(())
    }

    fn null(&mut self, row: usize) {
        self.nulls.push(row);
    }
}

impl Results<'_> {
    /// The column of all rows.
    fn finish(mut self, rows: usize) -> Result<ArrayRef, Error> {
        self.parts.sort_unstable_by_key(|(first, _)| *first);
        let mut whole: Vec<ArrayRef> = Vec::new();
        let mut next = 0;
        for (first, part) in self.parts {
            if first > next {
                whole.push(new_null_array(self.due, first - next));
            }
            next = first + part.len();
            whole.push(part);
        }
        if next < rows {
            whole.push(new_null_array(self.due, rows - next));
        }
        let column = match &whole[..] {
            [] => new_empty_array(self.due),
            [one] => Arc::clone(one),
            many => {
                let many: Vec<_> = many.iter().map(|part| &**part).collect();
                arrow_select::concat::concat(&many).map_err(unmade)?
            }
        };
        if self.nulls.is_empty() {
            return Ok(column);
        }
        let mut errors = BooleanBufferBuilder::new(rows);
        errors.append_n(rows, false);
        self.nulls.iter().for_each(|row| errors.set_bit(*row, true));
        arrow_select::nullif::nullif(&column, &BooleanArray::new(errors.finish(), None)).map_err(unmade)
    }
}
