//! A loaded library.

use super::definition::Function;
use crate::pool::{Pool, Zygote};
use std::sync::Arc;

/// The functions of one loaded file, and the pool that runs them.
#[derive(Debug)]
pub struct Library<Z: Zygote> {
    /// The file, or the name under which the functions were registered.
    pub name: String,
    /// The number of this load of the name, from 1.
    pub version: u32,
    /// The functions.
    pub functions: Vec<Arc<Function>>,
    /// The warm lanes.
    pub pool: Pool<Z>,
}
