//! Gives results to the engine.

use crate::batch::{Borrowed, Column};
use crate::call::{Input, Output, place};
use crate::error::{Error, Failure};
use crate::function::{Function, OnError};
use crate::lane::Entry;
use crate::types::values::unfit;
use std::collections::BTreeMap;

/// Gives the results of an entry for the rows from `first` on to the engine. A value that is not
/// valid for the function's type is an error of the function in that row.
///
/// # Errors
/// For such a value, unless the function's errors become NULL. Also if the engine cannot hold the
/// results.
pub fn deliver(
    function: &Function,
    entry: Entry,
    input: &dyn Input,
    output: &mut dyn Output,
    first: usize,
    results: &Column<'_>,
) -> Result<(), Error> {
    let unfit = judged(function, entry, input, first, results)?;
    output.accept(first, results)?;
    settle(function, output, first, &unfit);
    Ok(())
}

/// Does the same for results whose values the guest can still change. Returns false, and does
/// nothing, if the output does not take such results.
///
/// # Errors
/// As [`deliver`].
pub(super) fn deliver_borrowed(
    function: &Function,
    entry: Entry,
    input: &dyn Input,
    output: &mut dyn Output,
    first: usize,
    results: &Column<'_>,
    values: Borrowed<'_>,
) -> Result<bool, Error> {
    let mut unfit = Unfit::new();
    let accepted = output.accept_borrowed(first, results, values, &mut |copied| {
        unfit = judged(function, entry, input, first, copied)?;
        Ok(())
    })?;
    settle(function, output, first, &unfit);
    Ok(accepted)
}

/// The rows with values that are not valid for the function's type, and a description of each
/// value.
type Unfit = BTreeMap<usize, String>;

/// Finds the rows that become NULL because of their values.
fn judged(
    function: &Function,
    entry: Entry,
    input: &dyn Input,
    first: usize,
    results: &Column<'_>,
) -> Result<Unfit, Error> {
    let unfit = unfit(results);
    if let (OnError::Fail, Some((row, what))) = (function.spec.on_error, unfit.first_key_value()) {
        let failure = Box::new(Failure::unfit(what));
        let place = place(function, entry, input, Some(first + row));
        return Err(Error::Raised { function: function.name().into(), failure, place });
    }
    Ok(unfit)
}

fn settle(function: &Function, output: &mut dyn Output, first: usize, unfit: &Unfit) {
    unfit.keys().for_each(|row| output.null(first + row));
    function.stats.here().errors.add(unfit.len() as u64);
}
