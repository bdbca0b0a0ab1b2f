//! The states of an aggregate on a lane: instances of a class, by the numbers of the states.
//!
//! Rows are added by a loop in Python, like the rows of [`crate::loops`]. Its iterator gives the
//! instance that a row is for, and puts the arguments into their cells. The first rows of a state
//! are pending ([`super::pending_rows`]).

use super::buffered_rows::BufferedRows;
use super::pending_rows::RowFormat;
use super::state::{DueRows, State};
use crate::declaration::Declaration;
use crate::lane::{CallError, CallResult, Exchange, retry_or_null};
use crate::loops::{Argument, Cursor, Loop, ResultWriter, RowCaller, RowResults, Selection};
use crate::values::{FastPath, Reader, overflow};
use crosslane::batch::Column;
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, DataType, Verdict};
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// An aggregate on one lane.
pub(crate) struct Aggregate<'py> {
    /// `crosslane._worker.aggregates.States`.
    pub(super) states: Bound<'py, PyAny>,
    /// Makes an instance that holds no_results. None for a class whose instances say themselves how
    /// they are saved.
    pub(super) make_blank: Option<Bound<'py, PyAny>>,
    /// Makes an instance without arguments.
    pub(super) class: Bound<'py, PyAny>,
    /// The bytes of the last instance that was saved.
    pub(super) bytes: Vec<u8>,
    /// The states, by their numbers.
    pub(super) living: Vec<State>,
    /// The format of pending rows. None if no rows are pending.
    pub(super) format: Option<RowFormat>,
    pub(super) declaration: Declaration<'py>,
    pub(super) readers: Vec<Reader<'py>>,
    pub(super) writer: ResultWriter<'py>,
    pub(super) row_loop: Loop,
    /// The rows that are not added yet, if the aggregate is vectorized.
    pub(super) buffered: Option<BufferedRows<'py>>,
    /// The results of one batch.
    pub(super) results: ColumnBuilder,
    pub(super) saved: ColumnBuilder,
    /// The loop over rows gets this column instead of results.
    pub(super) no_results: ColumnBuilder,
    /// The size of the process when the first of the living states began.
    pub(super) base: Option<u64>,
}

impl<'py> Aggregate<'py> {
    pub(crate) fn new(declared: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = declared.py();
        let declaration = Declaration::read(declared)?;
        let Declaration { signature, admits_null, memory_limit, .. } = &declaration;
        let module = py.import("crosslane._worker.aggregates")?;
        let kind: String = declared.getattr("kind")?.extract()?;
        let states = module.getattr("States")?.call1((declared,))?;
        let types = || signature.parameters.iter().map(|field| &field.data_type);
        let buffered =
            (kind == "vectorized").then(|| BufferedRows::new(py, types(), *memory_limit)).transpose()?;
        // A function with a time limit has no pending rows, because the engine learns from the rows
        // of a call how far it is.
        let may_be_pending = buffered.is_none() && declared.getattr("timeout")?.is_none();
        Ok(Self {
            format: RowFormat::new(types().zip(admits_null.iter().copied())).filter(|_| may_be_pending),
            buffered,
            make_blank: states.getattr("blank")?.extract()?,
            class: states.getattr("of")?,
            bytes: Vec::new(),
            states: states.clone(),
            living: Vec::new(),
            readers: declaration.readers(py)?,
            writer: ResultWriter::new(py, &signature.returns, declared.getattr("result_shape")?.extract()?)?,
            row_loop: Loop::new(&module.getattr("loop")?.call1((signature.parameters.len(),))?)?,
            results: ColumnBuilder::new(&signature.returns),
            saved: ColumnBuilder::new(&DataType::Blob),
            no_results: ColumnBuilder::new(&DataType::Boolean),
            declaration,
            base: None,
        })
    }

