//! A declared function, ready to be called.

use super::answer::{fail, succeed};
use super::batch::{Batch, Progress};
use super::call_error::CallError;
use super::language::Language;
use super::prepared::Prepared;
use crate::values::{Class, Fault, Reader, Writer};
use crosslane::batch::{Column, Encode};
use crosslane::{Calling, ColumnBuilder, DataType, Entry, FunctionSpec, Signature};
use crosslane_process::guest::{Call, GuestLane, RowCounts};

/// An entry of a declared function, ready to be called. If the function takes arguments of any
/// type, it is the entry for some types.
#[derive(Debug)]
pub struct Function<L: Language> {
    pub(crate) prepared: Prepared<L>,
    types: Vec<DataType>,
    /// The type of the results. None if the entry has none: returned values are dropped.
    returns: Option<DataType>,
    calling: Calling,
    memory_limit: Option<u64>,
}

impl<L: Language> Function<L> {
    /// Prepares an entry of a function, for arguments of these types if it takes any.
    ///
    /// # Errors
    /// If it takes no such arguments or has no such entry, or the language cannot have a type.
    pub fn new(
        language: &L,
        spec: &FunctionSpec,
        entry: Entry,
        types: Option<&str>,
    ) -> Result<Self, L::Error> {
        let wrong = |what: String| language.error(Class::Value, &what);
        let mut signature: Signature =
            spec.signature.parse().map_err(|error| wrong(format!("{}: {error}", spec.signature)))?;
        let mut admits_null = spec.admits_null.clone();
        let mut rest = false;
        if let Some(types) = types {
            rest = admits_null.pop_if(|_| signature.variadic).unwrap_or_default();
            signature = signature.for_types(types).map_err(|error| wrong(error.to_string()))?;
        } else if signature.takes_any() {
            return Err(wrong(format!("a call of {signature} without the types of its arguments")));
        }
        admits_null.resize(signature.parameters.len(), rest);
        let Some(carried) = spec.kind.entry(entry, &signature) else {
            return Err(wrong(format!("{signature} has no entry {entry:?}")));
        };
        let types: Vec<DataType> = carried.takes().cloned().collect();
        let readers = types.iter().map(|data_type| Reader::new(language, data_type));
        // The number of a state is never NULL.
        let leading = carried.leading.iter().map(|_| false);
        let prepared = Prepared {
            entry,
            variadic: signature.variadic && !carried.arguments.is_empty(),
            admits_null: leading.chain(admits_null).take(types.len()).collect(),
            error_policy: spec.error_policy(),
            readers: readers.collect::<Result<_, _>>()?,
            writer: carried.returns.map(|returns| Writer::new(language, returns)).transpose()?,
        };
        Ok(Self {
            prepared,
            returns: carried.returns.cloned(),
            calling: spec.calling,
            memory_limit: spec.memory_limit,
            types,
        })
    }

    /// Which entry it is.
    pub fn entry(&self) -> Entry {
        self.prepared.entry
    }

    /// The types of the columns that it is called with.
    pub fn types(&self) -> &[DataType] {
        &self.types
    }

    /// A column for the results of the entry. If the entry has none, the column takes NULLs, which are
    /// not read.
    pub fn results(&self) -> ColumnBuilder {
        ColumnBuilder::new(self.returns.as_ref().unwrap_or(&DataType::Boolean))
    }

    /// Runs it over a batch, into `out`, and answers.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol, or what ended the lane.
    pub fn answer(
        &self,
        language: &L,
        callee: &L::Callee,
        lane: &mut GuestLane,
        call: Call,
        out: &mut ColumnBuilder,
    ) -> Result<(), L::Error> {
        let outcome = {
            let columns = lane.columns(self.types.iter())?;
            let progress = Progress { word: Some(lane.progress()), sequence: call.header.exchange as u32 };
            self.run(language, callee, &columns, call.header.rows as usize, progress, out)
        };
        match outcome {
            Ok(row_counts) => {
                let (call, results): (Call, &dyn Encode) =
                    if self.returns.is_some() { (call, out) } else { (call.with_rows(0), &()) };
                succeed(language, lane, call, results, row_counts)
            }
            Err(mishap) => fail(language, lane, call, mishap),
        }
    }

    /// Runs it over a batch, into `out`.
    ///
    /// # Errors
    /// The error, if the rows do not become NULL.
    pub fn run(
        &self,
        language: &L,
        callee: &L::Callee,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        out: &mut ColumnBuilder,
    ) -> Result<RowCounts, CallError<L::Error>> {
        let mut work = || {
            out.clear();
            out.reserve(rows).map_err(|overflow| Fault::from(overflow).into_error(language))?;
            let batch = Batch::new(&self.prepared, language, callee, columns, rows, progress);
            match self.calling {
                Calling::Row => batch.run_rows(out),
                Calling::Vectorized => batch.run_vectorized(out),
                Calling::Async => language.run_concurrently(&batch, out),
            }
        };
        match self.memory_limit {
            Some(bytes) => language.limited(bytes, work),
            None => work(),
        }
    }
}
