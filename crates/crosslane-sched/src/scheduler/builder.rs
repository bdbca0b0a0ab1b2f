//! Makes schedulers.

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
    /// Begins another tag: a group of workers that shares no tasks with other groups.
    pub fn tag(mut self, tag: &str) -> Self {
        self.0.push(Options::new(tag));
        self
    }

    /// Sets how many ordinary tasks run at a time. The default is the number of processors.
    pub fn workers(mut self, workers: usize) -> Self {
        self.last().workers = workers;
        self
    }

    /// Sets how many further threads dispatch events while all workers are busy with long tasks.
    /// The default is four for each worker. Without dispatchers there are none.
    pub fn reserve(mut self, reserve: usize) -> Self {
        self.last().reserve = Some(reserve);
        self
    }

    /// Sets how many event dispatchers share the sockets. The default is 1. Without a dispatcher,
    /// the group's tasks cannot wait for sockets.
    pub fn dispatchers(mut self, dispatchers: usize) -> Self {
        self.last().dispatchers = dispatchers;
        self
    }

    /// Sets whether dispatchers go first. The default is true. Set it to false to measure its
    /// effect.
    pub fn priority(mut self, priority: bool) -> Self {
        self.last().priority = priority;
        self
    }

    /// Sets the most threads for calls that block ([`spawn_blocking`](crate::spawn_blocking)). The
    /// default is 512.
    pub fn blocking(mut self, threads: usize) -> Self {
        self.last().blocking = threads;
        self
    }

    /// Sets how long a worker polls after the last event before it sleeps. The worker polls
    /// `source` together with its sockets. By default, workers do not poll. A polling worker yields
    /// between polls, and sleeps at once if other threads need the processor.
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
    /// [`io::ErrorKind::InvalidInput`] if two tags have the same name, or a name has a NUL. Also if
    /// a tag has no workers, no thread for calls that block, or a number above 32,768. Otherwise
    /// the errors of the kernel, which may have no descriptors or threads left.
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
    /// Returns a builder that begins with the tag `default`.
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
