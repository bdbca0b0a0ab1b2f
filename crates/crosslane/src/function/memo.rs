//! The results that a function's `memoize` keeps, by the arguments.
//!
//! The results are in [`SHARDS`] shards, each with a lock of its own. A shard has two generations.
//! New results go to the young one. When the young one has half of the shard's bytes, it becomes
//! the old one, and the results of the old one are forgotten. A result that is found in the old one
//! is copied to the young one. So results stay that calls ask for, and each shard keeps its limit
//! without a list of its results by age.

use crate::batch::{Column, ColumnBuilder};
use crate::types::DataType;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

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
}

impl Memo {
    /// No results yet, of this type. They may take about this number of bytes.
    pub(crate) fn new(returns: DataType, bytes: u64) -> Self {
        let most = (bytes / (2 * SHARDS as u64)).try_into().unwrap_or(usize::MAX);
        let shard = || Shard { young: Generation::new(&returns), old: Generation::new(&returns), most };
        let shards = std::array::from_fn(|_| Mutex::new(shard()));
        Self { returns, hasher: RandomState::new(), shards }
    }

    /// The hash of these types. Keys of arguments begin with it, because arguments of other types may
    /// have the same bytes.
    pub(crate) fn hash_of(&self, types: &str) -> u64 {
        self.hasher.hash_one(types)
    }

    /// Looks for the result of some arguments ([`crate::batch::append_key`]), and appends it to
    /// `results`. False if it is not kept, or if `results` is full.
    pub(crate) fn find(&self, key: &[u8], results: &mut ColumnBuilder) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(hash);
        let Shard { young, old, .. } = &mut *shard;
        if let Some(number) = young.find(hash, key) {
            return results.copy(&young.results.column(&self.returns), number).is_ok();
        }
        let Some(number) = old.find(hash, key) else { return false };
        let column = old.results.column(&self.returns);
        let is_found = results.copy(&column, number).is_ok();
        young.add(hash, key, &column, number);
        shard.age(&self.returns);
        is_found
    }

    /// Keeps the result in a row of a column.
    pub(crate) fn keep(&self, key: &[u8], results: &Column<'_>, row: usize) {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(hash);
        // Another thread may have kept it meanwhile.
        if shard.young.find(hash, key).is_none() {
            shard.young.add(hash, key, results, row);
            shard.age(&self.returns);
        }
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
        let (hashes, keys, ends) = Default::default();
        Self { numbers: HashTable::new(), hashes, keys, ends, results }
    }

    fn key(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[number]]
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let found = self.numbers.find(hash, |number| self.key(*number) == key);
        found.map(|number| *number as usize)
    }

    /// Adds a result, unless there is no memory for it.
    fn add(&mut self, hash: u64, key: &[u8], results: &Column<'_>, row: usize) {
        let number = self.ends.len();
        let Self { numbers, hashes, keys, ends, .. } = self;
        let has_room = keys.try_reserve(key.len()).is_ok()
            && ends.try_reserve(1).is_ok()
            && hashes.try_reserve(1).is_ok()
            && numbers.try_reserve(1, |number| hashes[*number as usize]).is_ok()
            && self.results.reserve(1).is_ok();
        if !has_room || self.results.copy(results, row).is_err() {
            self.results.truncate(number);
            return;
        }
        keys.extend_from_slice(key);
        ends.push(keys.len());
        hashes.push(hash);
        // A column has fewer than 2 billion rows.
        numbers.insert_unique(hash, number as u32, |number| hashes[*number as usize]);
    }

    /// The bytes of the generation, about.
    fn size(&self) -> usize {
        let each = size_of::<u64>() + size_of::<usize>() + 2 * size_of::<u32>();
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
        let memo = Memo::new(DataType::Varchar, 1 << 20);
        let mut results = texts((0..100).map(|number| format!("result {number}")));
        results.null();
        let column = results.column(&DataType::Varchar);
        (0..101u32).for_each(|row| memo.keep(&row.to_ne_bytes(), &column, row as usize));
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
        let memo = Memo::new(DataType::Varchar, bytes);
        let mut found = ColumnBuilder::new(&DataType::Varchar);
        let long = texts(["x".repeat(50)].into_iter());
        memo.keep(b"asked for", &long.column(&DataType::Varchar), 0);
        for number in 0..20_000u32 {
            memo.keep(&number.to_ne_bytes(), &long.column(&DataType::Varchar), 0);
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
        let memo = Memo::new(DataType::Varchar, 1000);
        let large = texts(["x".repeat(100_000)].into_iter());
        memo.keep(b"large", &large.column(&DataType::Varchar), 0);
        assert!(!memo.find(b"large", &mut ColumnBuilder::new(&DataType::Varchar)));
    }
}
