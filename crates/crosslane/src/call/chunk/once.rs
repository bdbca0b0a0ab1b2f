//! Calls a function once for equal rows of a chunk, and not at all for results that are kept
//! (`memoize`).
//!
//! A deterministic function has equal results for equal rows. If its rows cost more than
//! [`EXPENSIVE`], it is worth to compare them, unless they do not repeat ([`Repeats`]). The results
//! of a `memoize` function are looked up in each chunk. A chunk whose rows have more than
//! [`LARGEST`] bytes is not compared, because that takes a copy of them.
//!
//! A result goes to all of its rows as soon as it is there. So the results of a chunk need no more
//! memory than without this, apart from those that wait for their store ([`Keeper`]).
//!
//! [`Repeats`]: crate::function::Repeats

use crate::batch::{self, Column, ColumnBuilder, Encode, Frame, Plan, Rows, Typed};
use crate::call::reuse::{Distinct, Keeper, Known, LARGEST, Row, chosen, keeps_nulls};
use crate::call::{Input, Output};
use crate::error::Error;
use crate::function::{EntryTypes, Function};
use crate::lane::Entry;
use crate::types::DataType;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The cost of a row from which on rows are compared. A comparison takes a fiftieth of this.
const EXPENSIVE: Duration = Duration::from_micros(10);

/// Whether rows of an input are compared.
fn is_worth_it(function: &Function, input: &dyn Input) -> bool {
    let spec = &function.spec;
    if function.memo.is_some() {
        return input.rows() > 0;
    }
    let cost = function.cost(Entry::Call).estimate(input.rows()).unwrap_or_default();
    let may_be = spec.deterministic && !spec.whole_batches && input.rows() > 1;
    may_be && cost >= EXPENSIVE * input.rows() as u32 && !function.repeats.is_pausing()
}

/// Calls a function with some rows.
pub(super) type Call<'a> = dyn FnMut(&dyn Input, &mut dyn Output) -> Result<(), Error> + 'a;

/// Has a function called by `call`: with all rows of `input`, or once for equal rows, and with none
/// whose result is kept, where that is faster.
///
/// # Errors
/// Those of `call`, `input` and `output`. The results that came before an error are kept.
pub fn once(
    function: &Function,
    input: &dyn Input,
    output: &mut dyn Output,
    call: &mut Call<'_>,
) -> Result<(), Error> {
    if !is_worth_it(function, input) {
        return call(input, output);
    }
    let types = function.entry(Entry::Call)?;
    let rows = input.rows();
    let (Some(frame), Some(returns)) = (frame(input)?, types.returns) else { return call(input, output) };
    let columns = batch::columns(frame.bytes(), types.takes())?;
    let kept = function.memo.as_ref();
    let Some(distinct) = Distinct::new(kept.map(|kept| kept.hash), &columns, rows) else {
        function.repeats.learn(rows, rows);
        return call(input, output);
    };
    if kept.is_none() {
        function.repeats.learn(rows, distinct.firsts.len());
        if distinct.firsts.len() == rows {
            return call(input, output);
        }
    }
    let known = Known::of(kept, &distinct, returns, usize::MAX);
    let unknown = known.give(&distinct, returns, output)?;
    function.stats.here().reused.add((rows - unknown.len()) as u64);
    if unknown.is_empty() {
        return Ok(());
    }
    let chosen = Chosen::new(input, &columns, types, function.types.as_ref(), &unknown)?;
    let keeper = kept.map(|kept| Keeper::new(kept, keeps_nulls(function), &distinct, &unknown));
    let one = ColumnBuilder::new(returns);
    let mut spread = Spread { output, returns, keeper, distinct: &distinct, called: &unknown, one };
    let outcome = call(&chosen, &mut spread);
    // Results that came before an error have cost as much as others.
    if let Some(keeper) = &mut spread.keeper {
        keeper.store();
    }
    outcome
}

/// The rows of an input, unless they are too large to be compared.
fn frame(input: &dyn Input) -> Result<Option<Frame>, Error> {
    let (rows, mut frame) = (input.rows(), None);
    input.slice(0..rows, &mut |content| {
        let mut plan = Plan::default();
        content.plan(&mut plan);
        if !plan.is_too_large() && plan.size() <= LARGEST {
            frame = Some(Frame::new(content, rows));
        }
    })?;
    frame.transpose()
}

/// Gives the result of a distinct row to all rows that are like it, and to the memo.
struct Spread<'a> {
    output: &'a mut dyn Output,
    returns: &'a DataType,
    keeper: Option<Keeper<'a>>,
    distinct: &'a Distinct,
    called: &'a [Row],
    /// The result that is being given.
    one: ColumnBuilder,
}

impl Output for Spread<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(first, results)?;
        }
        for row in 0..results.rows {
            let (number, _) = self.called[first + row];
            self.one.clear();
            self.one.copy(results, row)?;
            let one = self.one.column(self.returns);
            self.distinct.rows(number).try_for_each(|row| self.output.accept(row, &one))?;
        }
        Ok(())
    }

    fn null(&mut self, row: usize) {
        let (number, _) = self.called[row];
        self.distinct.rows(number).for_each(|row| self.output.null(row));
    }
}

/// Some rows of an input.
struct Chosen<'a> {
    input: &'a dyn Input,
    rows: &'a [Row],
    types: EntryTypes<'a>,
    /// The types as text, if batches carry them.
    text: Option<&'a Arc<str>>,
    columns: Vec<ColumnBuilder>,
}

impl<'a> Chosen<'a> {
    fn new(
        input: &'a dyn Input,
        columns: &[Column<'_>],
        types: EntryTypes<'a>,
        text: Option<&'a Arc<str>>,
        rows: &'a [Row],
    ) -> Result<Self, Error> {
        Ok(Self { input, rows, types, text, columns: chosen(columns, rows)? })
    }
}

impl Input for Chosen<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns = self.columns.iter().zip(self.types.takes());
        let columns: Vec<_> = columns.map(|(column, data_type)| column.column(data_type)).collect();
        let columns: Vec<_> = columns.iter().map(|column| Rows::new(column, rows.clone())).collect();
        take(&Typed { types: self.text, columns: &columns });
        Ok(())
    }

    fn number(&self, row: usize) -> usize {
        self.input.number(self.rows[row].1)
    }
}
