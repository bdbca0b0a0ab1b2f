//! Converts columns to Ruby objects, and Ruby objects to columns.

use crate::values::fields::{Part, Shape};
use crate::values::vm::{Fault, Made, Vm, Written};
use crosslane::batch::Column;
use crosslane::{ColumnBuilder, DataType};
use crosslane_guest::Values;
use crosslane_gvl::{Unwind, protect};
use magnus::rb_sys::FromRawValue;
use magnus::{Error, RArray, TryConvert, Value};
use rb_sys::{Qnil, VALUE};
use std::ops::Range;
use std::sync::OnceLock;

/// Makes Ruby objects from a column.
pub(crate) type Reader = crosslane_guest::Reader<Vm>;
/// Makes a column from Ruby objects.
pub(crate) type Writer = crosslane_guest::Writer<Vm>;

/// A reader. With the GVL.
pub(crate) fn reader(data_type: &DataType) -> Result<Reader, Unwind> {
    // SAFETY: as the caller says; this makes and takes no object by the VM's methods.
    Reader::new(&unsafe { Vm::new() }, data_type)
}

/// A writer. With the GVL.
pub(crate) fn writer(data_type: &DataType) -> Result<Writer, Unwind> {
    // SAFETY: as above.
    Writer::new(&unsafe { Vm::new() }, data_type)
}

/// A writer of the wanted fields of a STRUCT, by their indexes. It writes a column of a STRUCT that
/// has only these fields. `narrow`: an Array may have only the wanted fields' values. With the GVL.
pub(crate) fn writer_of_wanted(
    data_type: &DataType,
    wanted: &[usize],
    narrow: bool,
) -> Result<Writer, Unwind> {
    let DataType::Struct(fields) = data_type else { return writer(data_type) };
    let parts = wanted.iter().filter_map(|place| Some(Part::new(*place, fields.get(*place)?)));
    let parts = parts.collect::<Result<_, _>>()?;
    let shape = Shape::Fields { class: OnceLock::new(), parts, narrow, bare: fields.len() == 1 };
    // SAFETY: as above.
    Writer::of_fields(&unsafe { Vm::new() }, data_type, wanted, shape)
}

/// Adds an object as a row. The object must be on the caller's stack. With the GVL.
pub(crate) fn write_row(writer: &Writer, object: VALUE, out: &mut ColumnBuilder) -> Written {
    out.reserve(1)?;
    let mut written = Ok(());
    // SAFETY: protected, with the GVL, and nothing in the closure needs to be dropped.
    protect(|| written = writer.write(&unsafe { Vm::new() }, &object, out)).map_err(Fault::Failed)?;
    written
}

/// Adds rows from an Array of columns. The Array must be on the caller's stack. With the GVL.
pub(crate) fn write_columns(
    writer: &Writer,
    columns: VALUE,
    count: usize,
    out: &mut ColumnBuilder,
) -> Written {
    let mut written = Ok(());
    // SAFETY: protected, with the GVL, and nothing in the closure needs to be dropped.
    protect(|| written = writer.write_columns(&unsafe { Vm::new() }, &columns, count, out))
        .map_err(Fault::Failed)?;
    written
}

/// Makes an Array. `make` is called protected, and its frames hold nothing that must be dropped. With
/// the GVL.
pub(crate) fn array(make: impl Fn(&Vm) -> Made) -> Result<RArray, Error> {
    let mut array = Qnil as VALUE;
    // SAFETY: protected, and nothing in the closure needs to be dropped.
    protect(|| unsafe { array = make(&Vm::new()).unwrap_or_else(|unwind| unwind.resume()) })?;
    // SAFETY: the Array lies on this stack.
    RArray::try_convert(unsafe { Value::from_raw(array) })
}

/// Makes Arrays of the rows of columns. With the GVL.
pub(crate) fn rows(readers: &[Reader], columns: &[Column<'_>], rows: Range<usize>) -> Result<RArray, Error> {
    array(|vm| {
        vm.list(rows.len(), |row| {
            vm.list(readers.len(), |at| readers[at].read(vm, &columns[at], rows.start + row))
        })
    })
}

/// The exception for a fault of an object. With the GVL.
pub(crate) fn exception(fault: Fault) -> Unwind {
    // SAFETY: as the caller says; this makes and takes no object by the VM's methods.
    fault.into_error(&unsafe { Vm::new() })
}
