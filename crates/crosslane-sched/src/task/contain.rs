//! Catches panics of a user's code, because they must not reach a worker.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes a task. The waker may be a user's, so its panic must not reach the worker.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// Runs code of a user that returns nothing. The panic hook reports its panic.
fn contain(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        drop(Contained::new(payload));
    }
}

/// A value of a user whose drop may panic.
#[derive(Debug)]
pub(super) struct Contained<T>(pub(super) ManuallyDrop<T>);

impl<T> Contained<T> {
    pub(super) fn new(value: T) -> Self {
        Contained(ManuallyDrop::new(value))
    }

    pub(super) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is taken once, and `this` is not dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        // SAFETY: this is the only drop of the value. The value is not moved, because it may be
        // pinned.
        let dropped = catch_unwind(AssertUnwindSafe(|| unsafe { ManuallyDrop::drop(&mut self.0) }));
        // The payload of that panic may panic when it is dropped, and so on. So it is never
        // dropped.
        std::mem::forget(dropped);
    }
}
