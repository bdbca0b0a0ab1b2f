//! Stream functions: batches of Arrow in, batches of Arrow out.

mod streams;

pub(crate) use streams::*;
