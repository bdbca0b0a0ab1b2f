//! Calls a function once for equal rows of a chunk, and not at all for results that are kept
//! (`memoize`).
//!
//! A deterministic function has equal results for equal rows. If its rows cost more than
//! [`EXPENSIVE`], it is worth to compare them, unless they do not repeat ([`Repeats`]). The results
//! of a `memoize` function are looked up in each chunk. A chunk whose rows have more than
//! [`LARGEST`] bytes is not compared, because that takes a copy of them.
//!
//! A result goes to all of its rows as soon as it is there. So the results of a chunk need no more
//! memory than without this, apart from those that wait for their store ([`Waiting`]).
//!
//! [`Repeats`]: crate::function::Repeats

use crate::batch::{self, Column, ColumnBuilder, Encode, Frame, Plan, Rows, Typed, append_key};
use crate::call::{Input, Output};
use crate::error::Error;
use crate::function::{EntryTypes, Function, KeptResults, Memo, OnError, milliseconds};
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
    let (distinct, called, waiting) = (&distinct, &unknown, Waiting::default());
    let mut spread = Spread { output, returns, kept, keeps_nulls, distinct, called, one, waiting };
    let outcome = call(&chosen, &mut spread);
    // Results that came before an error have cost as much as others.
    spread.store();
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
    kept: Option<&KeptResults>,
    distinct: &Distinct,
    returns: &DataType,
    output: &mut dyn Output,
) -> Result<Vec<Row>, Error> {
    let rows = distinct.firsts.iter().copied().enumerate();
    let Some(KeptResults { memo, types, .. }) = kept else { return Ok(rows.collect()) };
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
        let mut found = store.find(types, &keys).into_iter();
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

/// Results that wait for others before they are stored for later programs: until the end of the chunk,
/// for [`TOGETHER`] bytes, or for [`LONGEST_WAIT`]. A store takes about as long for many results as for
/// one.
#[derive(Default)]
struct Waiting {
    /// The numbers of the distinct rows, and the batches of their results.
    batches: Vec<(usize, Frame)>,
    bytes: usize,
    /// When the first of them came, in milliseconds.
    since: u64,
}

/// Gives the result of a distinct row to all rows that are like it, and to the memo.
struct Spread<'a> {
    output: &'a mut dyn Output,
    returns: &'a DataType,
    kept: Option<&'a KeptResults>,
    keeps_nulls: bool,
    distinct: &'a Distinct,
    called: &'a [Row],
    /// The result that is being given.
    one: ColumnBuilder,
    waiting: Waiting,
}

impl Spread<'_> {
    /// Keeps results that came now.
    fn keep(&mut self, kept: &KeptResults, first: usize, results: &Column<'_>) -> Result<(), Error> {
        let now = milliseconds();
        for row in 0..results.rows {
            let (number, _) = self.called[first + row];
            let is_valid = results.is_valid(row);
            if self.keeps_nulls || is_valid {
                kept.memo.keep(self.distinct.key(number), (results, row), now);
            }
            // A service that knows nothing today may know something tomorrow, so NULLs are not stored.
            if is_valid && kept.memo.store().is_some() {
                let batch = Memo::batch(results, row)?;
                if self.waiting.batches.is_empty() {
                    self.waiting.since = now;
                }
                self.waiting.bytes += batch.bytes().len();
                self.waiting.batches.push((number, batch));
            }
        }
        if self.waiting.bytes > TOGETHER || now.saturating_sub(self.waiting.since) > LONGEST_WAIT {
            self.store();
        }
        Ok(())
    }

    /// Stores the results that wait.
    fn store(&mut self) {
        let Waiting { batches, since, .. } = std::mem::take(&mut self.waiting);
        if let Some(KeptResults { memo, types, .. }) = self.kept
            && let Some(store) = memo.store()
        {
            let keyed =
                batches.iter().map(|(number, batch)| (self.distinct.bare_key(*number), batch.bytes()));
            store.keep(types, &keyed.collect::<Vec<_>>(), since);
        }
    }
}

impl Output for Spread<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        if let Some(kept) = self.kept {
            self.keep(kept, first, results)?;
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
        let columns: Vec<_> = columns.iter().map(|column| Rows::new(column, rows.clone())).collect();
        take(&Typed { types: self.text, columns: &columns });
        Ok(())
    }

    fn number(&self, row: usize) -> usize {
        self.input.number(self.rows[row].1)
    }
}
