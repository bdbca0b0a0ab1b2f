//! The guest in this process: batches go in, results or failures come out. The tests in
//! `python/tests` run the guest behind an engine. `ways_out` tries what its host refuses.

mod aggregates;
mod calls;
mod isolates;
mod scans;
mod set_up;
mod support;
mod ways_out;
