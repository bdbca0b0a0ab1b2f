//! Python's dates and times. The limited API does not have their layouts.
//!
//! A date is known by its ordinal. Times and datetimes are made from the bytes that pickle keeps of
//! them, and give these bytes (`datetime.datetime.__reduce__`). Every version of Python has the
//! same bytes, because it reads the pickles of the others. Reading the fields one by one takes
//! three times as long.

use crate::values::vectorcall;
use pyo3::exceptions::PyTypeError;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDate, PyDateTime, PyDelta, PyTime, PyTuple, PyTzInfo};
use pyo3::{IntoPyObjectExt, PyTypeInfo, ffi, prelude::*};
use std::ptr;

/// Year, month, day.
pub(crate) type Day = (i32, u8, u8);
/// Hour, minute, second, microsecond.
pub(crate) type Clock = (u8, u8, u8, u32);

/// The ordinal of 1970-01-01; 0001-01-01 has 1.
const EPOCH: i64 = 719_163;
const SECOND: i64 = 1_000_000;

/// The methods that are called for values.
struct Methods {
    from_ordinal: Py<PyAny>,
    ordinal: Py<PyAny>,
    time_state: Py<PyAny>,
    datetime_state: Py<PyAny>,
    delta_state: Py<PyAny>,
}

static METHODS: PyOnceLock<Methods> = PyOnceLock::new();

impl Methods {
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        METHODS.get_or_try_init(py, || {
            let date = PyDate::type_object(py);
            Ok(Self {
                from_ordinal: date.getattr("fromordinal")?.unbind(),
                ordinal: date.getattr("toordinal")?.unbind(),
                time_state: PyTime::type_object(py).getattr("__reduce__")?.unbind(),
                datetime_state: PyDateTime::type_object(py).getattr("__reduce__")?.unbind(),
                delta_state: PyDelta::type_object(py).getattr("__reduce__")?.unbind(),
            })
        })
    }
}

/// Finds the classes and their methods, before a library can replace them.
pub(crate) fn find(py: Python<'_>) -> PyResult<()> {
    Methods::get(py).map(drop)
}

/// Whether the class of a value is exactly one of these.
pub(crate) fn is_one(value: &Bound<'_, PyAny>) -> bool {
    value.is_exact_instance_of::<PyDateTime>()
        || value.is_exact_instance_of::<PyDate>()
        || value.is_exact_instance_of::<PyTime>()
        || value.is_exact_instance_of::<PyDelta>()
}

/// A `datetime.date` of days since 1970-01-01, in the years 1 to 9999.
pub(crate) fn date(py: Python<'_>, days: i64) -> PyResult<Bound<'_, PyAny>> {
    call(Methods::get(py)?.from_ordinal.bind(py), &(days + EPOCH).into_bound_py_any(py)?)
}

/// The days since 1970-01-01 of a `datetime.date`.
pub(crate) fn days(date: &Bound<'_, PyDate>) -> PyResult<i64> {
    let ordinal: i64 = call(Methods::get(date.py())?.ordinal.bind(date.py()), date)?.extract()?;
    Ok(ordinal - EPOCH)
}

/// A `datetime.time`.
pub(crate) fn time<'py>(
    py: Python<'py>,
    clock: Clock,
    zone: Option<&Bound<'py, PyTzInfo>>,
) -> PyResult<Bound<'py, PyAny>> {
    from_state::<PyTime>(py, &clock_state(clock), zone)
}

/// A `datetime.datetime`. The day must exist, in the years 1 to 9999.
pub(crate) fn datetime<'py>(
    py: Python<'py>,
    (year, month, day): Day,
    clock: Clock,
    zone: Option<&Bound<'py, PyTzInfo>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut state = [0; 10];
    state[..2].copy_from_slice(&(year as u16).to_be_bytes());
    state[2..4].copy_from_slice(&[month, day]);
    state[4..].copy_from_slice(&clock_state(clock));
    from_state::<PyDateTime>(py, &state, zone)
}

/// The microseconds since midnight of a `datetime.time`, and whether it has a zone.
pub(crate) fn time_parts(time: &Bound<'_, PyTime>) -> PyResult<(i64, bool)> {
    let (state, zoned) = state::<6>(time, &Methods::get(time.py())?.time_state)?;
    Ok((micros(state), zoned))
}

/// The day, the microseconds since midnight, and whether there is a zone, of a `datetime.datetime`.
pub(crate) fn datetime_parts(datetime: &Bound<'_, PyDateTime>) -> PyResult<(Day, i64, bool)> {
    let (state, zoned) = state::<10>(datetime, &Methods::get(datetime.py())?.datetime_state)?;
    let [high, low, month, day, clock @ ..] = state;
    Ok(((u16::from_be_bytes([high, low]).into(), month, day), micros(clock), zoned))
}

/// (days, seconds, microseconds) of a timedelta.
pub(crate) fn delta(value: &Bound<'_, PyDelta>) -> PyResult<(i32, i32, i32)> {
    pickled(value, &Methods::get(value.py())?.delta_state)?.extract()
}

fn clock_state((hour, minute, second, micro): Clock) -> [u8; 6] {
    let [_, high, middle, low] = micro.to_be_bytes();
    [hour, minute, second, high, middle, low]
}

fn micros([hour, minute, second, high, middle, low]: [u8; 6]) -> i64 {
    let seconds = (i64::from(hour) * 60 + i64::from(minute)) * 60 + i64::from(second);
    seconds * SECOND + i64::from(u32::from_be_bytes([0, high, middle, low]))
}

fn from_state<'py, T: PyTypeInfo>(
    py: Python<'py>,
    state: &[u8],
    zone: Option<&Bound<'py, PyTzInfo>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (class, state) = (T::type_object(py), PyBytes::new(py, state));
    match zone {
        Some(zone) => class.call1((state, zone)),
        None => call(&class, &state),
    }
}

/// The arguments that pickle keeps of a value.
fn pickled<'py>(value: &Bound<'py, PyAny>, method: &Py<PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    Ok(call(method.bind(value.py()), value)?.cast::<PyTuple>()?.get_item(1)?.cast_into()?)
}

/// The bytes that pickle keeps, and whether there is a zone.
fn state<const LENGTH: usize>(
    value: &Bound<'_, PyAny>,
    method: &Py<PyAny>,
) -> PyResult<([u8; LENGTH], bool)> {
    let parts = pickled(value, method)?;
    let bytes = parts.get_borrowed_item(0)?;
    let bytes = bytes.cast::<PyBytes>()?;
    let bytes = bytes.as_bytes().try_into().map_err(|_| PyTypeError::new_err("a state of another length"))?;
    Ok((bytes, parts.len() > 1))
}

/// Calls an object with one argument.
pub(crate) fn call<'py>(
    callable: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut arguments = [ptr::null_mut(), argument.as_ptr()];
    // SAFETY: the objects live; the place before the argument is free; the result is a new
    // reference, or null with an exception set.
    unsafe {
        let result = vectorcall::call(
            callable.as_ptr(),
            arguments.as_mut_ptr().add(1),
            1 | vectorcall::FREE_PLACE,
            ptr::null_mut::<ffi::PyObject>(),
        );
        Bound::from_owned_ptr_or_err(callable.py(), result)
    }
}
