//! The entries of a worker's queue, and how a task gets there.

use crate::dispatcher::priority::Turn;
use crate::dispatcher::{Event, EventDispatcher};
use async_task::Runnable;
use std::sync::Arc;

/// An entry of a worker's queue.
#[derive(Debug)]
pub(crate) enum Job {
    Task(Runnable),
    /// A dispatcher that started a task. It is here only if dispatchers do not go first.
    Dispatch(Arc<EventDispatcher>, Turn<Event>),
}

/// How a task starts after this thread wakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The task goes into the worker's queue. This thread wakes an idle worker for it.
    Background,
    /// The first such task runs as soon as the dispatcher has put itself into its queue.
    Foreground,
    /// The task goes into the worker's queue behind a task in the foreground. This thread wakes no
    /// worker for it yet.
    Behind,
}
