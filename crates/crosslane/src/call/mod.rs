//! Uses of functions: calls, the entries of aggregates, and scans ([`Scan`]).
//!
//! One call of a function with one batch goes over its own lane. It also goes over idle lanes if
//! that is faster. The same is true for one use of an aggregate's entry, which is a call with other
//! columns ([`crate::EntryTypes`]).
//!
//! The batch is cut into slices, as [`crate::cost`] describes. No slice is larger than the memory
//! of a lane, unless it is a single row, or rows that wait together. Each lane holds up to
//! [`DEPTH`] slices. So a guest finds its next slice while the engine copies the last results. A
//! lane that is done early takes the next slice. So the slowest lane does not decide how long the
//! batch takes.
//!
//! Every wait ends: with a reply, with the death of a lane (checked every `clock::TICK`), with the
//! function's timeout, or with the cancellation of the query. A lane that failed, or that still
//! works when the call ends, is dropped. This ends its process. All other lanes are given back.

mod answers;
mod chunk;
mod clock;
mod group;
mod input;
mod loss;
mod place;
mod results;
mod reuse;
mod scan;
mod spent;
mod stream;

pub use crate::function::pause;
pub use chunk::{budgeted, call, call_on, deliver, once};
pub(crate) use clock::Clock;
pub use group::{CallGroup, CallGroups, Caller};
pub use input::{Behind, Input, Output};
pub use place::place;
pub use results::Results;
pub use reuse::Reuse;
pub use scan::{Asked, LARGEST_PARTITIONS, LONGEST_BATCH, Row, Scan};
pub use spent::Spent;
pub use stream::{Iteration, LONGEST_ANSWER, Map, MapInput, MapOptions, MapStep, map_types, table_of};
