//! Serves the calls of an engine. The zygote forks workers, and each worker serves its lane. Host
//! lanes are served by threads in the same way.

pub(crate) mod control;
pub(crate) mod serve;
pub(crate) mod zygote;
