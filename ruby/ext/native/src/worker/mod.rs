//! Calls of an engine: the zygote forks workers, and a worker serves its lane. Threads serve host lanes alike.

pub(crate) mod control;
pub(crate) mod serve;
pub(crate) mod zygote;
