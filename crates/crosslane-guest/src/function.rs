//! A declared function, ready to be called.

use crate::batch::{Batch, Mishap, Progress};
use crate::calls::{Language, fail};
use crate::reader::Reader;
use crate::values::{Class, Fault};
use crate::writer::Writer;
use crosslane::batch::{Column, Encode, Plan};
use crosslane::{Calling, ColumnBuilder, DataType, FunctionSpec, Leniency, Signature};
use crosslane_process::guest::{Call, GuestLane, Mishaps};

/// A declared function, ready to be called; for arguments of some types, if it takes any.
#[derive(Debug)]
pub struct Function<L: Language> {
    types: Vec<DataType>,
    returns: DataType,
    calling: Calling,
    memory_limit: Option<u64>,
    /// Whether the last argument is a LIST of any number of arguments.
    pub(crate) variadic: bool,
    pub(crate) admits_null: Vec<bool>,
    pub(crate) leniency: Leniency,
    pub(crate) readers: Vec<Reader<L>>,
    pub(crate) writer: Writer<L>,
}

impl<L: Language> Function<L> {
    /// Prepares a function, for arguments of these types if it takes any.
    ///
    /// # Errors
    /// If it takes no such arguments, or the language cannot have a type.
    pub fn new(language: &L, spec: &FunctionSpec, types: Option<&str>) -> Result<Self, L::Error> {
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
        let types: Vec<DataType> = signature.parameters.into_iter().map(|field| field.data_type).collect();
        let readers = types.iter().map(|data_type| Reader::new(language, data_type));
        Ok(Self {
            readers: readers.collect::<Result<_, _>>()?,
            writer: Writer::new(language, &signature.returns)?,
            types,
            returns: signature.returns,
            calling: spec.calling,
            memory_limit: spec.memory_limit,
            variadic: signature.variadic,
            admits_null,
            leniency: spec.leniency(),
        })
    }

    /// The types of the columns that it is called with.
    pub fn types(&self) -> &[DataType] {
        &self.types
    }

    /// A place for its results.
    pub fn results(&self) -> ColumnBuilder {
        ColumnBuilder::new(&self.returns)
    }

    /// Runs it over a batch, into `out`, and answers with what became of that.
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
            Ok(mishaps) => {
                let mut plan = Plan::default();
                out.plan(&mut plan);
                language.wait_for_room(lane, plan.size())?;
                Ok(lane.succeed(call, out, mishaps)?)
            }
            Err(mishap) => fail(language, lane, call, mishap),
        }
    }

    /// Runs it over a batch, into `out`.
    ///
    /// # Errors
    /// What went wrong that does not become NULL.
    pub fn run(
        &self,
        language: &L,
        callee: &L::Callee,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap<L::Error>> {
        let mut work = || {
            out.clear();
            out.reserve(rows).map_err(|overflow| Fault::from(overflow).into_error(language))?;
            let batch = Batch::new(self, language, callee, columns, rows, progress);
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
