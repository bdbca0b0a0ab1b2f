//! The engine's end of [`crosslane.map`](crosslane::call::Map), in the program that reads the stream.

use crate::stream::{Tables, Typed};
use crosslane::call::{CallGroup, Caller, Map as Stream, MapInput, MapOptions, MapStep, map_types};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{Error, Library, Settings};
use crosslane_process::{Origin, Source, Zygote, ZygoteOptions};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Bytes of each ring: a few batches of 65,536 rows.
const RING: usize = 4 << 20;

/// Why a stream is to end.
#[derive(Default)]
struct Ending {
    /// It was closed, maybe by another thread.
    closed: AtomicBool,
    /// The terminal's Ctrl-C reached the workers.
    interrupted: AtomicBool,
    /// What a signal's handler has raised.
    raised: Mutex<Option<PyErr>>,
}

impl Ending {
    /// Asked while a thread waits, without the interpreter's lock.
    fn is_due(&self) -> bool {
        if self.closed.load(Relaxed) || self.interrupted.load(Relaxed) {
            return true;
        }
        match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                true
            }
        }
    }

    /// What Python raises for a stream that has to end.
    fn cancelled(&self) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.unwrap_or_else(|| match self.closed.load(Relaxed) {
            true => PyValueError::new_err("the stream was closed"),
            false => PyKeyboardInterrupt::new_err(()),
        })
    }

    /// What Python raises for an error.
    fn raise(&self, error: &Error) -> PyErr {
        match error {
            Error::Cancelled { .. } => self.cancelled(),
            Error::TimedOut { .. } => PyTimeoutError::new_err(error.to_string()),
            _ => PyRuntimeError::new_err(error.to_string()),
        }
    }
}

/// A stream under way, and what its batches are in Python.
struct Running {
    stream: Stream<Zygote>,
    group: CallGroup,
    tables: Tables,
}

/// A stream through a function, over workers of its own.
#[pyclass(frozen)]
pub(crate) struct Map {
    running: Mutex<Option<Running>>,
    /// The columns of the results, as far as they are known.
    columns: Mutex<Option<String>>,
    ending: Arc<Ending>,
    /// A fork has none of the workers.
    process: u32,
    /// The most bytes of a batch of the input.
    #[pyo3(get)]
    most: usize,
}

#[pymethods]
impl Map {
    /// Starts the workers by a command, for the first function of the given pickles.
    #[new]
    fn new(
        py: Python<'_>,
        command: Vec<String>,
        name: String,
        pickles: Vec<u8>,
        lanes: usize,
        depth: usize,
        ordered: bool,
    ) -> PyResult<Self> {
        let ending = Arc::new(Ending::default());
        let settings = Settings::default();
        let (interrupted, stop) = (Arc::clone(&ending), Arc::clone(&ending));
        let source = Source::Pickle { name: name.clone(), pickles: vec![pickles] };
        let advice = "is the package crosslane installed for this interpreter (`crosslane doctor` tells)?";
        let options = ZygoteOptions {
            origin: Origin::Process { command, environment: &[], advice },
            source,
            load_timeout: settings.load_timeout,
            ring_size: RING,
            largest_batch: settings.largest_batch,
            spin: settings.spin,
            on_interrupt: Arc::new(move |_| interrupted.interrupted.store(true, Relaxed)),
        };
        let warm = PoolOptions { warm: lanes, idle_timeout: settings.idle_timeout };
        let begin = || -> Result<Stream<Zygote>, Error> {
            let (pool, loaded) = Pool::start(warm, move |stop| Zygote::start(options, stop))?;
            let function = loaded.functions.first().cloned();
            let function = function.ok_or_else(|| Error::Declaration(format!("{name} has no function")))?;
            let library = Library { name, version: 1, functions: loaded.functions, pool };
            Stream::new(Arc::new(library), function, MapOptions { lanes, depth, ordered })
        };
        let stream = py.detach(begin).map_err(|error| ending.raise(&error))?;
        let columns = Mutex::new(stream.returns().map(|returns| returns.to_string()));
        let group = CallGroup::with_stop(move || stop.is_due());
        let running = Mutex::new(Some(Running { stream, group, tables: Tables::default() }));
        Ok(Self { running, columns, ending, process: std::process::id(), most: RING / 4 })
    }

    /// The next results as a StructArray; None if there are no more. `pull` gives the next batch of the input: its types
    /// and a StructArray, or None.
    fn next<'py>(&self, pull: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = pull.py();
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(Error::Forked.to_string()));
        }
        let mut guard = match self.running.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err("another thread reads this stream"));
            }
        };
        let Some(running) = &mut *guard else {
            return if self.ending.closed.load(Relaxed) { Err(self.ending.cancelled()) } else { Ok(None) };
        };
        let next = self.step(pull, running);
        if let Some(returns) = running.stream.returns() {
            let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
            columns.get_or_insert_with(|| returns.to_string());
        }
        if !matches!(next, Ok(Some(_))) {
            // The workers are not needed any more.
            let over = guard.take();
            py.detach(|| drop(over));
        }
        next
    }

    /// The columns of the results, such as `STRUCT(a BIGINT)`, if they are known.
    fn columns(&self) -> Option<String> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the stream and its workers; if a thread waits for results, when that has seen it.
    fn close(&self, py: Python<'_>) {
        self.ending.closed.store(true, Relaxed);
        if let (true, Ok(mut running)) = (self.process == std::process::id(), self.running.try_lock()) {
            let over = running.take();
            py.detach(|| drop(over));
        }
    }
}

impl Map {
    fn step<'py>(
        &self,
        pull: &Bound<'py, PyAny>,
        running: &mut Running,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, Running { stream, group, tables }) = (pull.py(), running);
        loop {
            if self.ending.is_due() {
                return Err(self.ending.cancelled());
            }
            let caller = Caller::new(group, 1);
            let returns = stream.returns().map(|returns| map_types(returns));
            let raise = |error: Error| self.ending.raise(&error);
            match py.detach(|| stream.next(caller)).map_err(raise)? {
                MapStep::Done => return Ok(None),
                MapStep::Output(column, first) => {
                    let types = returns.unwrap_or_else(|| map_types(column.data_type));
                    let array = tables.get(py, &types)?.to_pyarrow(py, &column)?;
                    return if first == 0 {
                        Ok(Some(array))
                    } else {
                        array.call_method1("slice", (first,)).map(Some)
                    };
                }
                MapStep::Wants => {}
            }
            let batch: Option<(String, Bound<'py, PyAny>)> = pull.call0()?.extract()?;
            match batch {
                None => stream.end(),
                Some((types, array)) => {
                    let table = tables.get(py, &types)?;
                    let content = Box::new(Typed::new(&array, &table)?);
                    stream.put(MapInput { rows: array.len()?, content });
                }
            }
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process != std::process::id() {
            // Its locks may be held by threads that a fork has not, and its workers are the parent's.
            std::mem::forget(running);
            return;
        }
        // The workers end with it, and their ends are waited for.
        Python::attach(|py| py.detach(|| drop(running)));
    }
}
