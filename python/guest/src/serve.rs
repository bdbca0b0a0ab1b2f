//! The guest's loop: it takes a call from the lane, runs the function, and answers.

use crate::aggregate::Aggregate;
use crate::lane::{fail, refuse, succeed};
use crate::scalar::Function;
use crate::stream::Streams;
use crate::table::Table;
use crosslane::{ColumnBuilder, Entry, Instances};
use crosslane_process::guest::{Call, GuestLane, Next, RowCounts};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// Serves the calls of one lane until its engine closes it.
///
/// `memory` and `socket` are the descriptors that the engine sent. `functions` are the functions of
/// the library, in the order of their declaration. Raises OSError if the engine breaks the
/// protocol.
#[pyfunction]
pub(crate) fn serve(
    py: Python<'_>,
    memory: i32,
    socket: i32,
    functions: Vec<Bound<'_, PyAny>>,
    spin_microseconds: u64,
) -> PyResult<()> {
    // SAFETY: the caller received both descriptors for this lane, and gives them away here.
    let (memory, socket) = unsafe { (OwnedFd::from_raw_fd(memory), OwnedFd::from_raw_fd(socket)) };
    // SAFETY: an engine sent them for this lane, and they are opened only here.
    let mut lane = unsafe { GuestLane::open(memory, socket, Duration::from_micros(spin_microseconds)) }?;
    answer_all(py, &mut lane, functions)
}

/// Answers the calls of a lane until its engine closes it.
pub(crate) fn answer_all(
    py: Python<'_>,
    lane: &mut GuestLane,
    functions: Vec<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let library = PyList::new(py, &functions)?;
    let mut aggregates = HashMap::new();
    let mut streams = Streams::default();
    let mut prepared: Vec<Prepared> = functions.into_iter().map(Prepared::new).collect();
    loop {
        let call = match py.detach(|| lane.next_call_or(|| false))? {
            Next::Call(call) => call,
            Next::Cancelled => continue,
            Next::Closed | Next::Stopped => return Ok(()),
        };
        match call.entry() {
            Some(Entry::Call | Entry::Scan | Entry::Partitions | Entry::Map | Entry::Iterate) => {
                let index = call.header.function as usize;
                let count = prepared.len();
                let Some(prepared) = prepared.get_mut(index) else {
                    return Err(PyOSError::new_err(format!("a call of function {index} of {count}")));
                };
                answer(py, lane, call, prepared, &mut streams, &library)?;
            }
            Some(
                Entry::Update | Entry::Combine | Entry::Finish | Entry::Save | Entry::Load | Entry::Forget,
            ) => aggregate(lane, call, &library, &mut aggregates)?,
            Some(Entry::SetUp) => {
                let arguments = (&library, call.set_up_only());
                run_for_all(lane, call, intern!(py, "set_up"), arguments)?;
            }
            Some(Entry::TearDown) => run_for_all(lane, call, intern!(py, "tear_down"), (&library,))?,
            _ => refuse(py, lane, call, &call.refusal(), None)?,
        }
    }
}

/// Answers a call of a scalar function, a scan, or a batch of a stream.
fn answer<'py>(
    py: Python<'py>,
    lane: &mut GuestLane,
    call: Call,
    prepared: &mut Prepared<'py>,
    streams: &mut Streams,
    library: &Bound<'py, PyList>,
) -> PyResult<()> {
    match prepared.table() {
        Ok(Some(table)) => return table.answer(py, lane, call),
        Ok(None) => {}
        Err(error) => return fail(py, lane, call, error),
    }
    if matches!(call.entry(), Some(Entry::Map | Entry::Iterate)) {
        return streams.answer(lane, call, library);
    }
    if call.entry() != Some(Entry::Call) {
        return refuse(py, lane, call, &call.refusal(), None);
    }
    match prepared.get(lane.types(&call)?) {
        Ok((function, out)) => function.answer(py, lane, call, out),
        Err(error) => fail(py, lane, call, error),
    }
}

/// Answers an exchange of an aggregate.
fn aggregate<'py>(
    lane: &mut GuestLane,
    call: Call,
    functions: &Bound<'py, PyList>,
    aggregates: &mut HashMap<u32, Aggregate<'py>>,
) -> PyResult<()> {
    let (py, index) = (functions.py(), call.header.function);
    let known = match aggregates.entry(index) {
        Occupied(known) => Ok(known.into_mut()),
        Vacant(place) => functions
            .get_item(index as usize)
            .and_then(|declared| Aggregate::new(&declared))
            .map(|new| place.insert(new)),
    };
    match known {
        Ok(known) => known.answer(py, lane, call),
        Err(error) => fail(py, lane, call, error),
    }
}

/// Answers an exchange that is for functions of the library. `name` is the function of
/// `crosslane._worker.states` that does it.
fn run_for_all<'py>(
    lane: &mut GuestLane,
    call: Call,
    name: &Bound<'py, PyString>,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<()> {
    let py = name.py();
    match py.import("crosslane._worker.states")?.call_method1(name, arguments) {
        Ok(_) => succeed(py, lane, call.with_rows(0), &(), RowCounts::default()),
        Err(error) => fail(py, lane, call, error),
    }
}

/// A function, and the column of its results.
type Ready<'py> = (Function<'py>, ColumnBuilder);

/// A declared function, and what was prepared for its calls.
struct Prepared<'py> {
    declared: Bound<'py, PyAny>,
    only: Option<Ready<'py>>,
    /// The functions for the types of a call, if the function takes arguments of any type. The
    /// types are text.
    instances: Instances<Box<str>, Ready<'py>>,
    /// The runner of an `async` function, which stays open from call to call, whatever the types of
    /// the arguments are.
    runner: Option<Py<PyAny>>,
    /// The table function, if it is one. Unknown before its first use.
    table: Option<Option<Table<'py>>>,
}

impl<'py> Prepared<'py> {
    fn new(declared: Bound<'py, PyAny>) -> Self {
        Self { declared, only: None, instances: Instances::default(), runner: None, table: None }
    }

    /// The table function, if it is one.
    fn table(&mut self) -> PyResult<Option<&Table<'py>>> {
        let table = match &mut self.table {
            Some(known) => known,
            none => none.insert(Table::new(&self.declared)?),
        };
        Ok(table.as_ref())
    }

    /// The function for arguments of these types. None if the signature says the types.
    fn get(&mut self, types: Option<&str>) -> PyResult<(&Function<'py>, &mut ColumnBuilder)> {
        let Self { declared, only, instances, runner, .. } = self;
        let mut new = |concrete: &Bound<'py, PyAny>| -> PyResult<_> {
            let function = Function::new(concrete, runner)?;
            let out = function.results();
            Ok((function, out))
        };
        let (function, out) = match types {
            None => match only {
                Some(known) => known,
                none => none.insert(new(declared)?),
            },
            Some(types) => instances.get_or_make(types, || {
                new(&declared.call_method1(intern!(declared.py(), "for_types"), (types,))?)
            })?,
        };
        Ok((function, out))
    }
}
