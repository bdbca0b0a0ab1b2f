//! The distinct rows of a batch.

use super::{LARGEST, NONE};
use crate::batch::{Column, append_key};
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// The distinct rows of a batch.
#[derive(Debug)]
pub(crate) struct Distinct {
    /// The first row that is like this one, for each distinct row.
    pub(crate) firsts: Vec<usize>,
    /// For each row of the batch, the number of its distinct row.
    pub(crate) numbers: Vec<u32>,
    /// For each row of the batch, the next row that is like it.
    next: Vec<u32>,
    keys: Vec<u8>,
    /// Where the key of each distinct row ends.
    ends: Vec<usize>,
}

impl Distinct {
    /// Compares the rows of a batch. Keys begin with the hash of the types of the columns, if
    /// functions of several types share a memo. `None` if the keys are too large.
    pub(crate) fn new(types: Option<u64>, columns: &[Column<'_>], rows: usize) -> Option<Self> {
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

    pub(crate) fn key(&self, number: usize) -> &[u8] {
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[number]]
    }

    /// The key of a distinct row without the hash of the types.
    pub(crate) fn bare_key(&self, number: usize) -> &[u8] {
        &self.key(number)[size_of::<u64>()..]
    }

    /// The rows of the batch that are like a distinct row.
    pub(crate) fn rows(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        let next = |row: &usize| (self.next[*row] != NONE).then(|| self.next[*row] as usize);
        std::iter::successors(Some(self.firsts[number]), next)
    }
}
