//! Rows from the objects that a generator yields.

use crate::loops::ResultWriter;
use crate::values::layout::{self, Layout};
use crate::values::{FastPath, Hint, Vm, overflow};
use crosslane::{ColumnBuilder, Field};
use crosslane_guest::Values as _;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};
use std::cell::RefCell;

/// A wanted column.
struct Target<'py> {
    place: usize,
    name: Bound<'py, PyString>,
    fast_path: FastPath,
    writer: ResultWriter<'py>,
}

impl<'py> Target<'py> {
    fn new(vm: Vm<'py>, columns: &[Field], hints: &[Hint<'py>], place: usize) -> PyResult<Self> {
        let py = vm.py();
        let Field { name, data_type } = &columns[place];
        let writer = ResultWriter::new(py, data_type, hints[place].clone())?;
        Ok(Self { place, name: PyString::intern(py, name), fast_path: writer.fast_path(), writer })
    }
}

/// Writes yielded objects as rows.
pub(super) struct RowWriter<'a, 'py> {
    columns: &'a [Field],
    vm: Vm<'py>,
    layout: Option<Layout>,
    targets: Vec<Target<'py>>,
    /// Whether all columns are wanted.
    whole: bool,
    /// A type whose objects are known to be values of the only column.
    values: RefCell<Option<Bound<'py, PyType>>>,
}

