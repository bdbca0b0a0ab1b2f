//! What is in a worker's queue, and how a task gets there.

use crate::dispatcher::priority::Turn;
use crate::dispatcher::{Event, EventDispatcher};
use async_task::Runnable;
use std::sync::Arc;

/// What is in a worker's queue.
#[derive(Debug)]
pub(crate) enum Job {
    Task(Runnable),
    /// A dispatcher that started a task, when dispatchers do not go first.
    Dispatch(Arc<EventDispatcher>, Turn<Event>),
}

/// How a task starts that this thread wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The task goes into the worker's queue, and an idle worker is woken for it.
    Background,
    /// The first such task runs as soon as the dispatcher has put itself into its queue.
    Foreground,
    /// The task goes into the worker's queue behind a task in the foreground. No worker is woken
    /// for it yet.
    Behind,
}
