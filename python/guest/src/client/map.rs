//! The engine's end of [`crosslane.map`](crosslane::call::Map), in the program that reads the stream.

use crate::stream::{Tables, Typed};
use crosslane::call::{CallGroup, Caller, Map as Stream, MapInput, MapOptions, MapStep, map_types};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{DataType, Error, Function, Kind, Library, Settings, TypeNames};
use crosslane_process::{Origin, Source, Zygote, ZygoteOptions, compiled_ruby};
use crosslane_remote::AnyZygote;
use pyo3::exceptions::{
    PyConnectionError, PyKeyboardInterrupt, PyLookupError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Bytes of each ring: a few batches of 65,536 rows.
const RING: usize = 4 << 20;

/// Why a stream, or a call of a client, is to end.
pub(crate) struct Ending {
    /// It was closed, maybe by another thread.
    closed: Arc<AtomicBool>,
    /// The terminal's Ctrl-C reached the workers.
    interrupted: AtomicBool,
    /// The client whose it is was closed.
    client: Option<Arc<AtomicBool>>,
    /// What a signal's handler has raised.
    raised: Mutex<Option<PyErr>>,
}

impl Ending {
    pub(crate) fn new(client: Option<Arc<AtomicBool>>, closed: Arc<AtomicBool>) -> Self {
        Self { closed, interrupted: AtomicBool::new(false), client, raised: Mutex::default() }
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Whether it was closed, or its client was.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed) || self.client_is_closed()
    }

    fn client_is_closed(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.load(Relaxed))
    }

    /// Asked while a thread waits, without the interpreter's lock.
    pub(crate) fn is_due(&self) -> bool {
        if self.is_closed() || self.interrupted.load(Relaxed) {
            return true;
        }
        // An interpreter that ends waits for nothing.
        match Python::try_attach(|py| py.check_signals()) {
            None => true,
            Some(Ok(())) => false,
            Some(Err(error)) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                true
            }
        }
    }

    /// What Python raises for what has to end.
    pub(crate) fn cancelled(&self) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.unwrap_or_else(|| match self.closed.load(Relaxed) {
            _ if self.client_is_closed() => PyValueError::new_err("the client was closed"),
            true => PyValueError::new_err("the stream was closed"),
            false => PyKeyboardInterrupt::new_err(()),
        })
    }

    /// What Python raises for an error.
    pub(crate) fn raise(&self, error: &Error) -> PyErr {
        match error {
            Error::Cancelled { .. } => self.cancelled(),
            Error::TimedOut { .. } => PyTimeoutError::new_err(error.to_string()),
            // What a client hears of its server; other libraries are no servers.
            Error::Load { failure, .. } if self.client.is_some() => {
                PyConnectionError::new_err(failure.message.clone())
            }
            Error::Boot(why) if self.client.is_some() => PyConnectionError::new_err(why.clone()),
            _ => PyRuntimeError::new_err(error.to_string()),
        }
    }
}

/// What a stream's function comes from.
#[derive(FromPyObject)]
enum Given {
    /// A file with this absolute path: the stream function with this name, or the only one.
    File(PathBuf, Option<String>),
    /// The function, pickled.
    Pickles(Vec<u8>),
}

fn none(library: &str) -> Error {
    Error::Declaration(format!("{library} has no stream function"))
}

/// The stream function of a file with this name, or its only one.
fn chosen(file: &str, functions: &[Arc<Function>], name: Option<&str>) -> Result<Arc<Function>, Error> {
    let streams = || functions.iter().filter(|function| function.spec.kind == Kind::Stream);
    let names = || streams().map(|function| function.name()).collect::<Vec<_>>().join(", ");
    let Some(name) = name else {
        return match streams().collect::<Vec<_>>()[..] {
            [] => Err(none(file)),
            [only] => Ok(Arc::clone(only)),
            _ => Err(Error::Declaration(format!(
                "{file} has the stream functions {}; name one of them behind a colon",
                names()
            ))),
        };
    };
    if let Some(found) = streams().find(|function| function.name().eq_ignore_ascii_case(name)) {
        return Ok(Arc::clone(found));
    }
    Err(Error::Declaration(match functions.iter().find(|it| it.name().eq_ignore_ascii_case(name)) {
        Some(other) => {
            format!("{file}: {} is no stream function: its parameter is no TABLE(...)", other.signature)
        }
        None if streams().next().is_none() => format!("{file} has no stream function {name}, and no other"),
        None => format!("{file} has no stream function {name}; it has {}", names()),
    }))
}

