//! `crosslane_map`: the rows of a query as the input of a stream function.

mod feed;
mod map;
mod scan;

pub(crate) use map::register;
