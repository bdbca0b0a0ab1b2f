//! What a guest is asked, and what it says of its answers.

use crosslane::batch::{Header, LAST};
use crosslane::{Entry, ErrorPolicy, Failure, Verdict};

/// A batch of an exchange, to be answered. Its columns are in [`GuestLane::columns`].
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The batch's header.
    pub header: Header,
}

impl Call {
    /// What of the function is used; `None` if this guest knows no such entry.
    pub fn entry(&self) -> Option<Entry> {
        Entry::of(self.header.entry)
    }

    /// Whether it is the engine's last batch of its exchange.
    pub fn is_last(&self) -> bool {
        self.header.flags & LAST != 0
    }

    /// The same call, for an answer with another number of rows (a table function's).
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.header.rows = rows as u32;
        self
    }

    /// What a guest says that cannot do what it is asked for.
    pub fn refusal(&self) -> Failure {
        let entry = self.entry().map_or_else(|| self.header.entry.to_string(), |entry| format!("{entry:?}"));
        let message = format!("this guest has no entry {entry} of function {}", self.header.function);
        Failure { class: "Error".into(), message, ..Failure::default() }
    }
}

/// How a wait for a batch ended.
#[derive(Debug, Clone, Copy)]
pub enum Next {
    /// With one.
    Call(Call),
    /// The engine wants no more of the exchange.
    Cancelled,
    /// The engine has closed the lane.
    Closed,
    /// It was stopped.
    Stopped,
}

/// What became of a batch of results that is not the last.
#[derive(Debug)]
pub enum Emitted {
    /// It was sent.
    Sent,
    /// The engine wants no more of the exchange, which is still to be ended.
    Cancelled,
    /// The wait for room was stopped: nothing was sent.
    Stopped,
    /// There is no memory for it.
    Failed(Failure),
}

/// What a guest waits for that has results to send.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// For a message of so many bytes.
    Of(usize),
    /// That the engine has taken all.
    All,
}

/// What happened to the rows of a call beside their results.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mishaps {
    /// Rows that became NULL because of `on_error = null`.
    pub errors: u32,
    /// Calls that were tried again.
    pub retries: u32,
}

impl Mishaps {
    /// What becomes of `rows` whose call failed, after `tries` more than the first; it counts.
    ///
    /// # Errors
    /// With `error`, if there is no further try and the rows do not become NULL.
    #[inline]
    pub fn judge<E>(
        &mut self,
        error_policy: ErrorPolicy,
        error: E,
        tries: &mut u32,
        rows: usize,
    ) -> Result<Verdict, E> {
        let verdict = error_policy.judge(error, *tries)?;
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
