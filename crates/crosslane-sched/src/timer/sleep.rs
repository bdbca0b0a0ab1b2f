//! Futures that wait for a time.

use super::timers::{FAR_AWAY, Key};
use crate::scheduler::Group;
use crate::worker::Current;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

fn after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or(now + FAR_AWAY)
}

/// Waits for a duration.
///
/// # Panics
/// If it is polled outside of a task or `block_on` of a scheduler. Also after the scheduler has
/// shut down, and in a process that was forked from the scheduler's process. There, no thread would
/// ever wake it.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { due: after(duration), group: None, key: None }
}

/// A future that is ready at a given time. See [`sleep`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    due: Instant,
    /// The group whose timers have this sleeper.
    group: Option<Arc<Group>>,
    key: Option<Key>,
}

impl Sleep {
    /// Makes a sleep that uses the timers of this group. Any thread may poll it.
    pub(crate) fn within(group: Arc<Group>, duration: Duration) -> Self {
        Sleep { due: after(duration), group: Some(group), key: None }
    }

    /// Polls the sleep. Returns an error if no thread would ever wake it.
    pub(crate) fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.due <= Instant::now() {
            return Poll::Ready(Ok(()));
        }
        let outside = "sleep is awaited in a task of a scheduler";
        let group = self.group.get_or_insert_with(|| Current::group().expect(outside));
        // In another process the lock of the timers may be held for ever.
        group.check()?;
        if let Some(key) = self.key {
            drop(group.timers.set_waker(key, context.waker().clone()));
        } else {
            self.key = Some(group.timers.add(self.due, context.waker().clone(), &group.poller)?);
        }
        // The scheduler may have ended between the two steps, without seeing the waker.
        group.check()?;
        Poll::Pending
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let due = self.poll_due(context);
        due.map(|due| due.unwrap_or_else(|error| panic!("a sleep would never end: {error}")))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(group), Some(key)) = (&self.group, self.key)
            && group.process.is_this()
        {
            // The waker may hold the last reference to its task, so it is dropped without the lock.
            drop(group.timers.remove(key));
        }
    }
}

/// The error of a [`timeout`] whose limit has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the time was over before the future was ready")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> Self {
        io::Error::new(io::ErrorKind::TimedOut, elapsed)
    }
}

/// Waits for a future, for at most `limit` from now on. The future is dropped when this returns.
///
/// If the future is ready, this returns its output, even when it is polled after the limit.
///
/// # Errors
/// [`Elapsed`] if the limit has passed. `?` turns it into an [`io::Error`] of the kind
/// [`io::ErrorKind::TimedOut`].
///
/// # Panics
/// As [`sleep`].
pub fn timeout<F: Future>(limit: Duration, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
    let mut sleep = sleep(limit);
    async move {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => Pin::new(&mut sleep).poll(context).map(|()| Err(Elapsed)),
        })
        .await
    }
}
