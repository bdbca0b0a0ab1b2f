//! Workers: the threads of a group that run its dispatchers and tasks.

mod current;
mod events;
mod job;
pub(crate) mod monitor;
mod run;

pub(crate) use current::{Current, run};
pub(crate) use job::{Job, Start};
pub(crate) use run::Worker;
