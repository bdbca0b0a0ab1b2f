//! Stream functions: a batch of Arrow in, any number of batches out, for each batch or for all.
//!
//! A function that sees all batches gets an iterator of them, which waits for the next one in the
//! lane. The function may give the iterator to threads of its own, while others of its results are
//! sent. So the lane is shared by all of them.

mod batch_type;
mod input;
mod shared_lane;
mod streams;

pub(crate) use batch_type::{BatchType, BatchTypes, TypedBatch, table_type};
pub(crate) use streams::{Streams, set_up};
