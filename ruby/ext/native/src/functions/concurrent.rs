//! Calls of several rows at once. The rows go to the runner (`Crosslane::Runner`), which calls the
//! function on as many threads as its option `concurrency` allows.

use crate::lane::clock::Clock;
use crate::values::{CallError, Vm, exception, send};
use crosslane::lane::WRITING;
use crosslane::{ColumnBuilder, Verdict};
use crosslane_guest::Batch;
use crosslane_gvl::{Unwind, protect};
use crosslane_process::guest::RowCounts;
use magnus::rb_sys::AsRawValue;
use rb_sys::{Qnil, VALUE};

/// Calls the function for a batch.
pub(crate) fn run(batch: &Batch<'_, Vm>, out: &mut ColumnBuilder) -> Result<RowCounts, CallError> {
    let mut row_counts = RowCounts::default();
    let mut fault = None;
    let mut row = 0;
    let mut failed = Qnil as VALUE;
    let progress = batch.progress();
    progress.set(u32::MAX);
    let clock = Clock::object(progress)?;
    let clock = clock.as_raw();
    let mut rows = Qnil as VALUE;
    let mut outcome = Qnil as VALUE;
    let mut value = Qnil as VALUE;
    let mut spent = 0;
    // Calls the runner with rows that had `spent` tries before. `failed` is set if a row has used
    // up its retries.
    //
    // SAFETY: to be called protected, with the GVL; nothing in its frame needs to be dropped.
    let call = |rows: VALUE, spent: u32, row_counts: &mut RowCounts, failed: &mut VALUE| unsafe {
        let arguments = [rows, clock, rb_sys::rb_uint2inum(spent as usize)];
        let outcome = send(batch.callee().raw(), c"call", &arguments);
        row_counts.errors += rb_sys::rb_num2int(rb_sys::rb_ary_entry(outcome, 1)) as u32;
        row_counts.retries += rb_sys::rb_num2int(rb_sys::rb_ary_entry(outcome, 2)) as u32;
        *failed = rb_sys::rb_ary_entry(outcome, 3);
        outcome
    };
    // The number of retries of a row in an outcome.
    //
    // SAFETY: as above.
    let tries = |outcome: VALUE, row: usize, known: u32| unsafe {
        let tries = rb_sys::rb_ary_entry(outcome, 5);
        let tries = rb_sys::rb_hash_lookup(tries, rb_sys::rb_uint2inum(row));
        if tries == Qnil as VALUE { known } else { rb_sys::rb_num2int(tries) as u32 }
    };
    protect(|| {
        // SAFETY: protected, with the GVL, and nothing in this frame needs to be dropped.
        unsafe {
            rows = rb_sys::rb_ary_new_capa(batch.rows() as i64);
            for row in 0..batch.rows() {
                if batch.skips(row) {
                    rb_sys::rb_ary_push(rows, Qnil as VALUE);
                    continue;
                }
                let values = rb_sys::rb_ary_new();
                let made = batch.arguments(row, |value| {
                    rb_sys::rb_ary_push(values, value);
                });
                if let Err(unwind) = made {
                    unwind.resume();
                }
                rb_sys::rb_ary_push(rows, values);
            }
            outcome = call(rows, 0, &mut row_counts, &mut failed);
            if failed != Qnil as VALUE {
                row = rb_sys::rb_num2int(rb_sys::rb_ary_entry(outcome, 4)) as usize;
            }
        }
    })?;
    // A value that is no valid result counts as a failed call.
    let mut again = false;
    while failed == Qnil as VALUE && row < batch.rows() {
        protect(|| {
            // SAFETY: as above.
            unsafe {
                if again {
                    let alone = rb_sys::rb_ary_new_capa(1);
                    rb_sys::rb_ary_push(alone, rb_sys::rb_ary_entry(rows, row as i64));
                    let outcome = call(alone, spent, &mut row_counts, &mut failed);
                    if failed != Qnil as VALUE {
                        return;
                    }
                    value = rb_sys::rb_ary_entry(rb_sys::rb_ary_entry(outcome, 0), 0);
                    spent = tries(outcome, 0, spent);
                }
                while row < batch.rows() {
                    if !again {
                        value = rb_sys::rb_ary_entry(rb_sys::rb_ary_entry(outcome, 0), row as i64);
                        spent = tries(outcome, row, 0);
                    }
                    progress.set(row as u32 | WRITING);
                    if let Err(what) = batch.write(&value, out) {
                        fault = Some(what);
                        return;
                    }
                    again = false;
                    row += 1;
                }
            }
        })?;
        let Some(what) = fault.take() else { continue };
        out.truncate(row);
        let mishap = CallError { error: exception(what), row: Some(row) };
        again = match batch.retry_or_null(mishap, &mut spent, 1, &mut row_counts)? {
            Verdict::Again(_) => true,
            Verdict::Null => {
                out.null();
                row += 1;
                false
            }
        };
    }
    if failed != Qnil as VALUE {
        return Err(CallError { error: Unwind::Raise(failed), row: Some(row) });
    }
    Ok(row_counts)
}
