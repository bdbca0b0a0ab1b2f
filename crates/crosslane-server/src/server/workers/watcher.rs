//! The thread that waits for all workers.

use super::slot::Slot;
use crate::server::outbox::gathered;
use crosslane::lock;
use crosslane_ring::{Bell, Slice, Spin, wait_any};
use crosslane_sched::BusyPoll;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::error;

/// How often the watcher looks at deaths, deadlines and progress.
const TICK: Duration = Duration::from_millis(10);
/// How often the thread that polls turns off the watcher's wake-ups
/// ([`Watch::suppress_wakes`](crosslane_ring::Watch::suppress_wakes)). The watcher turns them on
/// whenever it is about to sleep. It could not sleep if they were turned off all the time.
const SUPPRESSION: Duration = Duration::from_micros(100);

/// The thread that waits for all workers.
pub(crate) struct Watcher {
    slots: Mutex<Arc<Vec<Arc<Slot>>>>,
    /// Changes when the list changes, or when the watcher is to look at once.
    version: AtomicU64,
    bell: Bell,
    stop: AtomicBool,
    start: Instant,
    /// When the thread that polls turns off wake-ups again, in microseconds since the start.
    suppress_next: AtomicU64,
}

impl Watcher {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::default(),
            version: AtomicU64::new(0),
            bell: Bell::default(),
            stop: AtomicBool::new(false),
            start: Instant::now(),
            suppress_next: AtomicU64::new(0),
        })
    }

    /// Starts the watcher's thread. It calls `look` every [`TICK`]. After a panic, it logs the
    /// panic and goes on with the next message. Without this thread, the calls of all clients would
    /// wait for ever.
    pub(crate) fn start(
        self: &Arc<Self>,
        look: impl Fn() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let this = Arc::clone(self);
        std::thread::Builder::new().name("crosslane-watcher".into()).spawn(move || {
            // The same panic may come again at once.
            while catch_unwind(AssertUnwindSafe(|| this.run(&look))).is_err() && !this.stop.load(Relaxed) {
                error!("the thread that takes results has panicked; it goes on");
                thread::sleep(TICK);
            }
        })
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.bell.ring();
    }

    /// Wakes the watcher: it looks at its list and its rings at once.
    pub(crate) fn wake(&self) {
        self.version.fetch_add(1, Relaxed);
        self.bell.ring();
    }

    pub(super) fn add(&self, slot: &Arc<Slot>) {
        Arc::make_mut(&mut lock(&self.slots)).push(Arc::clone(slot));
        self.wake();
    }

    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        Arc::make_mut(&mut lock(&self.slots)).retain(|other| !Arc::ptr_eq(other, slot));
        self.wake();
    }

    fn run(&self, look: impl Fn()) {
        // With a short time slice, this thread passes replies on before threads that compute go on.
        let slice = Slice::new(true);
        slice.shorten();
        let mut next = Instant::now() + TICK;
        while !self.stop.load(Relaxed) {
            let version = self.version.load(Relaxed);
            let slots = self.slots();
            let has_news = || slots.iter().any(|slot| slot.has_news());
            let changed = || self.stop.load(Relaxed) || self.version.load(Relaxed) != version;
            let waiters = slots.iter().filter(|slot| !slot.stalled.load(Relaxed));
            let waiters = waiters.map(|slot| slot.watch.waiter()).chain(iter::once(self.bell.waiter()));
            let timeout = next.saturating_duration_since(Instant::now());
            wait_any(waiters, Spin(Duration::ZERO), timeout, || has_news() || changed());
            self.serve_all(&slots);
            if Instant::now() >= next {
                next = Instant::now() + TICK;
                slots.iter().for_each(|slot| self.look(slot));
                look();
            }
        }
    }

    fn slots(&self) -> Arc<Vec<Arc<Slot>>> {
        Arc::clone(&lock(&self.slots))
    }

    /// Lets the routes take the replies of all lanes.
    fn serve_all(&self, slots: &[Arc<Slot>]) {
        gathered(|| slots.iter().filter(|slot| slot.has_news()).for_each(|slot| self.serve(slot)));
    }

    fn serve(&self, slot: &Arc<Slot>) {
        let used = lock(&slot.borrower);
        let Some(borrower) = used.clone() else {
            // There are two cases. No route has asked for these messages: the next look finds out
            // why. Or the route was faster, and has given the worker back.
            slot.stalled.store(slot.watch.has_news(), Relaxed);
            return;
        };
        drop(used);
        borrower.pump();
    }

    fn look(&self, slot: &Arc<Slot>) {
        let borrower = lock(&slot.borrower).clone();
        if let Some(borrower) = borrower {
            borrower.look(slot);
        }
    }
}

impl BusyPoll for Watcher {
    fn look(&self) -> bool {
        let slots = self.slots();
        let now = self.start.elapsed().as_micros() as u64;
        if now >= self.suppress_next.load(Relaxed) {
            self.suppress_next.store(now + SUPPRESSION.as_micros() as u64, Relaxed);
            slots.iter().for_each(|slot| slot.watch.suppress_wakes());
        }
        slots.iter().any(|slot| slot.has_news())
    }

    fn handle(&self) {
        self.serve_all(&self.slots());
    }

    fn rest(&self) {
        self.suppress_next.store(0, Relaxed);
        self.slots().iter().for_each(|slot| slot.watch.resume_wakes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_watcher_goes_on_after_a_panic() {
        let watcher = Watcher::new();
        let (sender, looked) = mpsc::channel();
        let thread = watcher.start(move || {
            sender.send(()).expect("the test waits");
            panic!("a test's");
        });
        // The second look comes after the panic of the first.
        looked.recv().unwrap();
        looked.recv().unwrap();
        watcher.stop();
        drop(looked);
        thread.unwrap().join().unwrap();
    }
}
