//! The calls that count for a `budget`.
//!
//! All threads of a query share a count. A chunk takes its calls from the budget before they begin. So
//! no thread makes a call for which there is none left. Tries count once they were made. They may exceed
//! the budget by those of the calls in flight.

use crate::lock;
use std::sync::Mutex;

/// The calls that a query has made of a function.
#[derive(Debug, Default)]
pub struct Spent(Mutex<Count>);

#[derive(Debug, Default)]
struct Count {
    /// The statement that makes the calls, where statements have numbers.
    statement: Option<u64>,
    calls: u64,
}

impl Spent {
    /// A statement goes on, or begins. Another statement than the last one begins with no calls.
    pub fn run(&self, statement: Option<u64>) {
        let mut count = lock(&self.0);
        if count.statement != statement {
            *count = Count { statement, calls: 0 };
        }
    }

    /// Counts further tries of calls.
    pub fn add(&self, tries: u64) {
        if tries > 0 {
            let mut count = lock(&self.0);
            count.calls = count.calls.saturating_add(tries);
        }
    }

    /// Takes up to `wanted` calls from a budget. Returns how many there are.
    pub(super) fn take(&self, wanted: u64, budget: u64) -> u64 {
        let mut count = lock(&self.0);
        let taken = wanted.min(budget.saturating_sub(count.calls));
        count.calls += taken;
        taken
    }
}
