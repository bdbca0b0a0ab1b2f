//! The thread that runs HTTP, with a runtime of tokio.
//!
//! Connections of clients are tasks of the scheduler, and calls never use this thread. Dropping the
//! [`HttpRuntime`] drops its tasks, and all tasks that they have spawned. It does not wait for those that
//! block.

use std::io;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime of tokio. Dropping it ends the thread.
#[derive(Debug)]
pub struct HttpRuntime {
    handle: Handle,
    /// Ends the thread when it is dropped.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread, or nothing to wait with.
    pub fn start() -> io::Result<Self> {
        let tokio = Builder::new_current_thread().enable_all().build()?;
        let handle = tokio.handle().clone();
        let (open, closed) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("crosslane-http".into()).spawn(move || {
            // An error is the end, too.
            let _ = tokio.block_on(closed);
            // A task that blocks, such as one that asks for the address of a name, may take minutes.
            tokio.shutdown_background();
        })?;
        Ok(Self { handle, open: Some(open), thread: Some(thread) })
    }

    /// Runs a function that makes tasks of this runtime.
    #[cfg(feature = "otel")]
    pub(crate) fn within<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }

    /// Runs a task until this is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }
}

impl Drop for HttpRuntime {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Sends a message when it is dropped.
    struct Guard(mpsc::Sender<()>);

    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_task_that_blocks_does_not_hold_up_the_end() {
        let runtime = HttpRuntime::start().unwrap();
        let (ready, is_ready) = mpsc::channel();
        let (_open, blocked) = mpsc::channel::<()>();
        runtime.spawn(async move {
            drop(tokio::task::spawn_blocking(move || {
                ready.send(()).unwrap();
                let _ = blocked.recv();
            }));
        });
        is_ready.recv_timeout(Duration::from_secs(30)).unwrap();
        drop(runtime);
    }

    #[test]
    fn tasks_and_what_they_spawn_end_with_the_runtime() {
        let runtime = HttpRuntime::start().unwrap();
        let (ended, ends) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        runtime.spawn(async move {
            let (ours, theirs) = (Guard(ended.clone()), Guard(ended));
            let spawned = tokio::spawn(async move {
                let _guard = theirs;
                pending::<()>().await;
            });
            ready.send(()).unwrap();
            spawned.await.unwrap();
            drop(ours);
        });
        is_ready.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(ends.try_recv().is_err());
        drop(runtime);
        assert_eq!(ends.iter().count(), 2);
    }
}
