//! A function of a server, and what its clients may send for it.
//!
//! Workers trust the batches that they get. So the server reads each batch as its types say. It
//! checks the values in the same way as an engine checks the values of a worker's results.
//!
//! # Seals
//! Some bytes are made by a guest: a partition of a table, or the saved state of an aggregate.
//! Python makes them with pickle, and a pickle can run any code when it is read. So the server adds
//! a code to the bytes that a worker gives out. The code is HMAC-SHA-256 with a key of the server's
//! own, cut to 16 bytes. Bytes go back to a worker only if they have the code of their function.

use super::counters::FunctionCounters;
use super::turns::Turns;
use crosslane::batch::{self, BATCH, Column, Encode, FAILURE, Frame, Header, Plan, Typed};
use crosslane::call::Reuse;
use crosslane::lane::LaneError;
use crosslane::values::unfit;
use crosslane::{ColumnBuilder, DataType, Entry, Function, Kind, display};
use crosslane_process::guest::LONG;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::HashSet;
use std::fmt::Display;
use std::io;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The number of bytes of a code.
const CODE: usize = 16;

/// Something that a client must not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Violation(pub(crate) String);

pub(crate) fn violation<T>(what: impl Display) -> Result<T, Violation> {
    Err(Violation(what.to_string()))
}

/// A batch of the rows that are called, and how many of its calls count for the `rate`. `None` if all
/// rows of the client's batch are called, or none.
pub(crate) type Called = Option<(Frame, usize)>;

/// A function, and the workers that call it.
#[derive(Debug)]
pub(crate) struct ServedFunction {
    pub(crate) function: Arc<Function>,
    /// The index of its [`Workers`](super::workers::Workers).
    pub(crate) workers: usize,
    /// How long workers work on its calls, in nanoseconds: a moving mean.
    mean: AtomicU64,
    /// How many exchanges have ended.
    pub(crate) ended: AtomicU64,
    pub(crate) counters: Arc<FunctionCounters>,
    /// The uses of its store of results, if it has one.
    pub(crate) turns: Arc<Turns>,
}

impl ServedFunction {
    pub(crate) fn new(function: Arc<Function>, workers: usize) -> Self {
        Self {
            function,
            workers,
            mean: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            counters: Arc::default(),
            turns: Arc::default(),
        }
    }

    /// The same function with other workers. It has the same counters.
    pub(super) fn with_workers(&self, workers: usize) -> Self {
        Self {
            function: Arc::clone(&self.function),
            workers,
            mean: AtomicU64::new(self.mean.load(Relaxed)),
            ended: AtomicU64::new(self.ended.load(Relaxed)),
            counters: Arc::clone(&self.counters),
            turns: Arc::clone(&self.turns),
        }
    }

    /// Adds the time that a worker has worked on a call to the mean. The time before, when the call
    /// waited for the worker, says nothing about the function.
    pub(crate) fn learn(&self, entry: Entry, took: Duration) {
        if entry == Entry::Call {
            let (mean, took) = (self.mean.load(Relaxed), took.as_nanos() as u64);
            self.mean.store(if mean == 0 { took } else { mean - mean / 8 + took / 8 }, Relaxed);
        }
    }

    /// Counts a message of a worker.
    pub(crate) fn count(&self, entry: Entry, header: &Header) {
        let stats = self.function.stats.here();
        match header.kind {
            FAILURE => self.counters.failures.add(1),
            _ if has_rows(entry) => stats.rows.add(u64::from(header.rows)),
            _ => {}
        }
        if entry == Entry::Call {
            stats.by_columns.add(u64::from(header.by_columns()));
        }
        stats.guest.add(header.worked);
        if header.errors > 0 || header.retries > 0 {
            stats.errors.add(u64::from(header.errors));
            stats.retries.add(u64::from(header.retries));
        }
    }

    /// Counts an exchange whose worker was lost.
    pub(crate) fn lose(&self) {
        self.function.stats.here().calls.add(1);
        self.counters.failures.add(1);
    }

    /// Whether its calls are known to be long.
    pub(crate) fn is_long(&self) -> bool {
        self.mean.load(Relaxed) > LONG.as_nanos() as u64
    }

