//! The engine's end of [`crosslane.map`](crosslane::call::Map), in the program that reads the
//! stream.

use super::reading::Reading;
use super::stop_signal::StopSignal;
use crate::stream::{BatchTypes, TypedBatch};
use crosslane::call::{CallGroup, Caller, Map as Stream, MapInput, MapOptions, MapStep, map_types};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{DataType, Error, Function, Kind, Library, Settings, TypeNames};
use crosslane_process::{Origin, Program, Source, Zygote, ZygoteOptions, guests, prepared_ruby};
use crosslane_remote::AnyZygote;
use pyo3::exceptions::{PyLookupError, PyRuntimeError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of each ring: a few batches of 65,536 rows.
const RING: usize = 4 << 20;

/// The source of the function of a stream.
#[derive(FromPyObject)]
enum FunctionSource {
    /// A file with this absolute path: the stream function with this name, or the only one.
    File(PathBuf, Option<String>),
    /// The function, pickled.
    Pickles(Vec<u8>),
}

fn no_stream_function(library: &str) -> Error {
    Error::Declaration(format!("{library} has no stream function"))
}

/// The stream function of a file with this name, or its only stream function.
fn choose(file: &str, functions: &[Arc<Function>], name: Option<&str>) -> Result<Arc<Function>, Error> {
    let streams = || functions.iter().filter(|function| function.spec.kind == Kind::Stream);
    let names = || streams().map(|function| function.name()).collect::<Vec<_>>().join(", ");
    let Some(name) = name else {
        return match streams().collect::<Vec<_>>()[..] {
            [] => Err(no_stream_function(file)),
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

/// A running stream, and the types of its batches.
struct Running {
    stream: Stream<AnyZygote>,
    group: CallGroup,
    tables: BatchTypes,
}

/// A stream through a function, over workers of its own.
#[pyclass(frozen)]
pub(crate) struct Map {
    reading: Reading<Running>,
    /// The columns of the input, such as `STRUCT(a BIGINT)`, if the function declares them.
    #[pyo3(get)]
    takes: Option<String>,
    /// The columns of the results, if they are known.
    columns: Mutex<Option<String>>,
    /// The most bytes of a batch of the input.
    #[pyo3(get)]
    most: usize,
}

#[pymethods]
impl Map {
    /// Starts the workers by a command, for one function of the source. The settings are names and values.
    ///
    /// Raises LookupError if there is none.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python passes them one by one")]
    fn new(
        py: Python<'_>,
        command: Vec<String>,
        name: String,
        function: FunctionSource,
        lanes: usize,
        depth: usize,
        ordered: bool,
        settings: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let stop = Arc::new(StopSignal::new(None, Arc::default()));
        let given = settings;
        let mut settings = Settings::default();
        given
            .iter()
            .try_for_each(|(name, value)| settings.set(name, value))
            .map_err(|error| stop.raise(&error))?;
        let interrupted = Arc::clone(&stop);
        let (source, wanted) = match function {
            FunctionSource::File(path, wanted) => (Source::File { path }, Some(wanted)),
            FunctionSource::Pickles(pickles) => {
                (Source::Pickle { name: name.clone(), pickles: vec![pickles], by_name: true }, None)
            }
        };
        let settings = guests::settings_of(&source, settings).map_err(|error| stop.raise(&error))?;
        let (command, environment) = match &source {
            Source::File { path } if path.extension().is_some_and(|it| it == "rb") => {
                prepared_ruby(command, path)
            }
            _ => (command, guests::variables(&source, &settings)),
        };
        let advice = "does its language run here (`crosslane doctor` tells)?";
        let options = ZygoteOptions {
            origin: Origin::Process(Program { command, environment, advice }),
            source,
            types: TypeNames::default(),
            load_timeout: settings.load_timeout,
            stuck: settings.stuck(),
            sandbox: settings.sandbox(),
            ring_size: RING,
            largest_batch: settings.largest_batch,
            spin: settings.spin,
            on_interrupt: Arc::new(move |_| interrupted.interrupt()),
        };
        let warm = PoolOptions { warm: lanes, idle_timeout: settings.idle_timeout };
        let begin = || -> Result<Stream<AnyZygote>, Error> {
            let (pool, functions) = Pool::start(warm, move |stop| {
                let (zygote, loaded) = Zygote::start(options, stop)?;
                Ok((AnyZygote::Process(Box::new(zygote)), loaded.functions))
            })?;
            let function = match &wanted {
                Some(wanted) => choose(&name, &functions, wanted.as_deref())?,
                None => functions.first().cloned().ok_or_else(|| no_stream_function(&name))?,
            };
            let library = Library { name, version: 1, functions, pool };
            Stream::new(Arc::new(library), function, MapOptions { lanes, depth, ordered })
        };
        let stream = py.detach(begin).map_err(|error| match error {
            Error::Declaration(what) => PyLookupError::new_err(what),
            error => stop.raise(&error),
        })?;
        let due = Arc::clone(&stop);
        let group = CallGroup::with_stop(move || due.is_due());
        Ok(Self::over(stream, group, stop, RING))
    }

    /// The next results as a StructArray; None if there are no more. `pull` gives the next batch of
    /// the input: its types and a StructArray, or None.
    fn next<'py>(&self, pull: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = pull.py();
        if self.reading.process != std::process::id() {
            return Err(PyRuntimeError::new_err(Error::Forked.to_string()));
        }
        self.reading.next(py, |running, stop| {
            let next = running.step(pull, stop);
            if let Some(returns) = running.stream.returns() {
                let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
                columns.get_or_insert_with(|| returns.to_string());
            }
            next
        })
    }

    /// Whether the stream has ended, and its workers with it.
    #[getter]
    fn is_over(&self) -> bool {
        self.reading.is_over()
    }

    /// The columns of the results, such as `STRUCT(a BIGINT)`, if they are known.
    fn columns(&self) -> Option<String> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the stream and its workers. If a thread waits for results, they end when that thread
    /// has seen this.
    fn close(&self, py: Python<'_>) {
        self.reading.close(py);
    }
}

impl Map {
    /// A stream over rings of so many bytes.
    pub(crate) fn over(
        stream: Stream<AnyZygote>,
        group: CallGroup,
        stop: Arc<StopSignal>,
        ring: usize,
    ) -> Self {
        let takes = stream.takes().map(DataType::to_string);
        let columns = Mutex::new(stream.returns().map(|returns| returns.to_string()));
        let running = Running { stream, group, tables: BatchTypes::default() };
        Self { reading: Reading::new(running, stop, std::process::id()), takes, columns, most: ring / 4 }
    }
}

impl Running {
    /// Takes batches of the input, until there are results. None if there are no more.
    fn step<'py>(
        &mut self,
        pull: &Bound<'py, PyAny>,
        stop: &StopSignal,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, Self { stream, group, tables }) = (pull.py(), self);
        loop {
            if stop.is_due() {
                return Err(stop.cancelled());
            }
            let caller = Caller::new(group, 1);
            let returns = stream.returns().map(|returns| map_types(returns));
            let raise = |error: Error| stop.raise(&error);
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
                    let content = Box::new(TypedBatch::new(&array, &table)?);
                    stream.put(MapInput { rows: array.len()?, content });
                }
            }
        }
    }
}
