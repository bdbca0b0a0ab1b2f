//! The results that a function's `memoize` keeps, by the arguments.
//!
//! The results are in [`SHARDS`] shards, each with a lock of its own. A shard has two generations.
//! New results go to the young one. When the young one has half of the shard's bytes, it becomes
//! the old one, and the results of the old one are forgotten. A result that is found in the old one
//! is copied to the young one. So results stay that calls ask for, and each shard keeps its limit
//! without a list of its results by age.
//!
//! With `cache`, the results are also in a store that outlives the program ([`Store`]). What is found
//! there is kept here, too.

use crate::batch::{self, Column, ColumnBuilder, Frame, Rows};
use crate::error::Error;
use crate::function::Store;
use crate::types::DataType;
use crate::types::values::unfit;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most bytes of results of a function with `cache` and without `memoize`.
pub(super) const BESIDE_CACHE: u64 = 32 << 20;
/// How far the clock of the program may have been ahead that has made a result, in milliseconds.
const MOST_AHEAD: u64 = 60_000;
/// How many threads can look up results at once, about.
const SHARDS: usize = 16;

/// The kept results of a function.
#[derive(Debug)]
pub(crate) struct Memo {
    /// The type of the results.
    returns: DataType,
    /// Arguments may come from strangers. They cannot foresee the hashes.
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// How long a result holds, in milliseconds.
    ttl: Option<u64>,
    store: OnceLock<Arc<dyn Store>>,
}

#[derive(Debug)]
struct Shard {
    young: Generation,
    old: Generation,
    /// The most bytes of a generation.
    most: usize,
}

/// Results in the order in which they came.
#[derive(Debug)]
struct Generation {
    /// The numbers of the results, by their hashes.
    numbers: HashTable<u32>,
    hashes: Vec<u64>,
    keys: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
    results: ColumnBuilder,
    /// When each was made, in milliseconds since 1970.
    made: Vec<u64>,
}

/// The current time, in milliseconds since 1970.
pub(crate) fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64
}

impl Memo {
    /// No results yet, of this type. They may take about this number of bytes, and hold for the time
    /// `ttl`.
    pub(crate) fn new(returns: DataType, bytes: u64, ttl: Option<Duration>) -> Self {
        let most = (bytes / (2 * SHARDS as u64)).try_into().unwrap_or(usize::MAX);
        let shard = || Shard { young: Generation::new(&returns), old: Generation::new(&returns), most };
        let shards = std::array::from_fn(|_| Mutex::new(shard()));
        let ttl = ttl.map(|ttl| ttl.as_millis() as u64);
        Self { returns, hasher: RandomState::new(), shards, ttl, store: OnceLock::new() }
    }

    /// The hash of these types. Keys of arguments begin with it, because arguments of other types may
    /// have the same bytes.
    pub(crate) fn hash_of(&self, types: &str) -> u64 {
        self.hasher.hash_one(types)
    }

    /// Has results kept in a store, too. Only the first store counts.
    pub(super) fn set_store(&self, store: Arc<dyn Store>) {
        let _ = self.store.set(store);
    }

    /// The store of results, if there is one.
    pub(crate) fn store(&self) -> Option<&dyn Store> {
        self.store.get().map(|store| &**store)
    }

    /// From when on a result must have been made to hold now.
    fn oldest(&self) -> u64 {
        self.ttl.map_or(0, |ttl| milliseconds().saturating_sub(ttl))
    }

    /// Looks for the result of some arguments ([`crate::batch::append_key`]), and appends it to
    /// `results`. False if it is not kept, or if `results` is full.
    pub(crate) fn find(&self, key: &[u8], results: &mut ColumnBuilder) -> bool {
        let hash = self.hasher.hash_one(key);
        let oldest = self.oldest();
        let mut shard = self.lock(hash);
        let Shard { young, old, .. } = &mut *shard;
        if let Some(number) = young.find(hash, key, oldest) {
            return results.copy(&young.results.column(&self.returns), number).is_ok();
        }
        let Some(number) = old.find(hash, key, oldest) else { return false };
        let column = old.results.column(&self.returns);
        let is_found = results.copy(&column, number).is_ok();
        young.add(hash, key, (&column, number), old.made[number]);
        shard.age(&self.returns);
        is_found
    }

