//! How a scheduler is made.

use super::options::Options;
use super::running::Scheduler;
use crate::idle::{BusyPoll, Polled};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The options of a scheduler. Each option sets the tag that was named last.
#[derive(Clone, Debug)]
#[must_use = "nothing runs before `start`"]
pub struct Builder(Vec<Options>);

impl Builder {
    /// Begins another tag: a group of workers of its own, which share no tasks with other groups.
    pub fn tag(mut self, tag: &str) -> Self {
        self.0.push(Options::new(tag));
        self
    }

    /// How many ordinary tasks run at a time; the number of processors unless set.
    pub fn workers(mut self, workers: usize) -> Self {
        self.last().workers = workers;
        self
    }

    /// How many further threads dispatch events while all workers are busy with long tasks; four
    /// for each worker unless set, and none without dispatchers.
    pub fn reserve(mut self, reserve: usize) -> Self {
        self.last().reserve = Some(reserve);
        self
    }

    /// How many event dispatchers share the sockets; 1 unless set. Without one, the group's tasks
    /// cannot wait for sockets.
    pub fn dispatchers(mut self, dispatchers: usize) -> Self {
        self.last().dispatchers = dispatchers;
        self
    }

    /// Whether dispatchers go first; true unless set. Switch it off to measure its effect.
    pub fn priority(mut self, priority: bool) -> Self {
        self.last().priority = priority;
        self
    }

    /// The most threads for calls that block ([`spawn_blocking`](crate::spawn_blocking)); 512
    /// unless set.
    pub fn blocking(mut self, threads: usize) -> Self {
        self.last().blocking = threads;
        self
    }

    /// How long a worker polls after the last event before it sleeps, and the source that it polls
    /// together with its sockets; no polling unless set. It yields between polls, and sleeps at
    /// once if other threads need the processor.
    pub fn busy_poll(mut self, time: Duration, source: Arc<dyn BusyPoll>) -> Self {
        self.last().polled = Some(Polled { time, source });
        self
    }

    fn last(&mut self) -> &mut Options {
        self.0.last_mut().expect("a builder begins with a tag")
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a tag stands twice, has a NUL in its name, no workers, no
    /// thread for calls that block, or more than 32,768 of something; otherwise those of the
    /// kernel, which may have no descriptors or threads left.
    pub fn start(self) -> io::Result<Scheduler> {
        let mut scheduler = Scheduler { handles: Vec::new() };
        for options in self.0 {
            options.check()?;
            if scheduler.tag(&options.tag).is_some() {
                let text = format!("the tag {:?} stands twice", options.tag);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            scheduler.start_group(&options)?;
        }
        Ok(scheduler)
    }
}

impl Scheduler {
    /// Begins with the tag `default`.
    pub fn builder() -> Builder {
        Builder(vec![Options::new("default")])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::BlockingStats;
    use std::thread;

    #[test]
    fn a_thread_for_calls_that_block_ends_when_it_has_nothing_to_do() {
        let mut builder = Scheduler::builder().workers(1);
        builder.last().keep = Duration::from_millis(1);
        let scheduler = builder.start().unwrap();
        for number in 1..3 {
            scheduler.block_on(scheduler.handle().spawn_blocking(|| ())).unwrap();
            while scheduler.handle().blocking() != (BlockingStats { runs: number, ..Default::default() }) {
                thread::yield_now();
            }
        }
    }
}