/// A stream under way, and what its batches are in Python.
struct Running {
    stream: Stream<AnyZygote>,
    group: CallGroup,
    tables: Tables,
}

/// A stream through a function, over workers of its own.
#[pyclass(frozen)]
pub(crate) struct Map {
    running: Mutex<Option<Running>>,
    /// The columns of the input, such as `STRUCT(a BIGINT)`, if the function declares them.
    #[pyo3(get)]
    takes: Option<String>,
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
    /// Starts the workers by a command, for the first function of what it is given.
    ///
    /// Raises LookupError if there is none.
    #[new]
    fn new(
        py: Python<'_>,
        command: Vec<String>,
        name: String,
        given: Given,
        lanes: usize,
        depth: usize,
        ordered: bool,
    ) -> PyResult<Self> {
        let ending = Arc::new(Ending::new(None, Arc::default()));
        let settings = Settings::default();
        let interrupted = Arc::clone(&ending);
        let (source, wanted) = match given {
            Given::File(path, wanted) => (Source::File { path }, Some(wanted)),
            Given::Pickles(pickles) => {
                (Source::Pickle { name: name.clone(), pickles: vec![pickles], by_name: true }, None)
            }
        };
        let is_ruby =
            matches!(&source, Source::File { path } if path.extension().is_some_and(|it| it == "rb"));
        let (command, environment) = if is_ruby { compiled_ruby(command) } else { (command, &[][..]) };
        let advice = "does its language run here (`crosslane doctor` tells)?";
        let options = ZygoteOptions {
            origin: Origin::Process { command, environment, advice },
            source,
            types: TypeNames::default(),
            load_timeout: settings.load_timeout,
            stuck: settings.stuck(),
            ring_size: RING,
            largest_batch: settings.largest_batch,
            spin: settings.spin,
            on_interrupt: Arc::new(move |_| interrupted.interrupted.store(true, Relaxed)),
        };
        let warm = PoolOptions { warm: lanes, idle_timeout: settings.idle_timeout };
        let begin = || -> Result<Stream<AnyZygote>, Error> {
            let (pool, functions) = Pool::start(warm, move |stop| {
                let (zygote, loaded) = Zygote::start(options, stop)?;
                Ok((AnyZygote::Process(Box::new(zygote)), loaded.functions))
            })?;
            let function = match &wanted {
                Some(wanted) => chosen(&name, &functions, wanted.as_deref())?,
                None => functions.first().cloned().ok_or_else(|| none(&name))?,
            };
            let library = Library { name, version: 1, functions, pool };
            Stream::new(Arc::new(library), function, MapOptions { lanes, depth, ordered })
        };
        let stream = py.detach(begin).map_err(|error| match error {
            Error::Declaration(what) => PyLookupError::new_err(what),
            error => ending.raise(&error),
        })?;
        let stop = Arc::clone(&ending);
        let group = CallGroup::with_stop(move || stop.is_due());
        Ok(Self::over(stream, group, ending, RING))
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
            return if self.ending.is_closed() { Err(self.ending.cancelled()) } else { Ok(None) };
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

    /// Whether the stream has ended, and its workers with it.
    #[getter]
    fn is_over(&self) -> bool {
        self.running.try_lock().is_ok_and(|running| running.is_none())
    }

    /// The columns of the results, such as `STRUCT(a BIGINT)`, if they are known.
    fn columns(&self) -> Option<String> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the stream and its workers; if a thread waits for results, when that has seen it.
    fn close(&self, py: Python<'_>) {
        self.ending.close();
        if let (true, Ok(mut running)) = (self.process == std::process::id(), self.running.try_lock()) {
            let over = running.take();
            py.detach(|| drop(over));
        }
    }
}

impl Map {
    /// A stream over rings of so many bytes.
    pub(crate) fn over(
        stream: Stream<AnyZygote>,
        group: CallGroup,
        ending: Arc<Ending>,
        ring: usize,
    ) -> Self {
        let takes = stream.takes().map(DataType::to_string);
        let columns = Mutex::new(stream.returns().map(|returns| returns.to_string()));
        let running = Mutex::new(Some(Running { stream, group, tables: Tables::default() }));
        Self { running, takes, columns, ending, process: std::process::id(), most: ring / 4 }
    }

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
