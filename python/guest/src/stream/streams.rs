//! Batches of a stream, as a lane answers them: a batch of Arrow in, any number of batches out, for each of them or for all.
//!
//! A function that sees all batches gets an iterator of them, which waits for the next in the lane. It may give the iterator to threads
//! of its own, while others of the function's results are sent. So the lane is [`Lent`] to all of them for the exchange: each uses it under a
//! lock, which nobody waits for while holding the interpreter's.

use crate::arrow::{self, Direction, Results};
use crate::serve::{describe, ends_lane, wait_for_room};
use crosslane::batch::{Body, Encode, Plan};
use crosslane::call::{map_types, table_of};
use crosslane::{DataType, Entry, Failure, Instances};
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps, Next};
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::{Alarm, MappedRing};
use pyo3::exceptions::{PyGeneratorExit, PyMemoryError, PyOSError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyList;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The pyarrow type of the batches of a table, whose columns a text such as `STRUCT(a BIGINT, b VARCHAR)` says: of those that are
/// read from a lane, or of those that are sent.
///
/// Raises ValueError if it is no SQL type.
#[pyfunction]
#[pyo3(signature = (columns, sent=false))]
pub(crate) fn table_type<'py>(py: Python<'py>, columns: &str, sent: bool) -> PyResult<Bound<'py, PyAny>> {
    let table: DataType = columns.parse().map_err(crate::value_error)?;
    arrow::pyarrow_type(py, &table, if sent { Direction::Result } else { Direction::Argument })
}

/// How long who reads the batches of an input waits for who sends results.
const GLANCE: Duration = Duration::from_micros(50);

/// A table whose batches travel: its columns, the same as text, and the pyarrow type of a batch.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) columns: DataType,
    pub(crate) text: Arc<str>,
    arrow: Py<PyAny>,
}

impl Table {
    pub(crate) fn new(py: Python<'_>, columns: DataType) -> PyResult<Self> {
        let text = map_types(&columns).into();
        let arrow = arrow::pyarrow_type(py, &columns, Direction::Argument)?.unbind();
        Ok(Self { columns, text, arrow })
    }

    pub(crate) fn to_pyarrow<'py>(
        &self,
        py: Python<'py>,
        column: &crosslane::batch::Column<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        arrow::to_pyarrow(column, self.arrow.bind(py))
    }
}

/// The tables that were seen, by their texts.
#[derive(Default)]
pub(crate) struct Tables(Instances<Box<str>, Arc<Table>>);

impl Tables {
    /// That of a text such as `(STRUCT(a BIGINT))`.
    pub(crate) fn get(&mut self, py: Python<'_>, types: &str) -> PyResult<Arc<Table>> {
        let table = self.0.get_or_make(types, || {
            let columns = table_of(types).ok_or_else(|| {
                PyOSError::new_err(format!("a batch of the types {types}, which are no table"))
            })?;
            Table::new(py, columns).map(Arc::new)
        })?;
        Ok(Arc::clone(table))
    }
}

/// A batch with its types, on its way.
pub(crate) struct Typed {
    results: Results,
    types: Arc<str>,
}

impl Typed {
    /// A pyarrow StructArray of the table.
    pub(crate) fn new(array: &Bound<'_, PyAny>, table: &Table) -> PyResult<Self> {
        Ok(Self { results: Results::new(array, &table.columns)?, types: Arc::clone(&table.text) })
    }
}

impl Encode for Typed {
    fn plan(&self, plan: &mut Plan) {
        plan.types(&self.types);
        self.results.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.results.write(body);
    }
}

/// Prepares what a stream function needs before its first batch. Gives the call back, unless that failed, which the engine is
/// told then.
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
            lane.fail_after(call, &failure, None, |lane, size| wait_for_room(py, lane, size))?;
            Ok(None)
        }
    }
}

/// The stream functions of a lane.
#[derive(Default)]
pub(crate) struct Streams {
    tables: Tables,
}

/// How the answer to a batch ended.
enum Ended {
    /// With its last batch, which is sent.
    Sent,
    /// All was sent, but that it was the last; or nobody wants more.
    Over,
}

