//! Calls a function once for equal rows of a chunk, and not at all for results that are kept
//! (`memoize`).
//!
//! A deterministic function has equal results for equal rows. If its rows cost more than
//! [`EXPENSIVE`], it is worth to compare them, unless they do not repeat ([`Repeats`]). The results
//! of a `memoize` function are looked up in each chunk. A chunk whose rows have more than
//! [`LARGEST`] bytes is not compared, because that takes a copy of them.
//!
//! A result goes to all of its rows as soon as it is there. So the results of a chunk need no more
//! memory than without this.
//!
//! [`Repeats`]: crate::function::Repeats

use crate::batch::{self, Body, Column, ColumnBuilder, Encode, Frame, Plan, Rows, append_key};
use crate::call::{Input, Output};
use crate::error::Error;
use crate::function::{EntryTypes, Function, Memo, OfTypes, OnError, milliseconds};
use crate::lane::Entry;
use crate::types::DataType;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The cost of a row from which on rows are compared. A comparison takes a fiftieth of this.
const EXPENSIVE: Duration = Duration::from_micros(10);
/// The most bytes that are compared.
const LARGEST: usize = 64 << 20;
/// The bytes of kept results that go to the output at once.
const TOGETHER: usize = 1 << 20;
/// How long results wait for others before they are stored, in milliseconds.
const LONGEST_WAIT: u64 = 500;
/// There is no further row.
const NONE: u32 = u32::MAX;

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
    let unknown = known(kept, &distinct, returns, output)?;
    function.stats.here().reused.add((rows - unknown.len()) as u64);
    if unknown.is_empty() {
        return Ok(());
    }
    let chosen = Chosen::new(input, &columns, types, function.types.as_ref(), &unknown)?;
    // With `on_error = null`, a NULL may be a call that failed.
    let keeps_nulls = function.spec.on_error == OnError::Fail;
    let one = ColumnBuilder::new(returns);
    let mut stored = Stored { of_types: kept, batches: Vec::new(), bytes: 0, since: milliseconds() };
    let mut spread = Spread {
        output,
        returns,
        kept,
        stored: &mut stored,
        keeps_nulls,
        distinct: &distinct,
        called: &unknown,
        one,
    };
    let outcome = call(&chosen, &mut spread);
    // Results that came before an error have cost as much as others.
    stored.write(&distinct);
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

/// A distinct row: its number, and the first row of the chunk that is like it.
type Row = (usize, usize);

/// Gives the kept results to the output. Returns the distinct rows without one.
fn known(
    of_types: Option<&OfTypes>,
    distinct: &Distinct,
    returns: &DataType,
    output: &mut dyn Output,
) -> Result<Vec<Row>, Error> {
    let rows = distinct.firsts.iter().copied().enumerate();
    let Some(of_types) = of_types else { return Ok(rows.collect()) };
    let memo = &of_types.memo;
    let mut unknown = Vec::new();
    let mut kept = ColumnBuilder::new(returns);
    // For each distinct row, its place among the kept results.
    let mut places = vec![NONE; distinct.firsts.len()];
    for (number, first) in rows {
        if memo.find(distinct.key(number), &mut kept) {
            places[number] = kept.rows() as u32 - 1;
        } else {
            unknown.push((number, first));
        }
    }
    if let Some(store) = memo.store().filter(|_| !unknown.is_empty()) {
        let keys: Vec<&[u8]> = unknown.iter().map(|(number, _)| distinct.bare_key(*number)).collect();
        let mut found = store.find(&of_types.types, &keys).into_iter();
        unknown.retain(|(number, _)| {
            let Some((batch, made)) = found.next().flatten() else { return true };
            if memo.adopt(distinct.key(*number), (&batch, made), &mut kept) {
                places[*number] = kept.rows() as u32 - 1;
                return false;
            }
            true
        });
    }
    let kept = kept.column(returns);
    let mut together = ColumnBuilder::new(returns);
    for (row, number) in distinct.numbers.iter().enumerate() {
        let place = places[*number as usize];
        if place != NONE {
            together.copy(&kept, place as usize)?;
        }
        let is_last = row + 1 == distinct.numbers.len() || place == NONE || together.size() > TOGETHER;
        if is_last && together.rows() > 0 {
            let end = if place == NONE { row } else { row + 1 };
            output.accept(end - together.rows(), &together.column(returns))?;
            together.clear();
        }
    }
    Ok(unknown)
}

/// Results that are to be stored for later programs. A store takes as long for many results as for one,
/// so they wait for each other: until the end of the chunk, for [`TOGETHER`] bytes, or for
/// [`LONGEST_WAIT`].
struct Stored<'a> {
    of_types: Option<&'a OfTypes>,
    /// The numbers of the distinct rows, and the batches of their results.
    batches: Vec<(usize, Frame)>,
    bytes: usize,
    /// When the first of them came, in milliseconds.
    since: u64,
}