    /// Keeps the result in a row of a column, which was made at this time ([`milliseconds`]).
    pub(crate) fn keep(&self, key: &[u8], (results, row): (&Column<'_>, usize), made: u64) {
        let hash = self.hasher.hash_one(key);
        let oldest = self.oldest();
        let mut shard = self.lock(hash);
        // Another thread may have kept it meanwhile.
        if shard.young.find(hash, key, oldest).is_none() {
            shard.young.add(hash, key, (results, row), made);
            shard.age(&self.returns);
        }
    }

    /// Appends a result of the store to `results`, and keeps it. Returns false if the result does not
    /// hold any more, or if it is no result. Any program that may write the store's file could have
    /// written it.
    pub(crate) fn adopt(&self, key: &[u8], (batch, made): (&[u8], u64), results: &mut ColumnBuilder) -> bool {
        let frame = Frame::of(batch);
        let Ok(column) = batch::column(frame.bytes(), &self.returns) else { return false };
        let is_past = made <= milliseconds() + MOST_AHEAD;
        let holds = is_past && made >= self.oldest() && column.rows == 1 && unfit(&column).is_empty();
        if !holds || results.copy(&column, 0).is_err() {
            return false;
        }
        self.keep(key, (&column, 0), made);
        true
    }

    /// The batch of a result, for a store.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn batch(results: &Column<'_>, row: usize) -> Result<Frame, Error> {
        Frame::new(&vec![Rows::new(results, row..row + 1)], 1)
    }

    fn lock(&self, hash: u64) -> std::sync::MutexGuard<'_, Shard> {
        // The table takes the other bits of a hash.
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// Makes the young generation the old one if it is full.
    fn age(&mut self, returns: &DataType) {
        if self.young.size() > self.most {
            self.old = std::mem::replace(&mut self.young, Generation::new(returns));
            if self.old.size() > 2 * self.most {
                // Its last result alone exceeds the limit.
                self.old = Generation::new(returns);
            }
        }
    }
}

impl Generation {
    fn new(returns: &DataType) -> Self {
        let results = ColumnBuilder::new(returns);
        let (hashes, keys, ends, made) = Default::default();
        Self { numbers: HashTable::new(), hashes, keys, ends, results, made }
    }

