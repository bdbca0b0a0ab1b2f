//! Panics of a user's code that no worker may see.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes. A waker may be a user's, and its panic is none of a worker.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

/// Runs the code of a user of which nobody awaits a result. The panic hook has told of a panic.
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
        // SAFETY: this is the only drop of the value, which is not moved, as it may be pinned.
        let dropped = catch_unwind(AssertUnwindSafe(|| unsafe { ManuallyDrop::drop(&mut self.0) }));
        // What a panic in a drop leaves behind may panic as well when it is dropped, and so on.
        std::mem::forget(dropped);
    }
}
