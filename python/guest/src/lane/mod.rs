//! What the exchanges of all kinds of functions share: their batches, their answers, and what follows a failed call.

mod answer;
mod exchange;
mod retry;

pub(crate) use answer::{describe, ends_lane, fail, refuse, succeed};
pub(crate) use exchange::Exchange;
pub(crate) use retry::{CallError, backoff, forgive};
