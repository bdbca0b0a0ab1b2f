//! What can go wrong, in words for the person who wrote the function or the query.

use crate::batch::Malformed;
use crate::signature::SignatureError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An exception of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exception's class, as the guest names it.
    pub class: String,
    /// Its message.
    pub message: String,
    /// The traceback into the user's file, in the guest's own form; may be empty.
    #[serde(default)]
    pub traceback: String,
    /// Under what number a host lane keeps the exception itself; 0 if it does not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ticket: u64,
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

/// Where in a batch something went wrong: the row and its arguments, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place(pub(crate) Option<(usize, String)>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((row, arguments)) => write!(f, "\n  in row {row} of the batch, with {arguments}"),
            None => Ok(()),
        }
    }
}

/// Why a call or a load failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A signature that cannot be read.
    #[error(transparent)]
    Signature(#[from] SignatureError),
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
    #[error("{function}: timed out after {seconds} s; the call was ended and its worker replaced{place}")]
    TimedOut {
        /// The function's name.
        function: String,
        /// The limit in seconds.
        seconds: f64,
        /// For which row.
        place: Place,
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
    /// A setting that does not exist, or cannot have this value.
    #[error("{0}")]
    Setting(String),
    /// The engine could not take or give a batch.
    #[error("{0}")]
    Engine(String),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Error::Engine(malformed.to_string())
    }
}
