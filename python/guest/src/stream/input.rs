//! The batches of a stream's input, as an iterator for a function.

use super::batch_type::BatchType;
use super::shared_lane::Shared;
use crosslane_process::guest::Next;
use pyo3::exceptions::{PyGeneratorExit, PyOSError};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// How long a thread that reads the input waits for a thread that sends results, before it looks
/// again.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// An iterator over the batches of an input, which are StructArrays. It waits for each batch.
#[pyclass(frozen)]
pub(super) struct InputBatches {
    pub(super) lane: Arc<Shared>,
    pub(super) table: Arc<BatchType>,
}

#[pymethods]
impl InputBatches {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut state = self.lane.lock(py);
        let next = loop {
            let call = state.call;
            if state.cancelled {
                return Err(PyGeneratorExit::new_err(()));
            }
            let sender_waits = || self.lane.sender_waits.load(Relaxed);
            let Some(lane) = state.lane().filter(|_| !call.is_last()) else { return Ok(None) };
            match py.detach(|| lane.more(&call, sender_waits))? {
                Next::Stopped => {
                    drop(state);
                    while sender_waits() {
                        py.detach(|| thread::sleep(POLL_INTERVAL));
                    }
                    state = self.lane.lock(py);
                }
                next => break next,
            }
        };
        let lane = state.lane().ok_or_else(|| PyOSError::new_err("the lane is gone"))?;
        match next {
            Next::Call(call) if call.is_last() => {
                state.call = call;
                Ok(None)
            }
            Next::Call(call) => {
                let columns = lane.columns(std::iter::once(&self.table.columns))?;
                let column = columns.first().ok_or_else(|| PyOSError::new_err("a batch without columns"))?;
                let batch = self.table.to_pyarrow(py, column)?;
                drop(columns);
                state.call = call;
                Ok(Some(batch))
            }
            Next::Cancelled | Next::Stopped => {
                state.cancelled = true;
                // GeneratorExit ends generators, and functions do not catch it as an error.
                Err(PyGeneratorExit::new_err(()))
            }
            Next::Closed => {
                let ended = py.import("crosslane._runtime.errors")?.getattr("LaneEnded")?.call0()?;
                Err(PyErr::from_value(ended))
            }
        }
    }
}
