//! What a server tells about each call to those who make spans of calls.

use crosslane::Failure;
use crosslane_remote::context::TraceContext;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Makes a span of each call.
pub trait Spans: Debug + Send + Sync {
    /// Takes a call that has ended now. It must not wait: calls wait for it.
    fn ended(&self, call: &Call<'_>);

    /// How many spans there were.
    fn counts(&self) -> SpanCounts;
}

/// How many spans there were. A span that was neither exported nor failed waits, or was dropped.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SpanCounts {
    pub made: u64,
    pub exported: u64,
    pub failed: u64,
}

/// A call that has ended: an exchange.
#[derive(Debug)]
pub struct Call<'a> {
    /// The name of the function.
    pub function: &'a str,
    /// The name of its library: its file.
    pub library: &'a str,
    /// How the client is connected.
    pub client: &'static str,
    /// The span of the client that the call belongs to.
    pub context: Option<&'a TraceContext>,
    /// How long its first batch waited for a worker.
    pub waited: Duration,
    /// The time from its coming to its end.
    pub took: Duration,
    /// The rows of its arguments, or of its results if it makes rows.
    pub rows: u64,
    /// Bytes of its batches.
    pub received: u64,
    /// Bytes of its results.
    pub sent: u64,
    /// Tries at rows after the first.
    pub retries: u64,
    /// Rows that became NULL because of `on_error = null`.
    pub nulls: u64,
    /// How it has ended.
    pub outcome: Outcome,
}

/// How a call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With results.
    Answered,
    /// The client did not want the results any more.
    Cancelled,
    /// With an error.
    Failed {
        /// Its class.
        class: String,
        /// The class and the message.
        message: String,
    },
}

impl Outcome {
    /// The outcome of a call that failed.
    pub(crate) fn failed(failure: &Failure) -> Self {
        let message = crosslane::shortened(format!("{}: {}", failure.class, failure.message));
        Self::Failed { class: failure.class.clone(), message }
    }

    /// The outcome of a call whose worker was lost.
    pub(crate) fn lost(why: &str) -> Self {
        Self::Failed { class: "LaneLost".into(), message: why.into() }
    }
}

/// What is known of the span of an exchange in flight.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) context: Option<Arc<TraceContext>>,
    pub(crate) rows: u64,
    /// Whether the rows are those of its results.
    pub(crate) makes_rows: bool,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) retries: u64,
    pub(crate) nulls: u64,
    pub(crate) outcome: Outcome,
}
