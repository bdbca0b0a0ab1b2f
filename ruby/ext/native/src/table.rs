//! The rows of a table function: the block yields them, the engine takes them chunk by chunk.
//!
//! A scan is an exchange: the block's `each` runs until it has no more rows, on one thread, without fibers. When a chunk is
//! full, the engine must have taken the one before; then the chunk is sent, and the next is made. So rows are made as they are
//! wanted, and while the engine uses the last. A scan that ends early (a LIMIT) is cancelled, and the `each` is left by an
//! exception, which runs its `ensure` clauses.
//!
//! An `each` may keep its block, call it when the scan is over, or have another thread or fiber call it. So the block knows
//! an object of Ruby's ([`Taker`]), which has the rows and the lane only as long as the scan lasts. Who works on the rows
//! takes them out of it meanwhile; the lane is for the scan's own thread, which is in `each` as long as it uses it.

use crate::objects::{self, Vm, Writer};
use crate::serve::{io_error, wait};
use crate::values::Held;
use crosslane::{ColumnBuilder, DataType, Entry, Failure, Kind, Signature};
use crosslane_guest::{fail, succeed};
use crosslane_gvl::{self as gvl, Unwind, protect};
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps};
use magnus::gc::Marker;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::typed_data::Obj;
use magnus::value::{Opaque, ReprValue};
use magnus::{DataTypeFunctions, Error, Ruby, TryConvert, TypedData, Value};
use rb_sys::{Qnil, VALUE};
use std::cell::Cell;
use std::ffi::{CStr, c_int};

/// Rows of a chunk: DuckDB's vector size.
const CHUNK: usize = 2048;

/// A table function, ready to be asked for rows.
#[derive(Debug)]
pub(crate) struct Table {
    /// Its declaration (`Crosslane::Scans::Rows`).
    declared: Held,
    /// What a scan is opened with: the number that Ruby gave it is the last.
    columns: Vec<DataType>,
}

/// The exchange of a scan.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    call: Call,
    /// Whether the engine wants no more of it.
    cancelled: bool,
}

/// The rows of a scan that were not sent yet.
struct Rows {
    exchange: Exchange,
    writer: Writer,
    out: ColumnBuilder,
}

/// What the block of `each_row` knows: `Crosslane::Native::Taker`.
#[derive(TypedData)]
#[magnus(class = "Crosslane::Native::Taker", free_immediately, mark)]
pub(crate) struct Taker {
    /// The scan's own.
    thread: Opaque<Value>,
    /// Null when the scan is over.
    lane: Cell<*mut GuestLane>,
    /// `None` while they are worked on.
    rows: Cell<Option<Box<Rows>>>,
}

// SAFETY: only used with the GVL; the lane only by the scan's own thread.
unsafe impl Send for Taker {}

impl DataTypeFunctions for Taker {
    fn mark(&self, marker: &Marker) {
        marker.mark(self.thread);
    }
}

impl Table {
    pub(crate) fn new(declared: Value) -> Result<Self, Error> {
        let signature: String = declared.funcall("signature", ())?;
        let signature: Signature = signature.parse().map_err(crate::argument_error)?;
        let Some(carried) = Kind::Table.entry(Entry::Scan, &signature) else {
            return Err(crate::argument_error(format!("{signature} is no table")));
        };
        Ok(Self { declared: Held::new(declared)?, columns: carried.takes().cloned().collect() })
    }

