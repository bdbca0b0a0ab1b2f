//! Giving results to the engine.

use super::{Input, Output, place};
use crate::batch::Column;
use crate::error::{Error, Failure};
use crate::function::Function;
use crate::leniency::OnError;
use crate::values::unfit;

/// Gives the results of the rows from `first` on to the engine. A value that is none of the function's type is an
/// error of the function in that row.
///
/// # Errors
/// For such a value, unless the function's errors become NULL; or if the engine cannot hold the results.
pub fn deliver(
    function: &Function,
    input: &dyn Input,
    output: &mut dyn Output,
    first: usize,
    results: &Column<'_>,
) -> Result<(), Error> {
    let unfit = unfit(results);
    if let (OnError::Fail, Some((row, what))) = (function.spec.on_error, unfit.first_key_value()) {
        let failure = Box::new(Failure::unfit(what));
        let place = place(function, input, Some(first + row));
        return Err(Error::Raised { function: function.name().into(), failure, place });
    }
    output.accept(first, results)?;
    unfit.keys().for_each(|row| output.null(first + row));
    function.stats.here().errors.add(unfit.len() as u64);
    Ok(())
}
