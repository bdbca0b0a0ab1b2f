//! Handles. With a handle, any thread can use the workers of one tag.

use super::group::Group;
use crate::dispatcher::Dispatcher;
use crate::io::Io;
use crate::stats::{BlockingStats, Counters, WorkerStats};
use crate::task::JoinHandle;
use crate::worker::Current;
use rustix::fd::AsFd;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Gives any thread access to the workers of one tag.
#[derive(Clone, Debug)]
pub struct Handle(pub(super) Arc<Group>);

impl Handle {
    /// Returns the handle of the tag whose task or `block_on` runs on this thread.
    pub fn current() -> Option<Handle> {
        Current::group().map(Handle)
    }

    /// Makes a call that blocks, on one of this tag's threads for such calls. See
    /// [`spawn_blocking`](crate::spawn_blocking).
    ///
    /// # Panics
    /// If the tag has no such thread and can make none, and in a process that was forked from the
    /// scheduler's process.
    pub fn spawn_blocking<F, T>(&self, call: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.spawn_blocking(call)
    }

    /// Starts a task in the background. After the scheduler has ended it is cancelled at once.
    ///
    /// # Panics
    /// In a process that was forked from the scheduler's process.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.spawn(future)
    }

    /// Runs a future on this thread. The tasks that it spawns run on the workers of this tag.
    ///
    /// # Panics
    /// On a worker, because it would wait for itself. Also in a process that was forked from the
    /// scheduler's process.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(!Current::is_worker(), "block_on is not called in a task: await the future there");
        self.0.assert_not_forked();
        let _entered = Current::enter(self.0.clone());
        let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
        let waker = Waker::from(unpark.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            // The future may have parked the thread itself, and may have used up the unpark of the
            // wake.
            while !unpark.is_woken.swap(false, Ordering::SeqCst) {
                thread::park();
            }
        }
    }

    /// Registers the descriptor with a dispatcher of this tag. See [`Io::new`].
    ///
    /// # Errors
    /// As [`Io::new`].
    pub fn io<T: AsFd>(&self, descriptor: T) -> io::Result<Io<T>> {
        Io::register(descriptor, self.0.clone(), None)
    }

    /// Adds an event dispatcher.
    pub fn dispatcher(&self) -> Dispatcher {
        Dispatcher { group: self.0.clone(), inner: self.0.dispatchers.add() }
    }

    /// Returns the statistics of each worker.
    pub fn stats(&self) -> Vec<WorkerStats> {
        self.0.counters.iter().map(Counters::read).collect()
    }

    /// Returns the statistics of the threads for calls that block.
    pub fn blocking(&self) -> BlockingStats {
        self.0.blocking.stats()
    }

    /// Returns how many tasks have not ended. Calls that block count too.
    pub fn tasks(&self) -> usize {
        self.0.tasks.count()
    }
}

struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}
