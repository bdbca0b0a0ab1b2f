//! The rows of a table function, or the rows that a stream function makes of a batch.
//!
//! The block yields rows, and the engine takes them batch by batch ([`crosslane_guest::Rows`]).
//!
//! The block's `each` runs on the lane's thread, without fibers, until it has no more rows. If a
//! scan ends early (a LIMIT), it is cancelled. An exception then leaves the `each` and runs its
//! `ensure` clauses.
//!
//! An `each` may keep its block and call it after the scan. It may also pass the block to another
//! thread or fiber. So the block references a Ruby object ([`Taker`]), which has the rows and the
//! lane only during the scan. A thread that works on the rows takes them out of this object
//! meanwhile. Only the scan's own thread uses the lane, and this thread is in `each` while it does.

use crate::errors::io_error;
use crate::signature::specification;
use crate::values::shared::{self, Shared};
use crate::values::{Held, Reader, Vm, columns, intern};
use crosslane::batch::Column;
use crosslane::{Calling, DataType, Entry, Failure, Kind, OnError, Signature};
use crosslane_guest::{Argument, CallError, Language, Values};
use crosslane_gvl::{self as gvl, Unwind, protect};
use crosslane_process::guest::{Call, GuestLane};
use magnus::gc::Marker;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::typed_data::Obj;
use magnus::value::{Opaque, ReprValue};
use magnus::{DataTypeFunctions, Error, RArray, Ruby, TryConvert, TypedData, Value};
use rb_sys::{Qnil, Qtrue, VALUE};
use std::cell::Cell;
use std::ffi::{CStr, c_int};

type Rows = crosslane_guest::Rows<Vm>;

/// A prepared table function or stream function.
#[derive(Debug)]
pub(crate) struct Table {
    /// The declaration (`Crosslane::Table`, `Crosslane::Stream`, or `Crosslane::HostTable`).
    declared: Held,
    openings: Vec<Opening>,
    on_error: OnError,
    memory_limit: Option<u64>,
    /// Whether the block yields batches.
    vectorized: bool,
    /// Whether the function has a set-up before its first batch.
    set_up: bool,
}

/// The form of an exchange.
#[derive(Debug)]
struct Opening {
    entry: Entry,
    types: Vec<DataType>,
    asks: Asks,
    /// The method of the declaration that returns the object with the rows.
    method: &'static CStr,
}

/// The arguments that the declaration gets, made from the engine's batch.
#[derive(Debug)]
enum Asks {
    /// The values of the batch's only row.
    Values(Vec<Reader>),
    /// An Array of the batch's rows.
    Rows(Reader),
    /// A Hash of the batch's columns, by their names.
    Columns(Vec<(Shared, Reader)>),
}

/// The entries of tables and streams, and the methods that serve them.
const METHODS: [(Kind, Entry, &CStr); 3] = [
    (Kind::Table, Entry::Scan, c"scan"),
    (Kind::Table, Entry::Partitions, c"parts"),
    (Kind::Stream, Entry::Map, c"map"),
];

/// The object that the block of `each_row` references: `Crosslane::Native::Taker`.
#[derive(TypedData)]
#[magnus(class = "Crosslane::Native::Taker", free_immediately, mark)]
pub(crate) struct Taker {
    /// The scan's own thread. A fork has a thread with the same value.
    thread: Opaque<Value>,
    process: u32,
    /// Null after the scan.
    lane: Cell<*mut GuestLane>,
    /// `None` while a thread works on them.
    rows: Cell<Option<Box<Rows>>>,
    vectorized: bool,
}

// SAFETY: only used with the GVL; the lane only by the scan's own thread.
unsafe impl Send for Taker {}

impl DataTypeFunctions for Taker {
    fn mark(&self, marker: &Marker) {
        marker.mark(self.thread);
    }
}

impl Asks {
    fn new(vm: &Vm, entry: Entry, types: &[DataType], vectorized: bool) -> Result<Self, Error> {
        Ok(match types {
            [DataType::Struct(fields)] if entry == Entry::Map && vectorized => {
                let column = |field: &crosslane::Field| {
                    Ok((shared::symbol(&field.name)?, Reader::new(vm, &field.data_type)?))
                };
                Self::Columns(fields.iter().map(column).collect::<Result<_, Error>>()?)
            }
            [rows] if entry == Entry::Map => Self::Rows(Reader::new(vm, rows)?),
            types => {
                let readers = types.iter().map(|data_type| Reader::new(vm, data_type));
                Self::Values(readers.collect::<Result<_, _>>()?)
            }
        })
    }

