//! The thread of all doors that need tokio.
//!
//! Connections of clients are tasks of the scheduler, and calls never meet this thread. A door is a future, which is
//! dropped, with all that it has spawned, when the doors are closed.

use std::fmt;
use std::io;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime of tokio.
pub struct Doors {
    handle: Handle,
    /// Ends the thread when it is dropped.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doors").finish_non_exhaustive()
    }
}

impl Doors {
    /// Starts the thread, without a door yet.
    ///
    /// # Errors
    /// If the system has no thread, or nothing to wait with.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (open, closed) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("crosslane-doors".into()).spawn(move || {
            // An error is the end, too.
            let _ = runtime.block_on(closed);
        })?;
        Ok(Self { handle, open: Some(open), thread: Some(thread) })
    }

    /// Opens a door, until the doors are dropped.
    pub fn open(&self, door: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(door));
    }
}

impl Drop for Doors {
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

    /// Tells of its end.
    struct Guard(mpsc::Sender<()>);

    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn doors_and_what_they_spawn_end_with_them() {
        let doors = Doors::start().unwrap();
        let (ended, ends) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        doors.open(async move {
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
        drop(doors);
        assert_eq!(ends.iter().count(), 2);
    }
}
