//! Uses of functions: calls, the entries of aggregates, and scans ([`Scan`]).
//!
//! One call of a function with one batch goes over its own lane, and over idle ones if that pays. So does one use of an
//! aggregate's entry, which is a call with other columns ([`crate::EntryTypes`]).
//! The batch is cut into slices: [`crate::cost`] says how, and none is larger than what a lane's own memory holds, unless
//! it is a single row, or rows that wait together. Each lane holds up to [`DEPTH`] slices, so
//! that a guest finds its next slice while the engine copies the last results; a lane that is done
//! early takes the next slice, so that the slowest lane does not decide how long the batch takes.
//!
//! Every wait ends: with a reply, with the death of a lane (looked for every `wait::TICK`), with the function's
//! timeout, or with the cancellation of the query. A lane that failed, or that still works when
//! the call ends, is dropped, which ends its process; all others are given back.

mod answers;
mod chunk;
mod clock;
mod group;
mod input;
mod loss;
mod place;
mod results;
mod scan;
mod stream;

pub use crate::function::backoff;
pub use chunk::{call, call_on, deliver};
pub(crate) use clock::Clock;
pub use group::{CallGroup, CallGroups, Caller};
pub use input::{Input, Output};
pub use place::place;
pub use results::Results;
pub use scan::{Asked, LARGEST_PARTITIONS, LONGEST_BATCH, Row, Scan};
pub use stream::{Iteration, LONGEST_ANSWER, Map, MapInput, MapOptions, MapStep, map_types, table_of};