    /// Adds the arguments to an Array.
    ///
    /// # Safety
    /// With the GVL, protected.
    unsafe fn push(&self, vm: &Vm, columns: &[Column<'_>], arguments: VALUE) -> Result<(), Unwind> {
        // SAFETY: as the caller says; the collector sees the values on this stack and in the
        // Array.
        let push = |value: VALUE| unsafe {
            rb_sys::rb_ary_push(arguments, value);
        };
        match self {
            Self::Values(readers) => {
                for (reader, column) in readers.iter().zip(columns) {
                    push(reader.read(vm, column, 0)?);
                }
            }
            Self::Rows(reader) => {
                let column = &columns[0];
                push(vm.list(column.rows, |row| reader.read(vm, column, row))?);
            }
            Self::Columns(readers) => {
                // SAFETY: as above.
                let hash = unsafe { rb_sys::rb_hash_new() };
                push(hash);
                for ((name, reader), column) in readers.iter().zip(&columns[0].children) {
                    let argument = Argument::new(reader, column, true);
                    let values = vm.list(column.rows, |row| argument.get(vm, row))?;
                    // SAFETY: as above.
                    unsafe { rb_sys::rb_hash_aset(hash, name.get(), values) };
                }
            }
        }
        Ok(())
    }
}

impl Opening {
    fn new(
        vm: &Vm,
        signature: &Signature,
        vectorized: bool,
        (kind, entry, method): (Kind, Entry, &'static CStr),
    ) -> Result<Self, Error> {
        let Some(carried) = kind.entry(entry, signature) else {
            return Err(crate::errors::argument_error(format!("{signature} is no {}", kind.name())));
        };
        let types: Vec<DataType> = carried.takes().cloned().collect();
        Ok(Self { entry, asks: Asks::new(vm, entry, &types, vectorized)?, types, method })
    }

    /// Calls the declaration's method with the arguments that the engine has sent.
    fn ask(&self, vm: &Vm, lane: &GuestLane, declared: Value) -> Result<Value, Error> {
        let columns = lane.columns(self.types.iter()).map_err(io_error)?;
        let mut asked = Qnil as VALUE;
        let mut failed = None;
        protect(|| {
            // SAFETY: protected, with the GVL, and nothing in the closure needs to be dropped. The
            // collector sees the Array.
            unsafe {
                let arguments = rb_sys::rb_ary_new_capa(self.types.len() as i64);
                match self.asks.push(vm, &columns, arguments) {
                    Ok(()) => asked = rb_sys::rb_apply(declared.as_raw(), intern(self.method), arguments),
                    Err(unwind) => failed = Some(unwind),
                }
            }
        })?;
        // SAFETY: the object lies on this stack.
        failed.map_or_else(|| Ok(unsafe { Value::from_raw(asked) }), |unwind| Err(unwind.into()))
    }
}

impl Table {
    pub(crate) fn new(vm: &Vm, declared: Value) -> Result<Self, Error> {
        let spec = specification(declared)?;
        let signature: Signature = spec.signature.parse().map_err(crate::errors::argument_error)?;
        let vectorized = spec.calling == Calling::Vectorized;
        let methods = METHODS.into_iter().filter(|(kind, ..)| *kind == spec.kind);
        let openings = methods.map(|method| Opening::new(vm, &signature, vectorized, method));
        Ok(Self {
            declared: Held::new(declared)?,
            openings: openings.collect::<Result<_, _>>()?,
            on_error: spec.on_error,
            memory_limit: spec.memory_limit,
            vectorized,
            set_up: spec.set_up,
        })
    }

    /// Answers a scan, a batch of a stream, or a request for the partitions. It ends after the last
    /// yielded row, or when the engine wants no more rows.
    pub(crate) fn answer(&self, vm: &Vm, lane: &mut GuestLane, call: Call) -> Result<(), Unwind> {
        let Some(opening) = self.openings.iter().find(|opening| Some(opening.entry) == call.entry()) else {
            return crosslane_guest::refuse(vm, lane, call, &call.refusal(), None);
        };
        match self.memory_limit {
            Some(bytes) => vm.limited(bytes, || self.answer_within(vm, lane, call, opening)),
            None => self.answer_within(vm, lane, call, opening),
        }
    }

