//! The thread's queues, and the answers that it gives.

use super::counts::Counts;
use super::program::Program;
use crate::columns::write_table;
use crosslane::call::{Caller, Results};
use crosslane::pool::Zygote;
use crosslane::{DataType, Error};
use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

/// Why the thread's work has ended.
pub(super) enum Ended {
    /// Spark's thread wants no more answers.
    Unwanted,
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Failed(error)
    }
}

/// What the thread works with.
pub(super) struct Work<'a, Z: Zygote> {
    pub program: &'a Program<Z>,
    pub batches: &'a Receiver<Batch>,
    pub answers: &'a SyncSender<Result<Answer, Error>>,
    pub caller: Caller<'a>,
    /// The time of the last answer, and the counts at that time.
    pub reported: Cell<(Instant, Counts)>,
}

impl<Z: Zygote> Work<'_, Z> {
    /// Gives an answer, with what was counted since the last one.
    pub(super) fn answer(&self, answer: Answer) -> Result<(), Ended> {
        let (begun, before) = self.reported.get();
        let after = self.program.counted();
        let counts = Counts {
            worked: after.worked - before.worked,
            called: begun.elapsed().as_nanos() as u64,
            errors: after.errors - before.errors,
            retries: after.retries - before.retries,
            deaths: after.deaths - before.deaths,
        };
        let sent = self.answers.send(Ok(Answer { counts, ..answer }));
        self.reported.set((Instant::now(), after));
        sent.map_err(|_| Ended::Unwanted)
    }

    /// Says that Spark's thread can fill the oldest batch again.
    pub(super) fn release(&self, returns: &DataType) -> Result<(), Ended> {
        self.answer(Answer { last: true, ..Answer::of(Results::new(returns.clone()), None) })
    }
}

/// Rows that Spark's thread has handed over.
pub(super) struct Batch {
    pub rows: usize,
    /// Where their columns lie ([`crate::columns`]).
    pub table: Vec<u64>,
}

/// Results of a batch.
#[derive(Debug)]
pub struct Answer {
    /// The results of each step.
    pub results: Vec<Results>,
    /// The row of the batch to which all results belong. `None` if each row has its own, or they
    /// belong to no row.
    pub row: Option<usize>,
    /// Whether this is the last answer to the batch.
    pub last: bool,
    /// Whether the function wants another batch before it gives more results. Then Spark's thread
    /// may hand over one more than `depth`.
    pub wants: bool,
    /// What the results cost.
    pub counts: Counts,
}

impl Answer {
    /// An answer with the results of one step.
    pub(super) fn of(results: Results, row: Option<usize>) -> Self {
        Self { results: vec![results], row, last: false, wants: false, counts: Counts::default() }
    }

    /// The table from which the JVM reads the results of all steps.
    pub fn table(&self) -> Vec<u64> {
        let mut table = Vec::new();
        self.results.iter().for_each(|results| write_table(&results.column(), &mut table));
        table
    }
}
