//! The rows of a table function: the block yields them, the engine takes them chunk by chunk.
//!
//! The first call of a scan enters the block's `each`; when a chunk is full it is sent, and the next call is
//! awaited right there, inside of `each`. So rows are made as they are wanted, on one thread, without fibers. A scan
//! that ends early (a LIMIT) closes the lane, and the `each` is left by an exception, which runs its
//! `ensure` clauses.

use crate::serve::{describe, io_error, next_call};
use crate::writer::Writer;
use crosslane::{ColumnBuilder, DataType, Signature};
use crosslane_gvl::{Unwind, protect};
use crosslane_process::guest::{Call, GuestLane, Mishaps};
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Value};
use rb_sys::{Qnil, VALUE};
use std::ffi::c_int;

/// Rows of a chunk: DuckDB's vector size.
const CHUNK: usize = 2048;

/// A table function, ready to be asked for rows.
#[derive(Debug)]
pub(crate) struct Table {
    parameters: Vec<DataType>,
    writer: Writer,
    out: ColumnBuilder,
}

/// A scan that is under way.
struct Scan<'a> {
    lane: &'a mut GuestLane,
    call: Call,
    writer: &'a Writer,
    out: &'a mut ColumnBuilder,
}

impl Table {
    pub(crate) fn new(declared: Value) -> Result<Self, Error> {
        let signature: String = declared.funcall("signature", ())?;
        let signature: Signature = signature.parse().map_err(crate::argument_error)?;
        Ok(Self {
            parameters: signature.parameters.into_iter().map(|field| field.data_type).collect(),
            writer: Writer::new(&signature.returns)?,
            out: ColumnBuilder::new(&signature.returns),
        })
    }

    /// Answers the calls of one scan, until it has no more rows.
    pub(crate) fn answer(
        &mut self,
        lane: &mut GuestLane,
        call: Call,
        declared: Value,
        host: bool,
    ) -> Result<(), Error> {
        let number: i64 = lane
            .columns(self.parameters.iter())
            .map_err(io_error)?
            .first()
            .map_or(0, |column| column.value(0));
        let scan: Value = declared.funcall("scan", (number,))?;
        self.out.clear();
        let mut state = Scan { lane, call, writer: &self.writer, out: &mut self.out };
        let data = (&raw mut state) as VALUE;
        let outcome = protect(|| {
            // SAFETY: protected; the state outlives the call.
            unsafe {
                let each = crate::values::intern(c"each_row");
                rb_sys::rb_block_call(scan.as_raw(), each, 0, std::ptr::null(), Some(take), data);
            }
        });
        match outcome {
            // The last rows, and then none, which says that this was all.
            Ok(()) if state.out.rows() == 0 => state.send().map_err(Error::from),
            Ok(()) => state.turn().and_then(|()| state.send()).map_err(Error::from),
            Err(Unwind::Jump(jump)) => Err(Unwind::Jump(jump).into_error()),
            Err(unwind) => {
                let call = state.call;
                let failure = describe(unwind, declared, host)?;
                lane.fail(call, &failure, None).map_err(io_error)
            }
        }
    }
}

impl Scan<'_> {
    /// Sends the rows so far.
    fn send(&mut self) -> Result<(), Unwind> {
        let call = self.call.with_rows(self.out.rows());
        self.lane.succeed(call, self.out, Mishaps::default()).map_err(|error| io_error(error).into())
    }

    /// Sends the rows so far, and waits until more are wanted.
    fn turn(&mut self) -> Result<(), Unwind> {
        self.send()?;
        self.out.clear();
        match next_call(self.lane)? {
            Some(call) if call.header.function == self.call.header.function => {
                self.call = call;
                Ok(())
            }
            _ => Err(Unwind::new(c"Crosslane::ScanEnded", "the query needs no more rows")),
        }
    }

    /// # Safety
    /// With the GVL.
    unsafe fn take(&mut self, row: VALUE) -> Result<(), Unwind> {
        let mut fault = None;
        // SAFETY: protected; nothing in the closure is to be dropped.
        protect(|| unsafe { fault = self.writer.write(row, self.out).err() })?;
        if let Some(fault) = fault {
            let (class, message) = self.writer.explain(&fault);
            return Err(Unwind::new(class, &message));
        }
        if self.out.rows() == CHUNK { self.turn() } else { Ok(()) }
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
    // SAFETY: the data is the state of the scan, whose call of `each_row` this is in.
    let outcome = unsafe {
        let row = if count > 0 { *arguments } else { Qnil as VALUE };
        (*(data as *mut Scan<'_>)).take(row)
    };
    match outcome {
        Ok(()) => Qnil as VALUE,
        // SAFETY: nothing of this frame is to be dropped; the exception goes on through the block's callers.
        Err(Unwind::Raise(exception)) => unsafe { rb_sys::rb_exc_raise(exception) },
        // SAFETY: as above.
        Err(Unwind::Jump(state)) => unsafe { rb_sys::rb_jump_tag(state) },
    }
}
