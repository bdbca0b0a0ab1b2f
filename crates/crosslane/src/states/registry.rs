//! The lanes that hold states, and the numbers of their states.

use super::state::States;
use crate::lock;
use crate::pool::{PooledLane, Zygote};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock, Weak};

/// The most states of a lane: a batch has one row for each.
const MOST_STATES: u64 = 1 << 31;

/// Ends states. It does not wait for a guest.
pub fn destroy(states: &States<'_>) {
    for (lane, rows) in states.runs() {
        let pinned =
            registry().read().unwrap_or_else(PoisonError::into_inner).get(&lane).and_then(Weak::upgrade);
        if let Some(pinned) = pinned {
            pinned.ended(&mut rows.map(|row| states.get(row).number));
        }
    }
}

/// A lane of an accumulation of any type.
pub(super) trait AnyLane: Send + Sync {
    fn ended(&self, numbers: &mut dyn Iterator<Item = u64>);
}

pub(super) type Registry = RwLock<HashMap<u64, Weak<dyn AnyLane>>>;

/// The lanes with states, by the first word of a state. A state whose lane is not in the registry
/// has no owner.
pub(super) fn registry() -> &'static Registry {
    static REGISTRY: std::sync::LazyLock<Registry> = std::sync::LazyLock::new(RwLock::default);
    &REGISTRY
}

/// The state numbers of a lane that are in use.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The first number that was never used.
    pub(super) next: u64,
    /// The numbers whose states the guest has forgotten.
    pub(super) free: Vec<u64>,
    /// The numbers whose states have ended, but which the guest still holds.
    pub(super) ended: Vec<u64>,
    /// Whether no state was alive at the last check.
    pub(super) idle: bool,
}

impl Numbers {
    pub(super) fn take(&mut self) -> Option<u64> {
        self.free.pop().or_else(|| {
            let next = self.next;
            (next < MOST_STATES).then(|| {
                self.next += 1;
                next
            })
        })
    }

    /// The number of states that are alive.
    pub(super) fn living(&self) -> u64 {
        self.next - (self.free.len() + self.ended.len()) as u64
    }

    /// All numbers that the guest may hold.
    pub(super) fn held(&self) -> Vec<i64> {
        let mut held = vec![true; self.next as usize];
        self.free.iter().for_each(|number| held[*number as usize] = false);
        (0..).zip(held).filter_map(|(number, held)| held.then_some(number)).collect()
    }
}

/// A lane that holds states.
pub(super) struct Pinned<Z: Zygote> {
    pub(super) id: u64,
    /// Locked for an exchange. `None` when the lane is lost or given back.
    pub(super) lane: Mutex<Option<PooledLane<Z::Lane>>>,
    /// Locked for a moment only, also during an exchange on the lane.
    pub(super) numbers: Mutex<Numbers>,
}

impl<Z: Zygote> AnyLane for Pinned<Z> {
    fn ended(&self, ended: &mut dyn Iterator<Item = u64>) {
        lock(&self.numbers).ended.extend(ended);
    }
}