    /// Answers a scan, until it has no more rows or none are wanted.
    pub(crate) fn answer(&self, vm: &Vm, lane: &mut GuestLane, call: Call) -> Result<(), Error> {
        let exchange = Exchange { call, cancelled: false };
        let (scan, rows) = match self.begin(lane, exchange) {
            Ok(begun) => begun,
            Err(error) => return exchange.fail(vm, lane, error.into()),
        };
        let ruby = Ruby::get().expect("with the GVL");
        let taker = Taker {
            thread: Opaque::from(ruby.thread_current().as_value()),
            lane: Cell::new(lane),
            rows: Cell::new(Some(Box::new(rows))),
        };
        let taker = match gvl::made(|| ruby.obj_wrap(taker)) {
            Ok(taker) => taker,
            Err(unwind) => return exchange.fail(vm, lane, unwind),
        };
        let outcome = protect(|| {
            // SAFETY: protected; the VM marks what a block is given, and does not move it.
            unsafe {
                let each = crate::values::intern(c"each_row");
                let data = taker.as_raw();
                rb_sys::rb_block_call(scan.as_raw(), each, 0, std::ptr::null(), Some(take), data);
            }
        });
        taker.lane.set(std::ptr::null_mut());
        let Some(mut rows) = taker.rows.take() else {
            // A fiber that nobody may ever resume is in the midst of one.
            let unwind = outcome.err().unwrap_or_else(|| Unwind::new(ERROR, "each ended within a row"));
            return exchange.fail(vm, lane, unwind);
        };
        match outcome.and_then(|()| rows.finish(lane)) {
            Ok(()) => Ok(()),
            Err(unwind) => rows.exchange.fail(vm, lane, unwind),
        }
    }

    /// The scan that the engine asks for, and its first row's place.
    fn begin(&self, lane: &GuestLane, exchange: Exchange) -> Result<(Value, Rows), Error> {
        let columns = lane.columns(self.columns.iter()).map_err(io_error)?;
        let number: i64 = columns.last().map_or(0, |column| column.value(0));
        let scan: Value = self.declared.get().funcall("scan", (number,))?;
        // Scans of a function whose columns are decided when it is used have rows of different types.
        let returns: String = scan.funcall("type", ())?;
        let returns: DataType = returns.parse().map_err(crate::argument_error)?;
        // Columns that the query does not want are not even looked at.
        let wanted: Vec<usize> = scan.funcall("wanted", ())?;
        let writer = objects::writer_of_wanted(&returns, &wanted, scan.funcall("narrow?", ())?)?;
        let out = ColumnBuilder::new(&projected(&returns, &wanted)?);
        Ok((scan, Rows { exchange, writer, out }))
    }
}

/// A STRUCT of the wanted fields of one.
fn projected(data_type: &DataType, wanted: &[usize]) -> Result<DataType, Error> {
    let fields = match data_type {
        DataType::Struct(fields) => wanted.iter().map(|place| fields.get(*place).cloned()).collect(),
        _ => None,
    };
    fields
        .map(DataType::Struct)
        .ok_or_else(|| crate::argument_error(format!("{data_type} has no columns {wanted:?}")))
}

impl Exchange {
    /// What the block is left by if no more rows are wanted. It may have rescued that before.
    fn go_on(&self) -> Result<(), Unwind> {
        if self.cancelled {
            return Err(Unwind::new(c"Crosslane::ScanEnded", "the query needs no more rows"));
        }
        Ok(())
    }

    /// Asks without waiting whether more rows are wanted.
    fn look(&mut self, lane: &mut GuestLane) -> Result<(), Unwind> {
        if lane.has_message() && !self.cancelled {
            self.cancelled = lane.is_cancelled(&self.call).map_err(io_error)?;
        }
        self.go_on()
    }

    /// Waits until the engine has taken the rows that were sent.
    fn await_taken(&mut self, lane: &mut GuestLane) -> Result<(), Unwind> {
        loop {
            self.go_on()?;
            let taken = wait(lane, |lane, stop| lane.await_taken(&self.call, stop));
            // An engine that is gone wants nothing, either.
            self.cancelled = matches!(taken, Some(Ok(Emitted::Cancelled) | Err(_)));
            gvl::check_interrupts()?;
            if matches!(taken, Some(Ok(Emitted::Sent))) {
                return Ok(());
            }
        }
    }