    fn answer_within(
        &self,
        vm: &Vm,
        lane: &mut GuestLane,
        call: Call,
        opening: &Opening,
    ) -> Result<(), Unwind> {
        if self.set_up
            && let Err(error) = self.declared.get().funcall::<_, _, Value>("prepare", ())
        {
            let failure = Failure { set_up: true, ..vm.describe(Unwind::from(error))? };
            return crosslane_guest::refuse(vm, lane, call, &failure, None);
        }
        let (scan, rows) = match self.begin(vm, lane, call, opening) {
            Ok(begun) => begun,
            Err(error) => return crosslane_guest::fail(vm, lane, call, Unwind::from(error).into()),
        };
        let ruby = Ruby::get().expect("with the GVL");
        let taker = Taker {
            thread: Opaque::from(ruby.thread_current().as_value()),
            process: std::process::id(),
            lane: Cell::new(lane),
            rows: Cell::new(Some(Box::new(rows))),
            vectorized: self.vectorized && opening.entry != Entry::Partitions,
        };
        let taker = match gvl::made(|| ruby.obj_wrap(taker)) {
            Ok(taker) => taker,
            Err(unwind) => return crosslane_guest::fail(vm, lane, call, unwind.into()),
        };
        let outcome = protect(|| {
            // SAFETY: protected; the VM marks the argument of a block, and does not move it.
            unsafe {
                let each = intern(c"each_row");
                let data = taker.as_raw();
                rb_sys::rb_block_call(scan.as_raw(), each, 0, std::ptr::null(), Some(take), data);
            }
        });
        taker.lane.set(std::ptr::null_mut());
        let Some(mut rows) = taker.rows.take() else {
            // A row is unfinished in a fiber that may never be resumed.
            let unwind = outcome.err().unwrap_or_else(|| Unwind::new(ERROR, "each ended within a row"));
            return crosslane_guest::fail(vm, lane, call, unwind.into());
        };
        match outcome.and_then(|()| rows.finish(vm, lane)) {
            Ok(true) => Ok(()),
            Ok(false) => rows.leave(vm, lane, None),
            Err(Unwind::Jump(state)) => Err(Unwind::Jump(state)),
            Err(error) => {
                let row = Some(rows.made());
                rows.leave(vm, lane, Some(CallError { error, row }))
            }
        }
    }

    /// The object that yields the requested rows, and the index of the first row.
    fn begin(
        &self,
        vm: &Vm,
        lane: &GuestLane,
        call: Call,
        opening: &Opening,
    ) -> Result<(Value, Rows), Error> {
        let scan = opening.ask(vm, lane, self.declared.get())?;
        // If the columns are decided at each use, the scans of a function have rows of different
        // types.
        let returns: String = scan.funcall("type", ())?;
        let returns: DataType = returns.parse().map_err(crate::errors::argument_error)?;
        // Columns that the query does not need are not read.
        let wanted: Vec<usize> = scan.funcall("wanted", ())?;
        let writer = columns::writer_of_wanted(&returns, &wanted, scan.funcall("narrow?", ())?)?;
        let columns = projected(&returns, &wanted)?;
        let rows = match opening.entry {
            Entry::Map => Rows::of_stream(call, writer, &columns, self.on_error),
            // Partitions are not rows, so a failed one cannot become a row of NULLs.
            Entry::Partitions => Rows::new(call, writer, &columns, OnError::Fail),
            _ => Rows::new(call, writer, &columns, self.on_error),
        };
        Ok((scan, rows))
    }
}

/// A STRUCT with only the wanted fields. Another type is unchanged.
fn projected(data_type: &DataType, wanted: &[usize]) -> Result<DataType, Error> {
    let DataType::Struct(fields) = data_type else { return Ok(data_type.clone()) };
    let fields = wanted.iter().map(|place| fields.get(*place).cloned()).collect::<Option<_>>();
    fields
        .map(DataType::Struct)
        .ok_or_else(|| crate::errors::argument_error(format!("{data_type} has no columns {wanted:?}")))
}

const ERROR: &CStr = c"Crosslane::Error";

impl Taker {
    /// Takes a yielded row. With the GVL.
    fn take(&self, row: VALUE) -> Result<(), Unwind> {
        if self.lane.get().is_null() {
            return Err(Unwind::new(ERROR, "a row was yielded after its scan had ended"));
        }
        let ruby = Ruby::get().expect("with the GVL");
        if ruby.thread_current().as_raw() != ruby.get_inner(self.thread).as_raw() {
            return Err(Unwind::new(
                ERROR,
                "a row was yielded by another thread than the one that runs each",
            ));
        }
        if std::process::id() != self.process {
            return Err(Unwind::new(
                ERROR,
                "a row was yielded by another process than the one that runs each",
            ));
        }
        let Some(mut rows) = self.rows.take() else {
            return Err(Unwind::new(ERROR, "a row was yielded while another was being read"));
        };
        let outcome = self.take_into(&mut rows, row);
        self.rows.set(Some(rows));
        outcome
    }