    /// The calls of a client's batch that count for the function's `rate`: the rows that are not NULL
    /// without a call. 0 if there is no `rate`.
    pub(crate) fn calls(&self, frame: &[u8], entry: Entry) -> Result<usize, Violation> {
        let Some(most) = self.function.most_calls().filter(|_| entry == Entry::Call) else { return Ok(0) };
        let admits = self.function.spec.admits_null.iter().copied();
        // Arguments of any number may be columns of their own.
        let admits = admits.clone().chain(iter::repeat(admits.last().unwrap_or_default()));
        let calls = self.with_columns(frame, entry, |header, _, columns| {
            let skipping: Vec<_> =
                columns.iter().zip(admits).filter(|(_, admits)| !admits).map(|(column, _)| column).collect();
            let is_called = |row: &usize| skipping.iter().all(|column| column.is_valid(*row));
            Ok((0..header.rows as usize).filter(is_called).count())
        })?;
        if calls > most {
            return violation(format!(
                "{}: a batch of {calls} calls, where {most} may begin at once",
                self.function.name()
            ));
        }
        Ok(calls)
    }

    /// Reads and checks the columns of a client's batch, and passes them to `take` with the types that
    /// the call names.
    fn with_columns<T>(
        &self,
        frame: &[u8],
        entry: Entry,
        take: impl FnOnce(&Header, Option<&str>, &[Column<'_>]) -> Result<T, Violation>,
    ) -> Result<T, Violation> {
        let wrong = |what: &dyn Display| Violation(format!("{}: {what}", self.function.name()));
        let header = batch::header(frame).map_err(|error| wrong(&error))?;
        let text = batch::types(frame).map_err(|error| wrong(&error))?;
        let signature = text.map(|text| self.function.signature.for_types(text)).transpose();
        let signature = signature.map_err(|error| wrong(&error))?;
        let signature = signature.as_ref().unwrap_or(&self.function.signature);
        let types = self.function.spec.kind.entry(entry, signature);
        let types = types.ok_or_else(|| wrong(&format!("it has no entry {entry:?}")))?;
        // The batches that open and end such a stream are empty.
        let is_empty = entry == Entry::Iterate && header.nodes == 0 && header.rows == 0;
        let types: Vec<&DataType> = if is_empty { Vec::new() } else { types.takes().collect() };
        if types.contains(&&DataType::Any) {
            return Err(wrong(&"a batch that does not say which types it has"));
        }
        let columns = batch::columns(frame, types.into_iter()).map_err(|error| wrong(&error))?;
        take(&header, text, &columns)
    }

    /// Checks the values of a client's batch.
    fn check(&self, columns: &[Column<'_>]) -> Result<(), Violation> {
        let Some((row, what)) = columns.iter().find_map(|column| unfit(column).pop_first()) else {
            return Ok(());
        };
        // `unfit` describes values as results.
        let (name, what) = (self.function.name(), what.trim_start_matches("returned "));
        violation(format!("{name}: a client sent {what}, in row {} of a batch", row + 1))
    }

    /// Looks for the results of a client's batch ([`Reuse::new`]).
    pub(crate) fn look(&self, frame: &[u8], most: usize) -> Result<Option<(Reuse, Called)>, Violation> {
        self.with_columns(frame, Entry::Call, |header, types, columns| {
            self.check(columns)?;
            let rows = header.rows as usize;
            let Some(reuse) = Reuse::new(&self.function, columns, rows, most) else { return Ok(None) };
            if reuse.called() == 0 || reuse.called() == rows {
                return Ok(Some((reuse, None)));
            }
            // Without memory for it, all rows are called.
            let Ok(called) = reuse.frame(columns, types) else { return Ok(None) };
            let calls = self.calls(called.bytes(), Entry::Call)?;
            Ok(Some((reuse, Some((called, calls)))))
        })
    }

    /// Reads and checks a client's batch, and gives it to `pass` in the form that a worker's lane
    /// takes, with a function that shows the arguments of the first row.
    pub(crate) fn read(
        &self,
        seal: &Seal,
        frame: &[u8],
        entry: Entry,
        states: &mut States,
        pass: impl FnOnce(usize, &dyn Encode, &dyn Fn() -> String) -> Result<Option<u64>, LaneError>,
    ) -> Result<Result<Option<u64>, LaneError>, Violation> {
        let wrong = |what: &dyn Display| Violation(format!("{}: {what}", self.function.name()));
        self.with_columns(frame, entry, |header, text, columns| {
            self.check(columns)?;
            if self.function.spec.kind == Kind::Aggregate && columns[0].validity.is_some() {
                return Err(wrong(&"a state without a number"));
            }
            let types = text.map(Arc::from);
            let opened = match sealed_column(entry) {
                Some(at) => {
                    Some((at, seal.open(&self.function, entry, &columns[at]).map_err(|what| wrong(&what))?))
                }
                None => None,
            };
            let mut sent: Vec<_> = columns.iter().map(|column| column as &dyn Encode).collect();
            if let Some((at, opened)) = &opened {
                sent[*at] = opened;
            }
            let first = || {
                let signature = text.and_then(|text| self.function.signature.for_types(text).ok());
                let signature = signature.as_ref().unwrap_or(&self.function.signature);
                display::arguments(&signature.parameters, columns, 0)
            };
            let typed = Typed { types: types.as_ref(), columns: &sent };
            let passed = pass(header.rows as usize, &typed, &first);
            if let Ok(Some(_)) = passed {
                states.note(entry, columns);
                if entry == Entry::Update {
                    // The reply to an update has no rows.
                    self.function.stats.here().rows.add(u64::from(header.rows));
                }
            }
            Ok(passed)
        })
    }
}

/// The states of aggregates that a worker keeps for a client.
#[derive(Debug, Default)]
pub(crate) struct States(HashSet<i64>);

impl States {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn note(&mut self, entry: Entry, columns: &[Column<'_>]) {
        let numbers =
            |at: usize| columns.get(at).and_then(|column| column.values::<i64>()).unwrap_or_default();
        match entry {
            Entry::Update | Entry::Load => {
                // Rows of a group often follow one another, so each run is added once.
                self.0.extend(numbers(0).chunk_by(|a, b| a == b).map(|run| run[0]));
            }
            Entry::Combine => {
                for (row, (target, source)) in numbers(0).iter().zip(numbers(1)).enumerate() {
                    self.0.insert(*target);
                    if !batch::bit(columns[2].data, row) {
                        self.0.remove(source);
                    }
                }
            }
            Entry::Forget => {
                for number in numbers(0) {
                    self.0.remove(number);
                }
            }
            _ => {}
        }
    }
}

/// Whether an entry's replies have rows of the function, and not states or partitions.
fn has_rows(entry: Entry) -> bool {
    matches!(entry, Entry::Call | Entry::Scan | Entry::Map | Entry::Iterate)
}

/// The column of an entry's batches that has bytes made by a guest.
fn sealed_column(entry: Entry) -> Option<usize> {
    match entry {
        Entry::Scan => Some(0),
        Entry::Load => Some(1),
        _ => None,
    }
}

/// A key. With it, the server recognises the bytes that its workers gave out.
pub(crate) struct Seal([u8; 32]);

impl Seal {
    /// Makes a seal with a new key.
    pub(crate) fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(key))
    }

    /// The code of some bytes. It also depends on the entry and the function: a state is no
    /// partition, and one function's state is not another's.
    fn code(&self, function: &Function, opens: Entry, bytes: &[u8]) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        code.update(&(opens as u32).to_le_bytes());
        let name = function.name().as_bytes();
        code.update(&(name.len() as u64).to_le_bytes());
        code.update(name);
        code.update(bytes);
        code
    }

    /// Adds codes to the bytes in a worker's reply. Returns `None` if the reply has no such bytes,
    /// or cannot be read. In the second case its client finds the error.
    pub(crate) fn seal(
        &self,
        served: &ServedFunction,
        entry: Entry,
        header: &Header,
        frame: &[u8],
    ) -> Option<Vec<u8>> {
        let opens = match entry {
            Entry::Partitions => Entry::Scan,
            Entry::Save => Entry::Load,
            _ => return None,
        };
        if header.kind != BATCH {
            return None;
        }
        let column = batch::column(frame, &DataType::Blob).ok()?;
        let mut sealed = ColumnBuilder::new(&DataType::Blob);
        for row in 0..column.rows {
            if !column.is_valid(row) {
                sealed.null();
                continue;
            }
            let bytes = column.bytes(row);
            let code = self.code(&served.function, opens, bytes).finalize().into_bytes();
            sealed.bytes(&[&code[..CODE], bytes].concat()).ok()?;
        }
        let mut plan = Plan::default();
        sealed.plan(&mut plan);
        let mut frame = vec![0; plan.size()];
        sealed.write(&mut plan.start(&mut frame, *header));
        Some(frame)
    }

    /// Checks the codes of bytes, and returns the bytes that a worker gave out.
    fn open(&self, function: &Function, entry: Entry, column: &Column<'_>) -> Result<ColumnBuilder, String> {
        let mut opened = ColumnBuilder::new(&DataType::Blob);
        for row in 0..column.rows {
            if !column.is_valid(row) {
                opened.null();
                continue;
            }
            let split = column.bytes(row).split_at_checked(CODE);
            let genuine = split.filter(|(code, bytes)| {
                self.code(function, entry, bytes).verify_truncated_left(code).is_ok()
            });
            let Some((_, bytes)) = genuine else {
                return Err(
                    "bytes that no worker of this server has given out; it may have been started anew".into(),
                );
            };
            opened.bytes(bytes).map_err(|error| error.to_string())?;
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::FunctionSpec;

    fn served(name: &str) -> ServedFunction {
        ServedFunction::new(
            Arc::new(Function::new(0, FunctionSpec::new(format!("{name}(x BIGINT) -> BIGINT"))).unwrap()),
            0,
        )
    }

    fn frame(bytes: &[&[u8]]) -> Vec<u8> {
        let mut column = ColumnBuilder::new(&DataType::Blob);
        bytes.iter().for_each(|bytes| column.bytes(bytes).unwrap());
        column.null();
        batch::Frame::new(&column, bytes.len() + 1).unwrap().bytes().to_vec()
    }

    fn sealed(seal: &Seal, served: &ServedFunction, entry: Entry, bytes: &[&[u8]]) -> Vec<u8> {
        let frame = frame(bytes);
        let header = Header { kind: BATCH, ..batch::header(&frame).unwrap() };
        seal.seal(served, entry, &header, &frame).unwrap()
    }

    #[test]
    fn what_a_worker_gave_out_goes_back_to_the_same_function_only() {
        let (seal, other) = (Seal::new().unwrap(), Seal::new().unwrap());
        let (f, g) = (served("f"), served("g"));
        let given = sealed(&seal, &f, Entry::Save, &[b"state", b""]);
        let column = batch::column(&given, &DataType::Blob).unwrap();
        let opened = seal.open(&f.function, Entry::Load, &column).unwrap();
        assert_eq!(batch::Frame::new(&opened, 3).unwrap().bytes(), frame(&[b"state", b""]));
        assert!(seal.open(&g.function, Entry::Load, &column).is_err(), "another function");
        assert!(seal.open(&f.function, Entry::Scan, &column).is_err(), "another entry");
        assert!(other.open(&f.function, Entry::Load, &column).is_err(), "another server");
        for forged in [&b"state"[..], &[0; CODE], &[&[0; CODE][..], b"state"].concat()] {
            let forged = frame(&[forged]);
            let column = batch::column(&forged, &DataType::Blob).unwrap();
            assert!(seal.open(&f.function, Entry::Load, &column).is_err());
        }
    }

    #[test]
    fn only_bytes_that_guests_read_again_are_sealed() {
        let seal = Seal::new().unwrap();
        let frame = frame(&[b"x"]);
        let header = Header { kind: BATCH, ..batch::header(&frame).unwrap() };
        for entry in [Entry::Call, Entry::Scan, Entry::Finish, Entry::Map] {
            assert!(seal.seal(&served("f"), entry, &header, &frame).is_none());
        }
    }

    #[test]
    fn states_are_known_until_they_are_forgotten() {
        let mut states = States::default();
        let numbers = |numbers: &[i64]| {
            let mut column = ColumnBuilder::new(&DataType::BigInt);
            numbers.iter().for_each(|number| column.fixed(*number));
            column
        };
        let note = |states: &mut States, entry, builders: Vec<ColumnBuilder>, types: &[&DataType], rows| {
            let frame = batch::Frame::new(&builders, rows).unwrap();
            let columns = batch::columns(frame.bytes(), types.iter().copied()).unwrap();
            states.note(entry, &columns);
        };
        let big = &DataType::BigInt;
        note(&mut states, Entry::Update, vec![numbers(&[1, 1, 2, 1])], &[big], 4);
        note(&mut states, Entry::Forget, vec![numbers(&[1])], &[big], 1);
        assert!(!states.is_empty());
        let mut keep = ColumnBuilder::new(&DataType::Boolean);
        keep.boolean(false);
        note(
            &mut states,
            Entry::Combine,
            vec![numbers(&[3]), numbers(&[2]), keep],
            &[big, big, &DataType::Boolean],
            1,
        );
        note(&mut states, Entry::Finish, vec![numbers(&[9])], &[big], 1);
        note(&mut states, Entry::Forget, vec![numbers(&[3])], &[big], 1);
        assert!(states.is_empty());
    }
}
