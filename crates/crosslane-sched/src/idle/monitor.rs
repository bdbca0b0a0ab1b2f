//! The state of the monitor ([`crate::worker::monitor`]): whether it is awake. Other threads wake
//! it here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};

#[derive(Debug, Default)]
pub(crate) struct Monitor {
    is_awake: AtomicBool,
    long_handlers: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Monitor {
    /// Wakes the monitor if it sleeps, because work waits behind a task in the foreground.
    pub(crate) fn watch(&self) {
        fence(Ordering::SeqCst);
        if !self.is_awake.load(Ordering::Relaxed) && !self.is_awake.swap(true, Ordering::SeqCst) {
            self.unpark();
        }
    }

    /// Notes that a handler took long. So the group stays eager for some time.
    pub(crate) fn saw_long_handler(&self) {
        self.long_handlers.store(true, Ordering::Relaxed);
        self.watch();
    }

    /// Makes the calling thread the monitor's thread.
    pub(crate) fn begin(&self) {
        self.thread.set(thread::current()).expect("a group has one monitor");
    }

    /// Returns whether a handler took long since the last call.
    pub(crate) fn take_long_handlers(&self) -> bool {
        self.long_handlers.swap(false, Ordering::Relaxed)
    }

    /// Notes that the monitor is about to sleep. The monitor looks at all work once more after
    /// this.
    pub(crate) fn begin_sleep(&self) {
        self.is_awake.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Notes that the monitor does not sleep.
    pub(crate) fn stay_awake(&self) {
        self.is_awake.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.is_awake.load(Ordering::SeqCst)
    }

    pub(crate) fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
