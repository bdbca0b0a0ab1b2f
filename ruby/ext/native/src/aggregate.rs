//! Aggregates: what changes the states that Ruby holds, and makes results of them.
//!
//! For each row of an exchange a method of Ruby's is called (`Crosslane::Accumulators`), which finds the states by their
//! numbers. No row is tried again: it may have changed a state.

use crate::function::PLACES;
use crate::objects::{self, Reader, Vm, Writer, exception, made};
use crate::serve::{describe, io_error};
use crate::values::{Held, intern};
use crosslane::batch::Column;
use crosslane::{ColumnBuilder, DataType, Entry, Kind, Signature};
use crosslane_guest::Argument;
use crosslane_gvl::{Unwind, protect};
use crosslane_process::guest::{Call, GuestLane, Mishaps};
use crosslane_ring::ProgressWord;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Value};
use rb_sys::{Qnil, VALUE};
use std::ffi::{CStr, c_int};

/// The entries, and the methods that do what they are for.
const METHODS: [(Entry, &CStr); 3] =
    [(Entry::Update, c"update"), (Entry::Combine, c"combine"), (Entry::Finish, c"finish")];

/// An aggregate, ready to be used.
#[derive(Debug)]
pub(crate) struct Aggregate {
    /// Its declaration (`Crosslane::Accumulators`).
    declared: Held,
    parts: Vec<Part>,
}

/// What is ready of an entry.
#[derive(Debug)]
struct Part {
    entry: Entry,
    method: &'static CStr,
    types: Vec<DataType>,
    readers: Vec<Reader>,
    /// For each column, whether rows with NULL in it are called.
    admits_null: Vec<bool>,
    /// Of what the method returns, if that is wanted.
    results: Option<(DataType, Writer)>,
}

/// What ended a batch, and the row that is to blame, if one is.
type Mishap = (Unwind, Option<usize>);

impl Aggregate {
    /// Prepares what Ruby declared.
    pub(crate) fn new(declared: Value) -> Result<Self, Error> {
        let signature: String = declared.funcall("signature", ())?;
        let signature: Signature = signature.parse().map_err(crate::argument_error)?;
        let admits_null: Vec<bool> = declared.funcall("admits_null", ())?;
        let parts = METHODS.into_iter().filter_map(|(entry, method)| {
            let carried = Kind::Aggregate.entry(entry, &signature)?;
            let types: Vec<_> = carried.takes().cloned().collect();
            // A state's number is never NULL.
            let states = carried.states.iter().map(|_| false);
            let admits_null = states.chain(admits_null.iter().copied()).take(types.len()).collect();
            Some(Part::new(entry, method, types, admits_null, carried.returns))
        });
        Ok(Self { declared: Held::new(declared), parts: parts.collect::<Result<_, _>>()? })
    }

    /// Answers an exchange for one of its entries.
    pub(crate) fn answer(&self, lane: &mut GuestLane, call: Call, host: bool) -> Result<(), Error> {
        let Some(part) = self.parts.iter().find(|part| Some(part.entry) == call.entry()) else {
            return lane.fail(call, &call.refusal(), None).map_err(io_error);
        };
        let outcome = {
            let columns = lane.columns(part.types.iter()).map_err(io_error)?;
            part.run(self.declared.get(), &columns, &call, lane.progress())
        };
        let answered = match outcome {
            Ok(Some(results)) => lane.succeed(call, &results, Mishaps::default()),
            Ok(None) => lane.succeed(call.with_rows(0), &(), Mishaps::default()),
            Err((Unwind::Jump(state), _)) => return Err(Unwind::Jump(state).into_error()),
            Err((unwind, row)) => lane.fail(call, &describe(unwind, host)?, row),
        };
        answered.map_err(io_error)
    }
}

impl Part {
    fn new(
        entry: Entry,
        method: &'static CStr,
        types: Vec<DataType>,
        admits_null: Vec<bool>,
        returns: Option<&DataType>,
    ) -> Result<Self, Error> {
        let readers = types.iter().map(objects::reader).collect::<Result<_, _>>()?;
        let results = returns.map(|returns| Ok::<_, Unwind>((returns.clone(), objects::writer(returns)?)));
        Ok(Self { entry, method, types, readers, admits_null, results: results.transpose()? })
    }

    /// Calls the method for the rows of a batch. Returns the results if they are wanted.
    fn run(
        &self,
        declared: Value,
        columns: &[Column<'_>],
        call: &Call,
        progress: &ProgressWord,
    ) -> Result<Option<ColumnBuilder>, Mishap> {
        let (rows, sequence) = (call.header.rows as usize, call.header.exchange as u32);
        let object = declared.as_raw();
        // SAFETY: the lane is served with the GVL.
        let method = unsafe { intern(self.method) };
        let arguments: Vec<Argument<'_, Vm>> = self
            .readers
            .iter()
            .zip(columns)
            .zip(&self.admits_null)
            .map(|((reader, column), sees_null)| Argument::new(reader, column, *sees_null))
            .collect();
        let skipping: Vec<&Column<'_>> = columns
            .iter()
            .zip(&self.admits_null)
            .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
            .collect();
        let mut results =
            self.results.as_ref().map(|(returns, writer)| (ColumnBuilder::new(returns), writer));
        if let Some((out, _)) = &mut results {
            out.reserve(rows).map_err(|overflow| (exception(overflow.into()), None))?;
        }
        let mut row = 0;
        let mut fault = None;
        let outcome = protect(|| {
            let mut values = [Qnil as VALUE; PLACES];
            while row < rows {
                // A row that is left out changes no state.
                if !skipping.iter().any(|column| !column.is_valid(row)) {
                    progress.set(sequence, row as u32);
                    // SAFETY: protected, with the GVL, and nothing in this frame is to be dropped; the VM sees the values
                    // on the stack, and the caller holds the object.
                    unsafe {
                        let vm = Vm::new();
                        for (value, argument) in values.iter_mut().zip(&arguments) {
                            *value = made(argument.get(&vm, row));
                        }
                        let result =
                            rb_sys::rb_funcallv(object, method, arguments.len() as c_int, values.as_ptr());
                        if let Some((out, writer)) = &mut results
                            && let Err(what) = writer.write(&vm, &result, out)
                        {
                            fault = Some(what);
                            return;
                        }
                    }
                }
                row += 1;
            }
        });
        let unwind = match (outcome, fault) {
            (Err(unwind), _) => unwind,
            (Ok(()), Some(fault)) => exception(fault),
            (Ok(()), None) => return Ok(results.map(|(out, _)| out)),
        };
        // The VM may have wanted the thread when all rows were done.
        Err((unwind, (row < rows).then_some(row)))
    }
}