impl<'a, 'py> RowWriter<'a, 'py> {
    /// A writer of the wanted columns, by their places.
    pub(super) fn new(
        py: Python<'py>,
        columns: &'a [Field],
        hints: &[Hint<'py>],
        wanted: &[usize],
    ) -> PyResult<Self> {
        let vm = Vm::new(py);
        let targets = wanted.iter().map(|place| Target::new(vm, columns, hints, *place));
        Ok(Self {
            columns,
            vm,
            layout: layout::known(),
            targets: targets.collect::<PyResult<_>>()?,
            whole: wanted.len() == columns.len(),
            values: RefCell::default(),
        })
    }

    /// Adds a row. After an error the columns may hold a part of it.
    #[inline]
    pub(super) fn write(&self, row: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        // SAFETY: a look at the object's type.
        if unsafe { ffi::PyTuple_Check(row.as_ptr()) } != 0 {
            // SAFETY: it is a tuple.
            self.tuple(unsafe { row.cast_unchecked::<PyTuple>() }, out)?;
        } else if !self.single_value(row, out)? {
            self.other_row(row, out)?;
        }
        out.nested().map_err(overflow)
    }

    /// Adds an object as the value of the only column, if its type is known for that. Returns
    /// whether it did.
    #[inline]
    fn single_value(&self, row: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<bool> {
        let ([_], [target], [child]) = (self.columns, &self.targets[..], &mut out.children[..]) else {
            return Ok(false);
        };
        // SAFETY: the object lives, and `Bound` says that the interpreter's lock is held.
        if unsafe { target.fast_path.add(self.layout, row.as_ptr(), child) } {
            return Ok(true);
        }
        let known = self.values.borrow().as_ref().is_some_and(|known| row.get_type().is(known));
        if known {
            self.other_value(target, row, child)?;
        }
        Ok(known)
    }

    #[inline]
    fn tuple(&self, row: &Bound<'py, PyTuple>, out: &mut ColumnBuilder) -> PyResult<()> {
        // SAFETY: it is a living tuple.
        let count = unsafe { ffi::PyTuple_Size(row.as_ptr()) } as usize;
        let all = count == self.columns.len();
        if !all && (self.whole || count != self.targets.len()) {
            return Err(self.wrong_length(row, count)?);
        }
        for (at, (target, child)) in self.targets.iter().zip(&mut out.children).enumerate() {
            let place = if all { target.place } else { at };
            // SAFETY: the tuple has this place; it keeps the object, and does not change.
            unsafe {
                let object = ffi::PyTuple_GetItem(row.as_ptr(), place as ffi::Py_ssize_t);
                if !target.fast_path.add(self.layout, object, child) {
                    self.other_value(target, &Bound::from_borrowed_ptr(row.py(), object), child)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a value of any kind.
    #[inline]
    fn any_value(
        &self,
        target: &Target<'py>,
        value: &Bound<'py, PyAny>,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        // SAFETY: the object lives, and `Bound` says that the interpreter's lock is held.
        let plain = unsafe { target.fast_path.add(self.layout, value.as_ptr(), out) };
        if plain { Ok(()) } else { self.other_value(target, value, out) }
    }

    /// Adds a value that the fast path does not take.
    #[cold]
    fn other_value(
        &self,
        target: &Target<'py>,
        value: &Bound<'py, PyAny>,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        target.writer.write(value, out).inspect_err(|error| {
            let note = format!("in column {}", target.name);
            // An error that takes no note is raised without the note.
            let _ = error.value(value.py()).call_method1(intern!(value.py(), "add_note"), (note,));
        })
    }

    #[cold]
    fn other_row(&self, row: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        let py = row.py();
        if let Some(error) = exception(row) {
            return Err(error);
        }
        if row.is_instance_of::<PyList>() {
            return self.tuple(&row.cast::<PyList>()?.to_tuple(), out);
        }
        if let Ok(row) = row.cast::<PyDict>() {
            for (target, child) in self.targets.iter().zip(&mut out.children) {
                let value = row.get_item(&target.name)?;
                let value = value.ok_or_else(|| {
                    let keys: Vec<_> = row.keys().iter().map(|key| key.to_string()).collect();
                    self.wrong_row(&format!("a row without {}; it has {}", target.name, keys.join(", ")))
                })?;
                self.any_value(target, &value, child)?;
            }
            return Ok(());
        }
        let fields = row.getattr_opt(intern!(py, "__dataclass_fields__"))?;
        if self.columns.len() == 1 && fields.is_none() {
            *self.values.borrow_mut() = Some(row.get_type());
            let mut columns = self.targets.iter().zip(&mut out.children);
            return columns.try_for_each(|(target, child)| self.other_value(target, row, child));
        }
        let text = row.is_instance_of::<PyString>() || row.is_instance_of::<PyBytes>();
        // SAFETY: a look at the object's type.
        if !text && fields.is_none() && unsafe { ffi::PySequence_Check(row.as_ptr()) } != 0 {
            // SAFETY: it gives a new reference, or null with an exception set.
            let tuple = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PySequence_Tuple(row.as_ptr()))? };
            return self.tuple(&tuple.cast_into::<PyTuple>()?, out);
        }
        for (target, child) in self.targets.iter().zip(&mut out.children) {
            let Some(value) = row.getattr_opt(&target.name)? else {
                let shown = self.vm.shown(row)?;
                let names = self.names();
                return Err(PyTypeError::new_err(format!(
                    "yielded {shown} where a row is due: a tuple, a dict or an object of {names}"
                )));
            };
            self.any_value(target, &value, child)?;
        }
        Ok(())
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.columns.iter().map(|field| field.name.as_str()).collect();
        names.join(", ")
    }

    fn wrong_row(&self, what: &str) -> PyErr {
        PyValueError::new_err(format!("yielded {what}, where the columns are {}", self.names()))
    }

    #[cold]
    fn wrong_length(&self, row: &Bound<'py, PyTuple>, count: usize) -> PyResult<PyErr> {
        let shown = self.vm.shown(row.as_any())?;
        Ok(self.wrong_row(&format!("{shown} of {count} value(s)")))
    }
}

/// The error that a generator yields instead of a row.
pub(super) fn exception(object: &Bound<'_, PyAny>) -> Option<PyErr> {
    object.is_instance_of::<PyException>().then(|| PyErr::from_value(object.clone()))
}
