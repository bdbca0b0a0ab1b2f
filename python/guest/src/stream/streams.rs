//! The answers of stream functions: to a batch of the input, or to all batches.

use super::batch_type::{BatchTypes, TypedBatch};
use super::input::InputBatches;
use super::shared_lane::{SharedLane, send};
use crate::lane::{describe, ends_lane, fail, refuse, succeed};
use crosslane::{Entry, Failure};
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use crosslane_process::limits::MemoryLimit;
use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// Prepares a stream function for its first batch. Returns the call, unless that failed. Then the
/// engine was told.
pub(crate) fn set_up(
    lane: &mut GuestLane,
    call: Call,
    declared: &Bound<'_, PyAny>,
) -> PyResult<Option<Call>> {
    let py = declared.py();
    match declared.call_method0(intern!(py, "set_up")) {
        Ok(_) => Ok(Some(call)),
        Err(error) if ends_lane(py, &error) => Err(error),
        Err(error) => {
            let failure = Failure { set_up: true, ..describe(py, error)? };
            refuse(py, lane, call, &failure, None)?;
            Ok(None)
        }
    }
}

/// The stream functions of a lane.
#[derive(Default)]
pub(crate) struct Streams {
    tables: BatchTypes,
}

/// How far the answer to a batch is.
enum Ended {
    /// The last batch was sent, which ends the exchange.
    Sent,
    /// All batches were sent, or the engine wants no more. The end of the exchange was not sent.
    Over,
}

impl Streams {
    /// Answers a batch of the input, or all batches if the exchange is for all of them.
    pub(crate) fn answer(
        &mut self,
        lane: &mut GuestLane,
        call: Call,
        functions: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let py = functions.py();
        let index = call.header.function as usize;
        let Ok(function) = functions.get_item(index) else {
            let count = functions.len();
            return Err(PyOSError::new_err(format!("a batch for function {index} of {count}")));
        };
        let Some(call) = set_up(lane, call, &function)? else { return Ok(()) };
        let outcome = match call.entry() {
            Some(Entry::Iterate) => self.iterate(lane, call, &function),
            _ => self.map(lane, call, &function),
        };
        match outcome {
            Ok(Ended::Sent) => Ok(()),
            Ok(Ended::Over) => succeed(py, lane, call.with_rows(0), &(), RowCounts::default()),
            Err(error) => fail(py, lane, call, error),
        }
    }

    /// Calls a function with all batches of the input.
    fn iterate(&mut self, lane: &mut GuestLane, call: Call, function: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let shared = SharedLane::new(lane, call);
        let outcome = self.iterated(&shared, call, function);
        // The engine does not want the results any more, so the outcome does not matter.
        if shared.is_cancelled(function.py()) { Ok(Ended::Over) } else { outcome }
    }

    fn iterated(
        &mut self,
        lane: &SharedLane<'_>,
        call: Call,
        function: &Bound<'_, PyAny>,
    ) -> PyResult<Ended> {
        let py = function.py();
        let takes: String = function.getattr(intern!(py, "takes"))?.extract()?;
        let table = self.tables.get(py, &takes)?;
        let batches = Bound::new(py, InputBatches { lane: Arc::clone(&lane.shared), table })?;
        let most = lane.shared.lock(py).lane().map_or(usize::MAX, |lane| lane.most());
        let answers = function.call_method1(intern!(py, "iterate"), (batches, most / 2))?;
        self.send_all(&answers, |rows, batch| lane.send(py, &call, rows, batch))
    }

    /// Sends the batches of a generator, until the engine wants no more.
    fn send_all(
        &mut self,
        answers: &Bound<'_, PyAny>,
        mut send: impl FnMut(usize, &TypedBatch) -> PyResult<bool>,
    ) -> PyResult<Ended> {
        for answer in answers.try_iter()? {
            let (rows, batch) = self.typed(&answer?)?;
            if !send(rows, &batch)? {
                answers.call_method0(intern!(answers.py(), "close"))?;
                break;
            }
        }
        Ok(Ended::Over)
    }

    fn map(&mut self, lane: &mut GuestLane, call: Call, function: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let py = function.py();
        let limit: Option<u64> = function.getattr(intern!(py, "memory_limit"))?.extract()?;
        let _limit = limit.and_then(MemoryLimit::set);
        let batch = {
            let types = lane.types(&call)?;
            let types =
                types.ok_or_else(|| PyOSError::new_err("a batch without the types of its columns"))?;
            let table = self.tables.get(py, types)?;
            let columns = lane.columns(std::iter::once(&table.columns))?;
            let column = columns.first().ok_or_else(|| PyOSError::new_err("a batch without columns"))?;
            table.to_pyarrow(py, column)?
        };
        let answers = function.call_method1(intern!(py, "answers"), (batch, lane.most() / 2))?;
        if let Ok(all) = answers.cast::<PyList>() {
            // All batches are there: the last one ends the exchange.
            let count = all.len();
            for (at, answer) in all.iter().enumerate() {
                let (rows, batch) = self.typed(&answer)?;
                if at + 1 == count {
                    succeed(py, lane, call.with_rows(rows), &batch, RowCounts::default())?;
                    return Ok(Ended::Sent);
                }
                if !send(py, lane, &call, rows, &batch)? {
                    break;
                }
            }
            return Ok(Ended::Over);
        }
        self.send_all(&answers, |rows, batch| send(py, lane, &call, rows, batch))
    }

    /// The rows and the batch that `answers` gives: the types, and a StructArray.
    fn typed(&mut self, answer: &Bound<'_, PyAny>) -> PyResult<(usize, TypedBatch)> {
        let (types, array): (String, Bound<'_, PyAny>) =
            answer.extract().map_err(|_| PyTypeError::new_err("a batch is its types and an array"))?;
        let table = self.tables.get(answer.py(), &types)?;
        Ok((array.len()?, TypedBatch::new(&array, &table)?))
    }
}