impl Streams {
    /// Answers a batch of the input; if it opens an exchange for all of them, those.
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
        let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
        match outcome {
            Ok(Ended::Sent) => Ok(()),
            Ok(Ended::Over) => lane.succeed_after(call.with_rows(0), &(), Mishaps::default(), wait),
            Err(error) if ends_lane(py, &error) => Err(error),
            Err(error) => lane.fail_after(call, &describe(py, error)?, None, wait),
        }
    }

    /// Calls a function with all batches of the input.
    fn iterate(&mut self, lane: &mut GuestLane, call: Call, function: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let lent = Lent::new(lane, call);
        let outcome = self.iterated(&lent, call, function);
        // What comes of a function whose results nobody wants is of no interest.
        if lent.is_cancelled(function.py()) { Ok(Ended::Over) } else { outcome }
    }

    fn iterated(&mut self, lent: &Lent<'_>, call: Call, function: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let py = function.py();
        let takes: String = function.getattr(intern!(py, "takes"))?.extract()?;
        let table = self.tables.get(py, &takes)?;
        let batches = Bound::new(py, Batches { lane: Arc::clone(&lent.shared), table })?;
        let most = lent.shared.lock(py).lane().map_or(usize::MAX, |lane| lane.most());
        let answers = function.call_method1(intern!(py, "iterate"), (batches, most / 2))?;
        for answer in answers.try_iter()? {
            let (rows, batch) = self.typed(&answer?)?;
            if !lent.emit(py, &call, rows, &batch)? {
                answers.call_method0(intern!(py, "close"))?;
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
            // All is there: the last batch ends the exchange.
            let count = all.len();
            for (at, answer) in all.iter().enumerate() {
                let (rows, batch) = self.typed(&answer)?;
                if at + 1 == count {
                    let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
                    lane.succeed_after(call.with_rows(rows), &batch, Mishaps::default(), wait)?;
                    return Ok(Ended::Sent);
                }
                if !emit(py, lane, &call, rows, &batch)? {
                    break;
                }
            }
            return Ok(Ended::Over);
        }
        for answer in answers.try_iter()? {
            let (rows, batch) = self.typed(&answer?)?;
            if !emit(py, lane, &call, rows, &batch)? {
                answers.call_method0(intern!(py, "close"))?;
                break;
            }
        }
        Ok(Ended::Over)
    }

    /// What `answers` gives for each batch: its types, and a StructArray.
    fn typed(&mut self, answer: &Bound<'_, PyAny>) -> PyResult<(usize, Typed)> {
        let (types, array): (String, Bound<'_, PyAny>) =
            answer.extract().map_err(|_| PyTypeError::new_err("a batch is its types and an array"))?;
        let table = self.tables.get(answer.py(), &types)?;
        Ok((array.len()?, Typed::new(&array, &table)?))
    }
}

/// A lane that several threads of Python's use for one exchange.
struct Lent<'a> {
    shared: Arc<Shared>,
    lane: PhantomData<&'a mut GuestLane>,
}

/// The lane, as long as it is lent.
struct Shared {
    state: Mutex<State>,
    /// Whether results are to be sent: who waits for a batch lets go of the lane then, which the alarm tells.
    sends: AtomicBool,
    alarm: Alarm<MappedRing>,
}

struct State {
    lane: Option<NonNull<GuestLane>>,
    /// The batch that was taken last.
    call: Call,
    /// Whether the engine wants no more.
    cancelled: bool,
}

// SAFETY: the pointer is used under the lock only, by one thread at a time, and a GuestLane may be used by any.
unsafe impl Send for State {}

/// That the pointer's target may be used by any thread.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<GuestLane>();
};

impl Shared {
    /// The lane for who sends: those who wait for batches let go of it.
    fn lock_to_send(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.sends.store(true, Relaxed);
        self.alarm.sound();
        let state = self.lock(py);
        self.sends.store(false, Relaxed);
        state
    }

    /// The lane for this thread, which waits for the others without the interpreter's lock.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lane(&mut self) -> Option<&mut GuestLane> {
        // SAFETY: it points to a lane that is borrowed mutably for as long as it is here ([`Lent`]), and who calls this holds the lock.
        self.lane.map(|mut lane| unsafe { lane.as_mut() })
    }
}

impl<'a> Lent<'a> {
    fn new(lane: &'a mut GuestLane, call: Call) -> Self {
        let alarm = lane.alarm();
        let state = Mutex::new(State { lane: Some(NonNull::from(lane)), call, cancelled: false });
        let shared = Arc::new(Shared { state, sends: AtomicBool::new(false), alarm });
        Self { shared, lane: PhantomData }
    }

    /// Sends a batch that is not the last. False if nobody wants it.
    fn emit(&self, py: Python<'_>, call: &Call, rows: usize, batch: &Typed) -> PyResult<bool> {
        let mut state = self.shared.lock_to_send(py);
        let Some(lane) = state.lane() else { return Ok(false) };
        let sent = emit(py, lane, call, rows, batch)?;
        state.cancelled |= !sent;
        Ok(sent)
    }

    fn is_cancelled(&self, py: Python<'_>) -> bool {
        self.shared.lock_to_send(py).cancelled
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        Python::attach(|py| self.shared.lock_to_send(py).lane = None);
    }
}

/// The batches of an input, as StructArrays. It waits for each.
#[pyclass(frozen)]
struct Batches {
    lane: Arc<Shared>,
    table: Arc<Table>,
}

#[pymethods]
impl Batches {
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
            let sends = || self.lane.sends.load(Relaxed);
            let Some(lane) = state.lane().filter(|_| !call.is_last()) else { return Ok(None) };
            match py.detach(|| lane.more(&call, sends))? {
                Next::Stopped => {
                    drop(state);
                    while sends() {
                        py.detach(|| thread::sleep(GLANCE));
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
                // It ends generators, and is none of the errors that functions expect.
                Err(PyGeneratorExit::new_err(()))
            }
            Next::Closed => {
                let ended = py.import("crosslane._errors")?.getattr("LaneEnded")?.call0()?;
                Err(PyErr::from_value(ended))
            }
        }
    }
}

/// Sends a batch that is not the last, without the interpreter's lock while there is no room for it. False if nobody wants it.
fn emit(py: Python<'_>, lane: &mut GuestLane, call: &Call, rows: usize, batch: &Typed) -> PyResult<bool> {
    match py.detach(|| lane.emit(call, rows, batch, || false))? {
        Emitted::Sent => Ok(true),
        Emitted::Cancelled | Emitted::Stopped => Ok(false),
        Emitted::Failed(failure) => Err(PyMemoryError::new_err(failure.message)),
    }
}
