//! Functions that Ruby declared, and how they are called: in a worker, and in host lanes.

pub(crate) mod aggregate;
pub(crate) mod block;
pub(crate) mod callable;
pub(crate) mod concurrent;
pub(crate) mod scalar;
pub(crate) mod table;
