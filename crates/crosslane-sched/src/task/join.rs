//! The handle of a task, and the errors of a task without a result.

use super::contain::Contained;
use async_task::FallibleTask;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

type Payload = Box<dyn Any + Send>;

/// Why a task has no result.
pub enum JoinError {
    /// It was cancelled, by its handle or by the end of the scheduler.
    Cancelled,
    /// It panicked.
    Panicked(Panic),
}

/// The payload of a task's panic.
///
/// Payloads are only `Send`. The lock makes this `Sync` too, as errors must be.
pub struct Panic(pub(super) std::sync::Mutex<Payload>);

impl Panic {
    /// Returns the payload, for [`std::panic::resume_unwind`].
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        out.write_str(text.unwrap_or("(no text)"))
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => out.write_str("the task was cancelled"),
            JoinError::Panicked(panic) => write!(out, "the task panicked: {panic}"),
        }
    }
}

impl std::error::Error for JoinError {}

/// The handle of a task: a future of the task's result. The task goes on when the handle is
/// dropped.
#[derive(Debug)]
pub struct JoinHandle<T>(pub(super) Option<FallibleTask<Output<T>>>);

pub(super) type Output<T> = Contained<Result<T, JoinError>>;

impl<T> JoinHandle<T> {
    /// Cancels the task, unless it has ended, and waits until its future is dropped. If the caller
    /// drops the returned future, the task is cancelled too, without a wait.
    ///
    /// A waiting task is cancelled at once. A running task goes on until it waits.
    ///
    /// # Errors
    /// [`JoinError::Cancelled`], unless the task ended before. [`JoinError::Panicked`] if the task
    /// panicked before.
    pub fn cancel(mut self) -> impl Future<Output = Result<T, JoinError>> {
        let task = self.0.take().expect("a handle has its task until it is dropped");
        let mut cancelled = Box::pin(task.cancel());
        // The first poll cancels the task, also if the caller never awaits the result.
        let first = cancelled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        async move {
            joined(match first {
                Poll::Ready(output) => output,
                Poll::Pending => cancelled.await,
            })
        }
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(FallibleTask::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.0.as_mut().expect("a handle has its task until it is dropped");
        Pin::new(task).poll(context).map(joined)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

fn joined<T>(output: Option<Output<T>>) -> Result<T, JoinError> {
    output.ok_or(JoinError::Cancelled)?.into_inner()
}