    fn take_into(&self, rows: &mut Rows, row: VALUE) -> Result<(), Unwind> {
        // SAFETY: with the GVL, as the caller.
        let vm = unsafe { Vm::new() };
        // SAFETY: the scan's own thread is in `each`, and with it the lane's borrower; no other
        // code of Ruby runs on this thread until this is done with the lane.
        let lane = unsafe { &mut *self.lane.get() };
        if !rows.look(lane).map_err(io_error)? {
            return Err(ended());
        }
        // SAFETY: asking for a class raises nothing.
        if unsafe { rb_sys::rb_obj_is_kind_of(row, rb_sys::rb_eException) == Qtrue as VALUE } {
            rows.refuse(&vm, Unwind::Raise(row), 1)?;
        } else if self.vectorized {
            // SAFETY: the batch lies on this stack.
            let batch = RArray::try_convert(unsafe { Value::from_raw(row) })?;
            let (count, columns): (usize, Value) = (batch.entry(0)?, batch.entry(1)?);
            if rows.overflows(count) && !rows.turn(&vm, lane)? {
                return Err(ended());
            }
            rows.add(&vm, count, |writer, out| columns::write_columns(writer, columns.as_raw(), count, out))?;
        } else {
            rows.add(&vm, 1, |writer, out| columns::write_row(writer, row, out))?;
        }
        // The conversion of the row may have run any code, for example a fiber that outlived the
        // scan.
        if self.lane.get().is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        let lane = unsafe { &mut *self.lane.get() };
        rows.tell(lane);
        if !rows.is_full() || rows.turn(&vm, lane)? { Ok(()) } else { Err(ended()) }
    }
}

/// The exception that leaves the block if no more rows are wanted. The block may have rescued an
/// earlier one.
fn ended() -> Unwind {
    Unwind::new(c"Crosslane::ScanEnded", "the query needs no more rows")
}

/// The row of a yield. Several yielded values are a row, as in `to_a`.
///
/// # Safety
/// There must be so many arguments. With the GVL; Ruby may jump out.
unsafe fn row_of(count: c_int, arguments: *const VALUE) -> VALUE {
    // SAFETY: as the caller says.
    unsafe {
        match count {
            0 => Qnil as VALUE,
            1 => *arguments,
            _ => rb_sys::rb_ary_new_from_values(i64::from(count), arguments),
        }
    }
}

/// The block of `each_row`.
unsafe extern "C" fn take(
    _first: VALUE,
    data: VALUE,
    count: c_int,
    arguments: *const VALUE,
    _block: VALUE,
) -> VALUE {
    // SAFETY: there are so many arguments, and the data is a taker, which the VM keeps for the
    // block.
    let (row, taker) = unsafe { (row_of(count, arguments), Value::from_raw(data)) };
    let outcome = Obj::<Taker>::try_convert(taker).map_err(Unwind::from).and_then(|taker| taker.take(row));
    match outcome {
        Ok(()) => Qnil as VALUE,
        // SAFETY: nothing of this frame needs to be dropped; the exception goes on through the
        // block's callers.
        Err(unwind) => unsafe { unwind.resume() },
    }
}
