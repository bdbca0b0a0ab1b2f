//! The calls that a guest gets, and the results of its answers.

use crosslane::batch::{Header, LAST};
use crosslane::{Entry, ErrorPolicy, Failure, RetryAfter, Verdict};

/// A batch of an exchange that the guest has to answer. Its columns are in [`GuestLane::columns`].
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The batch's header.
    pub header: Header,
}

impl Call {
    /// The entry of the function. `None` if this guest knows no such entry.
    pub fn entry(&self) -> Option<Entry> {
        Entry::of(self.header.entry)
    }

    /// Whether it is the engine's last batch of its exchange.
    pub fn is_last(&self) -> bool {
        self.header.flags & LAST != 0
    }

    /// The only function that a set-up is for. `None` if it is for all functions that have no lanes
    /// of their own (`workers`, `gpus`).
    pub fn set_up_only(&self) -> Option<usize> {
        (self.header.rows > 0).then_some(self.header.function as usize)
    }

    /// The same call, for an answer with another number of rows (a table function's).
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.header.rows = rows as u32;
        self
    }

    /// The failure with which a guest refuses an entry.
    pub fn refusal(&self) -> Failure {
        let entry = self.entry().map_or_else(|| self.header.entry.to_string(), |entry| format!("{entry:?}"));
        let message = format!("this guest has no entry {entry} of function {}", self.header.function);
        Failure { class: "Error".into(), message, ..Failure::default() }
    }
}

/// How a wait for a batch ended.
#[derive(Debug, Clone, Copy)]
pub enum Next {
    /// With a batch.
    Call(Call),
    /// The engine has cancelled the exchange.
    Cancelled,
    /// The engine has closed the lane.
    Closed,
    /// The wait was stopped.
    Stopped,
}

/// What happened to a batch of results that is not the last one.
#[derive(Debug)]
pub enum Emitted {
    /// It was sent.
    Sent,
    /// The engine has cancelled the exchange. The guest still has to end it.
    Cancelled,
    /// The wait for space was stopped. Nothing was sent.
    Stopped,
    /// There is no memory for the batch.
    Failed(Failure),
}

/// What a guest with results waits for.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// For space for a message of this many bytes.
    Of(usize),
    /// For the engine to take all messages.
    All,
}

/// What became of the rows of a call.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowCounts {
    /// Rows that became NULL because of `on_error = null`.
    pub errors: u32,
    /// Calls that were tried again.
    pub retries: u32,
    /// Rows that were evaluated by columns, without a call.
    pub by_columns: u32,
}

impl RowCounts {
    /// Decides what happens to `rows` rows whose call failed, after `tries` further tries, with an
    /// error that names the time `after` for the next try. It counts the result.
    ///
    /// # Errors
    /// With `error`, if there is no further try and the rows do not become NULL.
    #[inline]
    pub fn judge<E>(
        &mut self,
        error_policy: ErrorPolicy,
        error: E,
        after: Option<RetryAfter>,
        tries: &mut u32,
        rows: usize,
    ) -> Result<Verdict, E> {
        let verdict = error_policy.judge(error, *tries, after)?;
        match verdict {
            Verdict::Again(_) => {
                *tries += 1;
                self.retries += 1;
            }
            Verdict::Null => self.errors += rows as u32,
        }
        Ok(verdict)
    }
}
