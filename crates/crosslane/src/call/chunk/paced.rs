//! Calls a function no more often than its `rate` says. A chunk is called in parts, each with as many
//! rows as may begin at the moment.

use super::once::Call;
use crate::batch::{self, Encode};
use crate::call::{Behind, Caller, Clock, Input, Output};
use crate::error::Error;
use crate::function::Function;
use crate::lane::Entry;
use std::ops::Range;
use std::time::Instant;

/// The rows that are looked through for NULLs at once.
const PIECE: usize = 64;

/// Has a function called by `call` with all rows of `input`, at its rate.
///
/// # Errors
/// Those of `call`; [`Error::Cancelled`] if the query is cancelled during a pause.
pub(super) fn paced(
    function: &Function,
    caller: Caller<'_>,
    input: &dyn Input,
    output: &mut dyn Output,
    call: &mut Call<'_>,
) -> Result<(), Error> {
    let Some(rate) = &function.rate else { return call(input, output) };
    let mut clock = Clock::new(function);
    let skipped = skipped(function, input)?;
    let mut from = 0;
    while from < input.rows() {
        let rest = &skipped[from..];
        let wanted = rest.iter().filter(|skips| !**skips).count();
        let taken = if wanted == 0 { Ok(0) } else { rate.take(wanted, Instant::now()) };
        match taken {
            Ok(count) => {
                // The part ends before the first row that has no token.
                let calls = rest.iter().enumerate().filter(|(_, skips)| !**skips);
                let length = calls.map(|(row, _)| row).nth(count).unwrap_or(rest.len());
                let rows = from..from + length;
                from = rows.end;
                call(&Part { input, rows: rows.clone() }, &mut Behind { first: rows.start, output })?;
            }
            Err(pause) => clock.rest(pause, function, caller)?,
        }
    }
    Ok(())
}

/// For each row, whether it is NULL without a call.
fn skipped(function: &Function, input: &dyn Input) -> Result<Vec<bool>, Error> {
    let mut skipped = vec![false; input.rows()];
    if !function.spec.admits_null.contains(&false) {
        return Ok(skipped);
    }
    // In pieces, because arguments may be large.
    for first in (0..input.rows()).step_by(PIECE) {
        let rows = first..input.rows().min(first + PIECE);
        let frame = input.frame(rows.clone())?;
        let columns = batch::columns(frame.bytes(), function.entry(Entry::Call)?.takes())?;
        let skipping = columns.iter().zip(&function.spec.admits_null).filter(|(_, admits)| !**admits);
        for (column, _) in skipping {
            rows.clone().for_each(|row| skipped[row] |= !column.is_valid(row - first));
        }
    }
    Ok(skipped)
}

/// Consecutive rows of an input.
struct Part<'a> {
    input: &'a dyn Input,
    rows: Range<usize>,
}

impl Input for Part<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        self.input.slice(self.rows.start + rows.start..self.rows.start + rows.end, take)
    }

    fn number(&self, row: usize) -> usize {
        self.input.number(self.rows.start + row)
    }
}
