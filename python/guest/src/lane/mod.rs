//! The parts that the exchanges of all kinds of functions share: batches, answers, errors and
//! retries.

mod answer;
mod error;
mod exchange;
mod retry;

pub(crate) use answer::{fail, refuse, succeed};
pub(crate) use error::{CallError, CallResult, describe, ends_lane};
pub(crate) use exchange::Exchange;
pub(crate) use retry::{pause, retry_or_null};
