//! What a server tells about each call to those who make spans of calls.

use crosslane::{Failure, beginning};
use crosslane_remote::context::TraceContext;
use std::env;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The most bytes of the class of an exception. Clients share the messages to a collector, so no
/// client may fill one.
const LONGEST_CLASS: usize = 200;
/// The most bytes of the class and the message of an exception.
const LONGEST_MESSAGE: usize = 1 << 10;

/// A variable of the environment, if it is not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether the environment names a collector of spans, and does not switch them off.
pub fn are_spans_wanted() -> bool {
    let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    !is_off && endpoints.into_iter().any(|name| variable(name).is_some())
}

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
        /// Its class, with a bounded length.
        class: String,
        /// The class and the message, with a bounded length.
        message: String,
    },
}

impl Outcome {
    /// The outcome of a call that failed.
    pub(crate) fn failed(failure: &Failure) -> Self {
        let message = beginning(format!("{}: {}", failure.class, failure.message), LONGEST_MESSAGE);
        Self::Failed { class: beginning(failure.class.clone(), LONGEST_CLASS), message }
    }

    /// The outcome of a call whose worker was lost.
    pub(crate) fn lost(why: &str) -> Self {
        Self::Failed { class: "LaneLost".into(), message: beginning(why.into(), LONGEST_MESSAGE) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_has_a_bounded_length() {
        let long = "é".repeat(50_000);
        let failure = Failure { class: long.clone(), message: long.clone(), ..Failure::default() };
        for outcome in [Outcome::failed(&failure), Outcome::lost(&long)] {
            let Outcome::Failed { class, message } = outcome else { panic!("an error") };
            assert!(class.len() <= LONGEST_CLASS + 4 && message.len() <= LONGEST_MESSAGE + 4);
            assert!(message.ends_with("é ..."), "{message}");
        }
    }
}
