//! Errors, with texts for the person who wrote the function or the query.

use crate::function::RetryAfter;
use crate::types::SignatureError;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::time::Duration;

/// An exception of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exception's class, by its name in the guest's language.
    #[serde(deserialize_with = "bounded")]
    pub class: String,
    /// The exception's message.
    #[serde(deserialize_with = "bounded")]
    pub message: String,
    /// The traceback into the user's file, in the format of the guest's language. It may be empty.
    #[serde(default, deserialize_with = "bounded")]
    pub traceback: String,
    /// The number under which a host lane keeps the exception object; 0 if it keeps none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ticket: u64,
    /// Whether the function's set-up failed, before any work on the batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set_up: bool,
    /// The time after which the function may be called again, if the exception says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<RetryAfter>,
    /// Whether the guest's process ends after this failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// The time that the guest worked on the batch before the failure, as the guest reports it.
    #[serde(skip)]
    pub worked: Duration,
}

impl Failure {
    /// The failure with texts that are short enough to be sent and shown.
    #[must_use]
    pub fn bounded(&self) -> Self {
        let [class, message, traceback] =
            [&self.class, &self.message, &self.traceback].map(|text| shortened(text.clone()));
        Self { class, message, traceback, ..*self }
    }

    /// The failure of a result that is not valid for its type. `what` describes the result.
    pub fn unfit(what: &str) -> Self {
        Self { class: "InvalidResult".into(), message: what.into(), ..Self::default() }
    }
}

/// The most bytes of a guest's text that are shown, at its beginning and at its end.
const SHOWN: (usize, usize) = (64 << 10, 16 << 10);

/// A text of a guest for an error message. A very long text is reduced to its beginning and its
/// end.
pub fn shortened(mut text: String) -> String {
    let (first, last) = SHOWN;
    // 128 more bytes are allowed for the note, so that a text that a guest has shortened stays as
    // it is.
    if text.len() > first + last + 128 {
        let boundary = |at: usize| (at..).find(|at| text.is_char_boundary(*at)).unwrap_or(at);
        let (from, to) = (boundary(first), boundary(text.len() - last));
        text.replace_range(from..to, &format!(" ... {} bytes are left out ... ", to - from));
        text.shrink_to_fit();
    }
    text
}

/// The beginning of a text. If it has more than `longest` bytes, a note says that there was more.
pub fn beginning(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push_str(" ...");
        text.shrink_to_fit();
    }
    text
}

/// A text of a guest, short enough to be shown.
pub(crate) fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(shortened)
}

fn is_zero(ticket: &u64) -> bool {
    *ticket == 0
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)?;
        if !self.traceback.is_empty() {
            write!(f, "\n{}", self.traceback.trim_end())?;
        }
        Ok(())
    }
}

/// The known place of an error: the row and the arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place(pub(crate) Option<Spot>);

impl Place {
    /// The arguments as text; empty if they are unknown.
    pub(crate) fn arguments(&self) -> &str {
        match &self.0 {
            Some(Spot::Given { arguments, .. } | Spot::Made { arguments, .. }) => arguments,
            _ => "",
        }
    }
}

/// A row, from 1, and the arguments as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    /// The row is an argument of the function.
    Given { row: usize, arguments: String },
    /// The row is a result of a table function.
    Made { row: usize, arguments: String },
    /// The row is a result of a stream function.
    Answered { row: usize },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(Spot::Given { row, arguments }) => {
                write!(f, "\n  in row {row} of the batch, with {arguments}")
            }
            Some(Spot::Made { row, arguments }) => {
                write!(f, "\n  in row {row} of its table, with {arguments}")
            }
            Some(Spot::Answered { row }) => write!(f, "\n  in row {row} of its results"),
            None => Ok(()),
        }
    }
}

/// The stack of a worker when the engine gave it up, as lines, with the innermost call last. It is
/// empty if the stack is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stall(pub(crate) String);

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "\n{}\n  where it was then", self.0)
    }
}

/// The reason why a call or a load failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A signature cannot be read.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A function's option cannot have the value that its guest gave.
    #[error("{0}")]
    Declaration(String),
    /// A library's file raised an exception, or declared an invalid function.
    #[error("cannot load {library}: {failure}")]
    Load {
        /// The file or name.
        library: String,
        /// The guest's failure.
        failure: Box<Failure>,
    },
    /// The function raised an exception.
    #[error("{function}: {failure}{place}")]
    Raised {
        /// The function's name.
        function: String,
        /// The exception.
        failure: Box<Failure>,
        /// The row.
        place: Place,
    },
    /// A call took longer than the function's `timeout`.
    #[error(
        "{function}: timed out after {seconds} s; the call was ended and its worker replaced{stall}{place}"
    )]
    TimedOut {
        /// The function's name.
        function: String,
        /// The limit in seconds: the function's `timeout`, or the setting `stuck_timeout`.
        seconds: f64,
        /// The row.
        place: Place,
        /// The stack of the worker.
        stall: Stall,
    },
    /// The worker process ended, or broke the protocol.
    #[error("{function}: {how}{place}")]
    LaneDied {
        /// The function's name.
        function: String,
        /// The reason for the worker's end, and its last output.
        how: String,
        /// The row that the worker worked on.
        place: Place,
    },
    /// The query has had a function called as often as its `budget` allows.
    #[error(
        "{function}: the query has used up its budget of {budget} calls\n  at {place}\nAsk for fewer rows, or raise the option budget of the function."
    )]
    OverBudget {
        /// The function's name.
        function: String,
        /// The most calls.
        budget: u64,
        /// Where the function is declared.
        place: String,
    },
    /// The query was cancelled.
    #[error("{function}: cancelled")]
    Cancelled {
        /// The function's name.
        function: String,
    },
    /// A worker could not be started.
    #[error("cannot start a worker: {0}")]
    Boot(String),
    /// The process is a fork of the process that loaded the functions.
    #[error("this process was forked after the functions were loaded")]
    Forked,
    /// A setting does not exist, or cannot have this value.
    #[error("{0}")]
    Setting(String),
    /// The engine failed to read or write a batch.
    #[error("{0}")]
    Engine(String),
}

impl Error {
    /// There is no memory for `bytes` bytes.
    pub fn memory(bytes: usize) -> Self {
        Error::Engine(format!("out of memory: no room for {bytes} bytes of a batch"))
    }

    /// A function of a library that cannot be as it is declared, at this place.
    pub fn declared(library: &str, class: &str, message: &impl fmt::Display, place: &str) -> Self {
        Error::Load {
            library: library.to_owned(),
            failure: Box::new(Failure {
                class: class.into(),
                message: shortened(message.to_string()),
                traceback: format!("  at {place}"),
                ..Failure::default()
            }),
        }
    }

    /// The time after which the function may be called again, if its exception says so.
    pub fn retry_after(&self) -> Option<RetryAfter> {
        if let Self::Raised { failure, .. } = self { failure.retry_after } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shortened_is_not_shortened_again() {
        let failure = Failure { message: "ä".repeat(1 << 20), ..Failure::default() }.bounded();
        assert!(failure.message.contains("bytes are left out"));
        assert_eq!(failure.bounded(), failure);
    }
}
