//! Functions that Ruby declared, and their calls in a worker and in host lanes.

pub(crate) mod aggregate;
pub(crate) mod block;
pub(crate) mod callable;
pub(crate) mod concurrent;
pub(crate) mod scalar;
pub(crate) mod table;