    #[inline]
    pub(super) fn py(&self) -> Python<'py> {
        self.states.py()
    }

    /// The rows of an update that are added.
    pub(super) fn selection(&self, exchange: &Exchange<'_>) -> Selection {
        Selection::without_nulls(exchange.rows(), &exchange.columns[1..], &self.declaration.admits_null)
    }

    /// The state of a number, which is made now if there is none.
    #[inline]
    pub(super) fn state_mut(&mut self, number: usize) -> PyResult<&mut State> {
        if number >= self.living.len() {
            let more = number + 1 - self.living.len();
            let room = self.living.try_reserve(more);
            room.map_err(|_| PyMemoryError::new_err("no memory for the states of an aggregate"))?;
            self.living.resize_with(number + 1, State::default);
        }
        Ok(&mut self.living[number])
    }

    #[inline]
    pub(super) fn take(&mut self, number: usize) -> State {
        self.living.get_mut(number).map(std::mem::take).unwrap_or_default()
    }

    /// Drops the places behind the last state. So a lane that waits for another query keeps no
    /// memory for millions of states.
    pub(super) fn shrink(&mut self) {
        let last = self.living.iter().rposition(|state| !state.is_nothing());
        self.living.truncate(last.map_or(0, |last| last + 1));
        if self.living.is_empty() {
            self.living = Vec::new();
        }
    }

    /// The instance of a state. It is made now if there is none.
    #[inline]
    pub(super) fn instance(&mut self, number: usize) -> PyResult<*mut ffi::PyObject> {
        if let Some(State { instance: Some(instance), .. }) = self.living.get(number) {
            return Ok(instance.as_ptr());
        }
        let instance = self.class.call0()?;
        Ok(self.state_mut(number)?.instance.insert(instance.unbind()).as_ptr())
    }

    /// Adds pending rows of these states to their instances.
    pub(super) fn settle(&mut self, exchange: &Exchange<'_>, numbers: Vec<usize>) -> CallResult {
        let Some(format) = self.format.as_ref().filter(|_| !numbers.is_empty()) else { return Ok(()) };
        let mut due = DueRows { columns: format.columns(), instances: Vec::new() };
        for number in numbers {
            let state = &mut self.living[number];
            if state.pending.is_empty() {
                continue;
            }
            let instance = match &state.instance {
                Some(instance) => instance,
                None => state.instance.insert(self.class.call0()?.unbind()),
            };
            due.add(format, &std::mem::take(&mut state.pending), instance.as_ptr())?;
        }
        self.add_due(exchange, &due)
    }

    /// Adds rows that were pending. The caller keeps their instances alive.
    pub(super) fn add_due(&mut self, exchange: &Exchange<'_>, due: &DueRows) -> CallResult {
        let Some(format) = self.format.take() else { return Ok(()) };
        let columns = format.built(&due.columns);
        let selection = Selection::all(due.instances.len());
        let added = self.add(exchange, &columns, &selection, &due.instances, true);
        drop(columns);
        self.format = Some(format);
        added
    }

    /// Adds rows to their instances. Rows that were pending are not the rows of the exchange.
    pub(super) fn add(
        &mut self,
        exchange: &Exchange<'_>,
        columns: &[Column<'_>],
        selection: &Selection,
        instances: &[*mut ffi::PyObject],
        pending: bool,
    ) -> CallResult {
        let py = self.py();
        let count = selection.rows();
        let mut from = selection.next(0);
        if from == count {
            return Ok(());
        }
        self.no_results.clear();
        self.no_results.reserve(count).map_err(overflow)?;
        let mut all = vec![Argument::Object { objects: instances }];
        all.extend(Argument::all(&self.readers, columns, &self.declaration.admits_null));
        let taken = RowResults::new(py, FastPath::Boolean, selection, &mut self.no_results);
        let mut cursor = Cursor::new(&self.row_loop, all, exchange.progress, exchange.sequence(), taken);
        if pending {
            cursor = cursor.counting();
        }
        while from < count {
            let Err((error, row)) = cursor.run(from) else { break };
            if row == count {
                return Err(error.into());
            }
            let arguments: Vec<_> =
                Argument::all(&self.readers, columns, &self.declaration.admits_null).collect();
            let with_row = |error: PyErr| -> PyResult<CallError> {
                if !pending {
                    return Ok((error, row).into());
                }
                let values = arguments.iter().map(|argument| {
                    // SAFETY: it is a new reference.
                    argument.get(py, row).map(|value| unsafe { Bound::from_owned_ptr(py, value) })
                });
                let values = PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?;
                let names = self.declaration.signature.parameters.iter().map(|field| field.name.as_str());
                let names = PyList::new(py, names.collect::<Vec<_>>())?;
                self.states.call_method1(intern!(py, "blame"), (error.value(py), names, values))?;
                Ok(error.into())
            };
            // SAFETY: each called row has its instance.
            let instance = unsafe { Bound::from_borrowed_ptr(py, instances[row]) };
            let mut tries = 0;
            let mut failed = with_row(error)?;
            while let Verdict::Again(_) =
                retry_or_null(py, exchange, self.declaration.error_policy, failed, &mut tries, 1)?
            {
                exchange.tell(row as u32 | if pending { COUNT } else { 0 });
                let method = instance.getattr(intern!(py, "update"));
                let called = method.and_then(|method| RowCaller::new(&method, &arguments, false).call(row));
                match called {
                    Ok(_) => break,
                    Err(error) => failed = with_row(error)?,
                }
            }
            cursor.results().push(row, py.None().bind(py))?;
            from = selection.next(row + 1);
        }
        Ok(())
    }
}
