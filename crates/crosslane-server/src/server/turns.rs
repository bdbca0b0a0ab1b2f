//! Work that blocks, such as that of a store of results: one job after the other, on one of the
//! scheduler's blocking threads. So jobs that would wait for each other hold one thread, and workers
//! can boot on the others.

use crosslane::lock;
use crosslane_sched::Handle;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use tracing::error;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that take turns.
#[derive(Default)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Whether a thread takes jobs.
    has_thread: bool,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl Turns {
    /// Adds a job, which runs after those that were added before.
    pub(crate) fn add(self: &Arc<Self>, handle: &Handle, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0);
        state.jobs.push_back(Box::new(job));
        if !std::mem::replace(&mut state.has_thread, true) {
            drop(state);
            let this = Arc::clone(self);
            drop(handle.spawn_blocking(move || this.run()));
        }
    }

    fn run(&self) {
        loop {
            let mut state = lock(&self.0);
            let Some(job) = state.jobs.pop_front() else {
                state.has_thread = false;
                return;
            };
            drop(state);
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                error!("a thread that looks for results has panicked; it goes on");
            }
        }
    }
}
