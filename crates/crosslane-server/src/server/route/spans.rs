//! What a route tells of its exchanges to those who make spans. Without them it costs one check.

use super::Route;
use super::state::Flying;
use crate::server::spans::{Call, Outcome, Record};
use crosslane::batch::{FAILURE, Header, failure_text};
use crosslane::{Entry, Failure, lock};
use crosslane_remote::context::TraceContext;
use std::sync::Arc;

impl Route {
    /// Sets the context of the exchanges that the client opens from now on.
    pub(crate) fn set_context(&self, context: Option<TraceContext>) {
        lock(&self.state).context = context.map(Arc::new);
    }

    /// What is known of an exchange whose first batch a worker has got.
    pub(super) fn record(
        &self,
        context: &Option<Arc<TraceContext>>,
        entry: Entry,
        rows: usize,
        bytes: usize,
    ) -> Option<Box<Record>> {
        self.offer.spans.as_ref()?;
        let rows = if entry.is_answered_once() { rows as u64 } else { 0 };
        let received = bytes as u64;
        let (sent, retries, nulls, outcome) = (0, 0, 0, Outcome::Answered);
        let (context, makes_rows) = (context.clone(), !entry.is_answered_once());
        Some(Box::new(Record { context, rows, makes_rows, received, sent, retries, nulls, outcome }))
    }

    /// Tells that an exchange has ended. If there is no outcome, it is that of the record.
    pub(super) fn report(&self, ended: &Flying, outcome: Option<Outcome>) {
        let (Some(spans), Some(record)) = (&self.offer.spans, &ended.record) else { return };
        let served = &self.offer.functions[ended.served];
        spans.ended(&Call {
            function: served.function.name(),
            library: &self.offer.workers[served.workers].library.name,
            client: self.outbox.client,
            context: record.context.as_deref(),
            waited: ended.since - ended.came,
            took: ended.came.elapsed(),
            rows: record.rows,
            received: record.received,
            sent: record.sent,
            retries: record.retries,
            nulls: record.nulls,
            outcome: outcome.unwrap_or_else(|| record.outcome.clone()),
        });
    }
}

impl Record {
    /// Counts a message of the worker.
    pub(super) fn answer(&mut self, header: &Header, frame: &[u8]) {
        self.sent += frame.len() as u64;
        self.retries += u64::from(header.retries);
        self.nulls += u64::from(header.errors);
        if header.kind == FAILURE {
            let failure =
                failure_text(frame).ok().and_then(|text| serde_json::from_slice::<Failure>(text).ok());
            self.outcome = Outcome::failed(&failure.unwrap_or_default());
        } else if self.makes_rows {
            self.rows += u64::from(header.rows);
        }
    }
}