    /// Ends a scan that has failed, and tells the engine how if that still wants to know.
    fn fail(mut self, vm: &Vm, lane: &mut GuestLane, mut unwind: Unwind) -> Result<(), Error> {
        while !self.cancelled && matches!(unwind, Unwind::Raise(_)) {
            match self.await_taken(lane) {
                Ok(()) => {
                    return Ok(fail(vm, lane, self.call, unwind.into())?);
                }
                Err(other) if !self.cancelled => unwind = other,
                Err(_) => {}
            }
        }
        if let Unwind::Jump(_) = unwind {
            return Err(unwind.into_error());
        }
        let nothing = ColumnBuilder::new(&DataType::Boolean);
        Ok(succeed(vm, lane, self.call.with_rows(0), &nothing, Mishaps::default())?)
    }
}

const ERROR: &CStr = c"Crosslane::Error";

impl Taker {
    /// Takes a row. With the GVL.
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
        let Some(mut rows) = self.rows.take() else {
            return Err(Unwind::new(ERROR, "a row was yielded while another was being read"));
        };
        // SAFETY: the scan's own thread is in `each`, and with it the lane's borrower; no other code of Ruby runs on this
        // thread until this is done with the lane.
        let outcome = match unsafe { rows.exchange.look(&mut *self.lane.get()) } {
            Ok(()) => rows.add(row),
            Err(unwind) => Err(unwind),
        };
        // What the row is made of may have been anything, such as a fiber that outlived the scan.
        let outcome = outcome.and_then(|()| match self.lane.get() {
            lane if lane.is_null() || rows.out.rows() < CHUNK => Ok(()),
            // SAFETY: as above.
            lane => rows.turn(unsafe { &mut *lane }),
        });
        self.rows.set(Some(rows));
        outcome
    }
}

impl Rows {
    fn add(&mut self, row: VALUE) -> Result<(), Unwind> {
        objects::write_row(&self.writer, row, &mut self.out).map_err(objects::exception)
    }

    /// Sends the rows so far, when those before are taken.
    fn turn(&mut self, lane: &mut GuestLane) -> Result<(), Unwind> {
        loop {
            self.exchange.await_taken(lane)?;
            // There is room in a ring of which all was taken, so that nothing is waited for with the GVL.
            match lane.emit(&self.exchange.call, self.out.rows(), &self.out, || true).map_err(io_error)? {
                Emitted::Sent => {
                    self.out.clear();
                    return Ok(());
                }
                Emitted::Cancelled => self.exchange.cancelled = true,
                Emitted::Stopped => {}
                Emitted::Failed(failure) => return Err(no_memory(&failure)),
            }
        }
    }

    /// Sends the last rows.
    fn finish(&mut self, lane: &mut GuestLane) -> Result<(), Unwind> {
        self.exchange.await_taken(lane)?;
        let call = self.exchange.call.with_rows(self.out.rows());
        let sent = lane.offer(call, &self.out, Mishaps::default()).map_err(io_error)?;
        sent.map_err(|failure| no_memory(&failure))
    }
}

/// The block is left by what the engine will be told: the scan must be over for both.
fn no_memory(failure: &Failure) -> Unwind {
    Unwind::new(c"NoMemoryError", &failure.message)
}

/// The block of `each_row`.
unsafe extern "C" fn take(
    _first: VALUE,
    data: VALUE,
    count: c_int,
    arguments: *const VALUE,
    _block: VALUE,
) -> VALUE {
    // SAFETY: there are so many arguments, and the data is a taker, which the VM keeps for the block.
    let (row, taker) = unsafe { (if count > 0 { *arguments } else { Qnil as VALUE }, Value::from_raw(data)) };
    let outcome = Obj::<Taker>::try_convert(taker).map_err(Unwind::from).and_then(|taker| taker.take(row));
    match outcome {
        Ok(()) => Qnil as VALUE,
        // SAFETY: nothing of this frame is to be dropped; the exception goes on through the block's callers.
        Err(unwind) => unsafe { unwind.resume() },
    }
}
