//! What can go wrong, in words for the person who wrote the function or the query.

use crate::types::SignatureError;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::time::Duration;

/// An exception of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exception's class, as the guest names it.
    #[serde(deserialize_with = "bounded")]
    pub class: String,
    /// Its message.
    #[serde(deserialize_with = "bounded")]
    pub message: String,
    /// The traceback into the user's file, in the guest's own form; may be empty.
    #[serde(default, deserialize_with = "bounded")]
    pub traceback: String,
    /// Under what number a host lane keeps the exception itself; 0 if it does not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ticket: u64,
    /// Whether it is the function's set-up that has failed, and nothing of the batch was begun.
    #[serde(default, skip_serializing_if = "is_false")]
    pub set_up: bool,
    /// Whether the guest's process ends with it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
    /// For how long the guest worked on the batch until it failed, by what it says.
    #[serde(skip)]
    pub worked: Duration,
}

impl Failure {
    /// The same with texts of a length that can be sent and shown.
    #[must_use]
    pub fn bounded(&self) -> Self {
        let [class, message, traceback] =
            [&self.class, &self.message, &self.traceback].map(|text| shortened(text.clone()));
        Self { class, message, traceback, ..*self }
    }

    /// Of a result that is no value of its type; `what` says what the function returned.
    pub fn unfit(what: &str) -> Self {
        Self { class: "InvalidResult".into(), message: what.into(), ..Self::default() }
    }
}

/// How much of a guest's text is shown at most: so much of its beginning, and of its end.
const SHOWN: (usize, usize) = (64 << 10, 16 << 10);

/// A text of a guest for an error: of one that is very long, the beginning and the end.
pub fn shortened(mut text: String) -> String {
    let (first, last) = SHOWN;
    // With room for the note, so that what a guest has shortened is not shortened again.
    if text.len() > first + last + 128 {
        let boundary = |at: usize| (at..).find(|at| text.is_char_boundary(*at)).unwrap_or(at);
        let (from, to) = (boundary(first), boundary(text.len() - last));
        text.replace_range(from..to, &format!(" ... {} bytes are left out ... ", to - from));
        text.shrink_to_fit();
    }
    text
}

/// A text of a guest of a length that can be shown.
pub(crate) fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(shortened)
}

fn is_zero(ticket: &u64) -> bool {
    *ticket == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
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

/// Where something went wrong, as far as it is known: the row, and the arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place(pub(crate) Option<Spot>);

/// A row, from 1, and the arguments as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    /// The function is called with it.
    Given { row: usize, arguments: String },
    /// A table function makes it.
    Made { row: usize, arguments: String },
    /// A stream function makes it of a batch.
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

/// What a worker was doing when it was given up: lines of its stack, the innermost last; empty if that is not known.
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

/// Why a call or a load failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A signature that cannot be read.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A function's option cannot have the value that its guest says.
    #[error("{0}")]
    Declaration(String),
    /// A library's file raised an exception, or declared something impossible.
    #[error("cannot load {library}: {failure}")]
    Load {
        /// The file or name.
        library: String,
        /// What the guest said.
        failure: Box<Failure>,
    },
    /// The function raised an exception.
    #[error("{function}: {failure}{place}")]
    Raised {
        /// The function's name.
        function: String,
        /// What it raised.
        failure: Box<Failure>,
        /// For which row.
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
        /// For which row.
        place: Place,
        /// What its worker was doing.
        stall: Stall,
    },
    /// The worker process ended, or broke the protocol.
    #[error("{function}: {how}{place}")]
    LaneDied {
        /// The function's name.
        function: String,
        /// What happened to the worker, and the last of what it printed.
        how: String,
        /// Which row it worked on.
        place: Place,
    },
    /// Someone cancelled the query.
    #[error("{function}: cancelled")]
    Cancelled {
        /// The function's name.
        function: String,
    },
    /// A worker could not be started.
    #[error("cannot start a worker: {0}")]
    Boot(String),
    /// The process is a fork of the one that loaded the functions.
    #[error("this process was forked after the functions were loaded")]
    Forked,
    /// A setting that does not exist, or cannot have this value.
    #[error("{0}")]
    Setting(String),
    /// The engine could not take or give a batch.
    #[error("{0}")]
    Engine(String),
}

impl Error {
    /// There is no memory for so many bytes.
    pub fn memory(bytes: usize) -> Self {
        Error::Engine(format!("out of memory: no room for {bytes} bytes of a batch"))
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
