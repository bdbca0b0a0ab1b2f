//! The combination of states, inside one lane and between two lanes.

use super::accumulation::Accumulation;
use super::columns::{Keep, Numbered, Saved};
use super::registry::Pinned;
use super::state::{State, States};
use crate::error::Error;
use crate::lane::Entry;
use crate::lock;
use crate::pool::Zygote;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering::Relaxed;

/// The most states in one transfer.
const MOST_PIECE: usize = 1 << 16;
/// The approximate bytes of one transfer. States move between lanes through the engine's memory.
const MOST_BYTES: usize = 16 << 20;

/// A hash for the numbers of lanes and states. No user chooses these numbers, so the hash needs no
/// protection against chosen keys.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        // The multiplier is odd, and about half of its bits are set. The high half of the product
        // is mixed into the low half.
        let product = u128::from(self.0.rotate_left(32) ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// Pairs of states that wait until they are combined.
#[derive(Default)]
pub(super) struct Pairs {
    pub(super) targets: Vec<i64>,
    pub(super) sources: Vec<i64>,
}

impl<Z: Zygote> Accumulation<Z> {
    /// Combines pairs of states, inside one lane or from one lane to another.
    fn flush(&self, (source, target): (u64, u64), pairs: Pairs, keep: bool) -> Result<(), Error> {
        let Pairs { targets, sources } = pairs;
        let rows = targets.len();
        let ended = |pinned: &Pinned<Z>| {
            if !keep {
                lock(&pinned.numbers).free.extend(sources.iter().map(|number| *number as u64));
            }
        };
        let from = self.of(source)?;
        if source == target {
            let keeps = Keep(rows, keep);
            let columns = vec![targets, sources.clone()];
            self.enter(&from, Entry::Combine, &Numbered { columns, rest: Some((&keeps, 0)) }, &mut ())?;
            ended(&from);
            return Ok(());
        }
        let to = self.of(target)?;
        let mut first = 0;
        while first < rows {
            let piece = first..rows.min(first + self.piece.load(Relaxed));
            first = piece.end;
            let sources = &sources[piece.clone()];
            let mut saved = Saved::new(piece.len());
            let numbers = Numbered { columns: vec![sources.to_vec()], rest: None };
            self.enter(&from, Entry::Save, &numbers, &mut saved)?;
            if !keep {
                lock(&from.numbers).ended.extend(sources.iter().map(|number| *number as u64));
            }
            let fitting = MOST_BYTES * piece.len() / saved.bytes.len().max(1);
            self.piece.store(fitting.clamp(1, MOST_PIECE), Relaxed);
            let numbers = Numbered { columns: vec![targets[piece].to_vec()], rest: Some((&saved, 0)) };
            self.enter(&to, Entry::Load, &numbers, &mut ())?;
        }
        Ok(())
    }

    pub(super) fn combine_all(
        &self,
        targets: &States<'_>,
        sources: &States<'_>,
        keep: bool,
    ) -> Result<(), Error> {
        // `waiting` has the pairs by route: the lanes of source and target. `touched` has the route
        // of each state in a waiting pair, so that no state is in two routes.
        let mut waiting: Vec<((u64, u64), Pairs)> = Vec::new();
        let mut touched: HashMap<(u64, u64), usize, BuildHasherDefault<Mixed>> = HashMap::default();
        for row in 0..targets.count() {
            let (mut target, source) = (targets.get(row), sources.get(row));
            if source.lane == 0 || source == target {
                continue;
            }
            if !keep {
                sources.set(row, State::default());
            }
            if target.lane == 0 {
                if keep {
                    let pinned = self.of(source.lane)?;
                    target = self.born(&pinned, &mut lock(&pinned.numbers))?;
                } else {
                    target = source;
                }
                targets.set(row, target);
                if !keep {
                    continue;
                }
            }
            let route = (source.lane, target.lane);
            let mut at = waiting.iter().position(|(other, _)| *other == route);
            let elsewhere =
                |state: State| touched.get(&(state.lane, state.number)).is_some_and(|one| Some(*one) != at);
            if elsewhere(source) || elsewhere(target) {
                touched.clear();
                waiting.drain(..).try_for_each(|(route, pairs)| self.flush(route, pairs, keep))?;
                at = None;
            }
            let at = at.unwrap_or_else(|| {
                waiting.push((route, Pairs::default()));
                waiting.len() - 1
            });
            for state in [source, target] {
                touched.insert((state.lane, state.number), at);
            }
            waiting[at].1.targets.push(target.number as i64);
            waiting[at].1.sources.push(source.number as i64);
        }
        waiting.into_iter().try_for_each(|(route, pairs)| self.flush(route, pairs, keep))
    }
}
