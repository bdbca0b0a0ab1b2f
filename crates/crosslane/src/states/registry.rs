//! The lanes that hold states, and the numbers of their states.

use super::state::States;
use crate::pool::{PooledLane, Zygote};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, Weak};

/// The most states of a lane: their numbers are those of rows.
const MOST_STATES: u64 = 1 << 31;

/// The states are no more. It waits for no guest.
pub fn destroy(states: &States<'_>) {
    for (lane, rows) in states.runs() {
        let pinned =
            registry().read().unwrap_or_else(PoisonError::into_inner).get(&lane).and_then(Weak::upgrade);
        if let Some(pinned) = pinned {
            pinned.ended(&mut rows.map(|row| states.get(row).number));
        }
    }
}

/// A lane of any accumulation.
pub(super) trait AnyLane: Send + Sync {
    fn ended(&self, numbers: &mut dyn Iterator<Item = u64>);
}

pub(super) type Registry = RwLock<HashMap<u64, Weak<dyn AnyLane>>>;

/// The lanes that states live in, by the first word of a state. A state of a lane that is not there any more is nobody's.
pub(super) fn registry() -> &'static Registry {
    static REGISTRY: std::sync::LazyLock<Registry> = std::sync::LazyLock::new(RwLock::default);
    &REGISTRY
}

pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which numbers of a lane are in use.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The first that was never used.
    pub(super) next: u64,
    /// Those that the guest has forgotten.
    pub(super) free: Vec<u64>,
    /// Those that it is still to forget.
    pub(super) ended: Vec<u64>,
    /// Whether none lived when that was looked at last.
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

    /// How many states live.
    pub(super) fn living(&self) -> u64 {
        self.next - (self.free.len() + self.ended.len()) as u64
    }

    /// All that the guest may hold.
    pub(super) fn held(&self) -> Vec<i64> {
        let mut held = vec![true; self.next as usize];
        self.free.iter().for_each(|number| held[*number as usize] = false);
        (0..).zip(held).filter_map(|(number, held)| held.then_some(number)).collect()
    }
}

/// A lane that holds states.
pub(super) struct Pinned<Z: Zygote> {
    pub(super) id: u64,
    /// Taken for an exchange. `None` when the lane is lost or given back.
    pub(super) lane: Mutex<Option<PooledLane<Z::Lane>>>,
    /// Taken for a moment, also while the lane is at work.
    pub(super) numbers: Mutex<Numbers>,
}

impl<Z: Zygote> AnyLane for Pinned<Z> {
    fn ended(&self, ended: &mut dyn Iterator<Item = u64>) {
        lock(&self.numbers).ended.extend(ended);
    }
}
