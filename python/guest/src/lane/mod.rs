//! What the exchanges of all kinds of functions share: their batches, their answers, and what follows a failed call.

mod answer;
mod error;
mod exchange;
mod retry;

pub(crate) use answer::{fail, refuse, succeed};
pub(crate) use error::{CallError, describe, ends_lane};
pub(crate) use exchange::Exchange;
pub(crate) use retry::{backoff, forgive};
