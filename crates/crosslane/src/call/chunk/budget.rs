//! Ends a query that has a function called more often than its `budget` allows.

use super::once::Call;
use super::paced::{Part, rows_of, skipped};
use crate::call::{Behind, Input, Output, Spent};
use crate::error::Error;
use crate::function::Function;

/// Has a function called by `call` with all rows of `input`, as far as its budget allows. Rows that are
/// NULL without a call cost nothing.
///
/// If the budget has too few calls for all rows, no row is called. A function whose results are kept
/// is called as often as it may. So each further query comes further.
///
/// # Errors
/// Those of `call` and `input`; [`Error::OverBudget`].
pub fn budgeted(
    function: &Function,
    spent: &Spent,
    input: &dyn Input,
    output: &mut dyn Output,
    call: &mut Call<'_>,
) -> Result<(), Error> {
    let Some(budget) = function.spec.budget else { return call(input, output) };
    let skipped = skipped(function, input)?;
    let wanted = skipped.iter().filter(|skips| !**skips).count();
    let taken = spent.take(wanted as u64, budget) as usize;
    if taken == wanted {
        return call(input, output);
    }
    if function.memo.is_some() && taken > 0 {
        let rows = 0..rows_of(&skipped, taken);
        call(&Part { input, rows }, &mut Behind { first: 0, output })?;
    }
    Err(Error::OverBudget { function: function.name().into(), budget, place: function.spec.place() })
}