impl Stored<'_> {
    /// Adds results that came now.
    fn add(
        &mut self,
        results: &Column<'_>,
        called: &[Row],
        distinct: &Distinct,
        now: u64,
    ) -> Result<(), Error> {
        if self.of_types.is_none_or(|of_types| of_types.memo.store().is_none()) {
            return Ok(());
        }
        if self.batches.is_empty() {
            self.since = now;
        }
        // A service that knows nothing today may know something tomorrow, so NULLs are not stored.
        for row in (0..results.rows).filter(|row| results.is_valid(*row)) {
            let batch = Memo::batch(results, row)?;
            self.bytes += batch.bytes().len();
            self.batches.push((called[row].0, batch));
        }
        if self.bytes > TOGETHER || now.saturating_sub(self.since) > LONGEST_WAIT {
            self.write(distinct);
        }
        Ok(())
    }

    fn write(&mut self, distinct: &Distinct) {
        let Some(OfTypes { memo, types, .. }) = self.of_types else { return };
        if let Some(store) = memo.store() {
            let key = |number: &usize| distinct.bare_key(*number);
            let results: Vec<_> =
                self.batches.iter().map(|(number, batch)| (key(number), batch.bytes())).collect();
            store.keep(types, &results, self.since);
        }
        self.batches.clear();
        self.bytes = 0;
    }
}

/// Gives the result of a distinct row to all rows that are like it, and to the memo.
struct Spread<'a, 'b> {
    output: &'a mut dyn Output,
    returns: &'a DataType,
    kept: Option<&'a OfTypes>,
    stored: &'a mut Stored<'b>,
    keeps_nulls: bool,
    distinct: &'a Distinct,
    called: &'a [Row],
    /// The result that is being given.
    one: ColumnBuilder,
}

impl Output for Spread<'_, '_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        let made = milliseconds();
        self.stored.add(results, &self.called[first..], self.distinct, made)?;
        for row in 0..results.rows {
            let (number, _) = self.called[first + row];
            if let Some(kept) = self.kept.filter(|_| self.keeps_nulls || results.is_valid(row)) {
                kept.memo.keep(self.distinct.key(number), (results, row), made);
            }
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

/// The distinct rows of a chunk.
struct Distinct {
    /// The first row that is like this one, for each distinct row.
    firsts: Vec<usize>,
    /// For each row of the chunk, the number of its distinct row.
    numbers: Vec<u32>,
    /// For each row of the chunk, the next row that is like it.
    next: Vec<u32>,
    keys: Vec<u8>,
    /// Where the key of each distinct row ends.
    ends: Vec<usize>,
}

impl Distinct {
    /// Compares the rows of a chunk. Keys begin with the hash of the types of the columns, if
    /// functions of several types share a memo. `None` if the keys are too large.
    fn new(types: Option<u64>, columns: &[Column<'_>], rows: usize) -> Option<Self> {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut table = HashTable::<u32>::with_capacity(rows);
        let mut hashes: Vec<u64> = Vec::with_capacity(rows);
        let mut lasts: Vec<u32> = Vec::with_capacity(rows);
        let mut distinct = Self {
            firsts: Vec::new(),
            numbers: Vec::with_capacity(rows),
            next: vec![NONE; rows],
            keys: Vec::new(),
            ends: Vec::new(),
        };
        for row in 0..rows {
            let from = distinct.keys.len();
            if from > LARGEST {
                return None;
            }
            distinct.keys.extend(types.iter().flat_map(|types| types.to_ne_bytes()));
            append_key(columns, row, &mut distinct.keys);
            let key = &distinct.keys[from..];
            let hash = HASHER.hash_one(key);
            let known = table.find(hash, |number| distinct.key(*number as usize) == key).copied();
            if let Some(number) = known {
                distinct.keys.truncate(from);
                distinct.numbers.push(number);
                let last = std::mem::replace(&mut lasts[number as usize], row as u32);
                distinct.next[last as usize] = row as u32;
                continue;
            }
            let number = distinct.firsts.len() as u32;
            hashes.push(hash);
            table.insert_unique(hash, number, |number| hashes[*number as usize]);
            distinct.numbers.push(number);
            distinct.firsts.push(row);
            distinct.ends.push(distinct.keys.len());
            lasts.push(row as u32);
        }
        Some(distinct)
    }

    fn key(&self, number: usize) -> &[u8] {
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[number]]
    }

    /// The key of a distinct row without the hash of the types.
    fn bare_key(&self, number: usize) -> &[u8] {
        &self.key(number)[size_of::<u64>()..]
    }

    /// The rows of the chunk that are like a distinct row.
    fn rows(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        let next = |row: &usize| (self.next[*row] != NONE).then(|| self.next[*row] as usize);
        std::iter::successors(Some(self.firsts[number]), next)
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
        let chosen = |column: &Column<'_>| {
            let mut chosen = ColumnBuilder::new(column.data_type);
            chosen.reserve(rows.len())?;
            rows.iter().try_for_each(|(_, row)| chosen.copy(column, *row))?;
            Ok(chosen)
        };
        let columns: Result<_, Error> = columns.iter().map(chosen).collect();
        Ok(Self { input, rows, types, text, columns: columns? })
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