    fn key(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[number]]
    }

    /// The number of a result that was made at this time or later. An older one is forgotten.
    fn find(&mut self, hash: u64, key: &[u8], oldest: u64) -> Option<usize> {
        let found = self.numbers.find(hash, |number| self.key(*number) == key);
        let number = found.map(|number| *number as usize)?;
        if self.made[number] >= oldest {
            return Some(number);
        }
        let entry = self.numbers.find_entry(hash, |other| *other as usize == number);
        if let Ok(entry) = entry {
            entry.remove();
        }
        None
    }

    /// Adds a result, unless there is no memory for it.
    fn add(&mut self, hash: u64, key: &[u8], (results, row): (&Column<'_>, usize), at: u64) {
        let number = self.ends.len();
        let Self { numbers, hashes, keys, ends, made, .. } = self;
        let has_room = keys.try_reserve(key.len()).is_ok()
            && ends.try_reserve(1).is_ok()
            && hashes.try_reserve(1).is_ok()
            && made.try_reserve(1).is_ok()
            && numbers.try_reserve(1, |number| hashes[*number as usize]).is_ok()
            && self.results.reserve(1).is_ok();
        if !has_room || self.results.copy(results, row).is_err() {
            self.results.truncate(number);
            return;
        }
        keys.extend_from_slice(key);
        ends.push(keys.len());
        hashes.push(hash);
        made.push(at);
        // A column has fewer than 2 billion rows.
        numbers.insert_unique(hash, number as u32, |number| hashes[*number as usize]);
    }

    /// The bytes of the generation, about.
    fn size(&self) -> usize {
        let each = 2 * size_of::<u64>() + size_of::<usize>() + 2 * size_of::<u32>();
        self.keys.len() + self.results.size() + self.ends.len() * each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: impl Iterator<Item = String>) -> ColumnBuilder {
        let mut column = ColumnBuilder::new(&DataType::Varchar);
        values.for_each(|value| column.bytes(value.as_bytes()).unwrap());
        column
    }

    #[test]
    fn results_are_found_by_their_keys() {
        let memo = Memo::new(DataType::Varchar, 1 << 20, None);
        let mut results = texts((0..100).map(|number| format!("result {number}")));
        results.null();
        let column = results.column(&DataType::Varchar);
        (0..101u32).for_each(|row| memo.keep(&row.to_ne_bytes(), (&column, row as usize), 0));
        let mut found = ColumnBuilder::new(&DataType::Varchar);
        assert!((0..101u32).all(|row| memo.find(&row.to_ne_bytes(), &mut found)));
        assert!(!memo.find(&101u32.to_ne_bytes(), &mut found));
        let found = found.column(&DataType::Varchar);
        assert_eq!((found.rows, found.bytes(7)), (101, &b"result 7"[..]));
        assert!(!found.is_valid(100));
    }

    #[test]
    fn the_limit_is_kept_and_what_is_asked_for_stays() {
        let bytes = 1 << 16;
        let memo = Memo::new(DataType::Varchar, bytes, None);
        let mut found = ColumnBuilder::new(&DataType::Varchar);
        let long = texts(["x".repeat(50)].into_iter());
        memo.keep(b"asked for", (&long.column(&DataType::Varchar), 0), 0);
        for number in 0..20_000u32 {
            memo.keep(&number.to_ne_bytes(), (&long.column(&DataType::Varchar), 0), 0);
            found.clear();
            assert!(memo.find(b"asked for", &mut found), "after {number}");
        }
        let kept = (0..20_000u32).filter(|number| memo.find(&number.to_ne_bytes(), &mut found)).count();
        assert!((200..1000).contains(&kept), "{kept}");
        let size = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap();
            shard.young.size() + shard.old.size()
        };
        let size: usize = memo.shards.iter().map(size).sum();
        assert!(size as u64 <= bytes + bytes / 4, "{size}");
    }

    #[test]
    fn a_result_larger_than_the_limit_is_not_kept() {
        let memo = Memo::new(DataType::Varchar, 1000, None);
        let large = texts(["x".repeat(100_000)].into_iter());
        memo.keep(b"large", (&large.column(&DataType::Varchar), 0), 0);
        assert!(!memo.find(b"large", &mut ColumnBuilder::new(&DataType::Varchar)));
    }

    #[test]
    fn a_result_holds_for_its_time() {
        let memo = Memo::new(DataType::Varchar, 1 << 20, Some(Duration::from_secs(60)));
        let mut found = ColumnBuilder::new(&DataType::Varchar);
        let results = texts(["old", "new"].map(str::to_owned).into_iter());
        let column = results.column(&DataType::Varchar);
        memo.keep(b"key", (&column, 0), milliseconds() - 61_000);
        assert!(!memo.find(b"key", &mut found));
        memo.keep(b"key", (&column, 1), milliseconds() - 1000);
        assert!(memo.find(b"key", &mut found));
        assert_eq!(found.column(&DataType::Varchar).bytes(0), b"new");
    }

    #[test]
    fn what_a_store_has_is_checked() {
        let memo = Memo::new(DataType::Varchar, 1 << 20, Some(Duration::from_secs(60)));
        let results = texts(["a"].map(str::to_owned).into_iter());
        let batch = Memo::batch(&results.column(&DataType::Varchar), 0).unwrap();
        let mut found = ColumnBuilder::new(&DataType::Varchar);
        let now = milliseconds();
        assert!(memo.adopt(b"key", (batch.bytes(), now), &mut found));
        assert!(memo.find(b"key", &mut found));
        assert!(!memo.adopt(b"old", (batch.bytes(), now - 61_000), &mut found));
        assert!(!memo.adopt(b"ahead", (batch.bytes(), now + 3_600_000), &mut found));
        let mut garbled = batch.bytes().to_vec();
        *garbled.last_mut().unwrap() = 0xFF;
        garbled[..].iter_mut().rev().take(8).for_each(|byte| *byte = 0xFF);
        assert!(!memo.adopt(b"no text", (&garbled, now), &mut found));
        // The last bytes are padding.
        for length in 0..=batch.bytes().len() - 8 {
            assert!(!memo.adopt(b"short", (&batch.bytes()[..length], now), &mut found), "{length}");
        }
        assert_eq!(found.rows(), 2);
    }
}
