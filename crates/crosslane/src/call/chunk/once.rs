//! Calls a function once for equal rows of a chunk, and not at all for results that are kept
//! (`memoize`).
//!
//! A deterministic function has equal results for equal rows. If its rows cost more than
//! [`EXPENSIVE`], it is worth to compare them, unless they do not repeat ([`Repeats`]). The results
//! of a `memoize` function are looked up in each chunk. A chunk of more than [`LARGEST`] bytes is
//! not compared, because that takes a copy of it.
//!
//! [`Repeats`]: crate::function::Repeats

use crate::batch::{self, Body, Column, ColumnBuilder, Encode, Frame, Plan, Rows, append_key};
use crate::call::{Input, Output, Results};
use crate::error::Error;
use crate::function::{EntryTypes, Function, OnError};
use crate::lane::Entry;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The cost of a row from which on rows are compared. A comparison takes a fiftieth of this.
const EXPENSIVE: Duration = Duration::from_micros(10);
/// The most bytes of arguments that are compared.
const LARGEST: usize = 64 << 20;

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
    let distinct = Distinct::new(function.types.as_deref().unwrap_or_default(), &columns, rows);
    if function.memo.is_none() {
        function.repeats.learn(rows, distinct.firsts.len());
        if distinct.firsts.len() == rows {
            return call(input, output);
        }
    }
    let mut known = ColumnBuilder::new(returns);
    // For each distinct row, its place among the known results, or among the called rows.
    let mut places = Vec::with_capacity(distinct.firsts.len());
    let mut called = Vec::new();
    for (number, first) in distinct.firsts.iter().enumerate() {
        let memo = function.memo.as_ref();
        places.push(if memo.is_some_and(|memo| memo.find(distinct.key(number), &mut known)) {
            Ok(known.rows() - 1)
        } else {
            called.push((number, *first));
            Err(called.len() - 1)
        });
    }
    let mut fresh = Results::new(returns.clone());
    if !called.is_empty() {
        let chosen = Chosen::new(input, &columns, types, function.types.as_ref(), &called)?;
        let outcome = call(&chosen, &mut fresh);
        keep(function, &distinct, &called, &fresh);
        outcome?;
    }
    function.stats.here().reused.add((rows - called.len()) as u64);
    let (known, fresh) = (known.column(returns), fresh.column());
    let mut results = ColumnBuilder::new(returns);
    let copied = results.reserve(rows).and_then(|()| {
        distinct.numbers.iter().try_for_each(|number| match places[*number as usize] {
            Ok(row) => results.copy(&known, row),
            Err(row) => results.copy(&fresh, row),
        })
    });
    copied.map_err(|error| Error::Engine(error.to_string()))?;
    output.accept(0, &results.column(returns))
}

/// Keeps the results of the called rows.
fn keep(function: &Function, distinct: &Distinct, called: &[(usize, usize)], results: &Results) {
    let Some(memo) = &function.memo else { return };
    let column = results.column();
    for ((number, _), row) in called.iter().zip(0..column.rows) {
        // With `on_error = null`, a NULL may be a call that failed.
        if column.is_valid(row) || function.spec.on_error == OnError::Fail {
            memo.keep(distinct.key(*number), &column, row);
        }
    }
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

/// The distinct rows of a chunk.
struct Distinct {
    /// The first row that is like this one, for each distinct row.
    firsts: Vec<usize>,
    /// For each row of the chunk, the number of its distinct row.
    numbers: Vec<u32>,
    keys: Vec<u8>,
    /// Where the key of each distinct row ends.
    ends: Vec<usize>,
}

impl Distinct {
    /// Compares the rows of a chunk. Keys begin with the types of the columns, where functions of
    /// one memory take several.
    fn new(types: &str, columns: &[Column<'_>], rows: usize) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut table = HashTable::<u32>::with_capacity(rows);
        let mut hashes: Vec<u64> = Vec::with_capacity(rows);
        let mut distinct = Self {
            firsts: Vec::new(),
            numbers: Vec::with_capacity(rows),
            keys: Vec::new(),
            ends: Vec::new(),
        };
        for row in 0..rows {
            let from = distinct.keys.len();
            distinct.keys.extend_from_slice(types.as_bytes());
            append_key(columns, row, &mut distinct.keys);
            let key = &distinct.keys[from..];
            let hash = HASHER.hash_one(key);
            let known = table.find(hash, |number| distinct.key(*number as usize) == key).copied();
            distinct.numbers.push(known.unwrap_or_else(|| {
                let number = distinct.firsts.len() as u32;
                hashes.push(hash);
                table.insert_unique(hash, number, |number| hashes[*number as usize]);
                number
            }));
            if known.is_some() {
                distinct.keys.truncate(from);
            } else {
                distinct.firsts.push(row);
                distinct.ends.push(distinct.keys.len());
            }
        }
        distinct
    }

    fn key(&self, number: usize) -> &[u8] {
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[number]]
    }
}

/// Some rows of an input.
struct Chosen<'a> {
    input: &'a dyn Input,
    /// The distinct row, and its row in the input.
    rows: &'a [(usize, usize)],
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
        rows: &'a [(usize, usize)],
    ) -> Result<Self, Error> {
        let chosen = |column: &Column<'_>| {
            let mut chosen = ColumnBuilder::new(column.data_type);
            chosen.reserve(rows.len())?;
            rows.iter().try_for_each(|(_, row)| chosen.copy(column, *row))?;
            Ok(chosen)
        };
        let columns: Result<_, batch::builder::Overflow> = columns.iter().map(chosen).collect();
        let columns = columns.map_err(|error| Error::Engine(error.to_string()))?;
        Ok(Self { input, rows, types, text, columns })
    }
}

impl Input for Chosen<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns = self.columns.iter().zip(self.types.takes());
        let columns: Vec<_> = columns.map(|(column, data_type)| column.column(data_type)).collect();
        let columns = columns.iter().map(|column| Rows::new(column, rows.clone())).collect();
        take(&Typed { text: self.text, columns });
        Ok(())
    }

    fn number(&self, row: usize) -> usize {
        self.input.number(self.rows[row].1)
    }
}

/// Columns, with their types as text.
struct Typed<'a> {
    text: Option<&'a Arc<str>>,
    columns: Vec<Rows<'a>>,
}

impl Encode for Typed<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.text.into_iter().for_each(|text| plan.types(text));
        self.columns.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.columns.write(body);
    }
}
