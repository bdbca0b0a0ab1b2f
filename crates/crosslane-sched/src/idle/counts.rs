//! Counts the workers that sleep or search for work, and wakes one if needed.
//!
//! A worker without work counts itself as idle, looks at all queues once more, and only then
//! sleeps. It is then a *poller* or a *sleeper*. A poller waits for events
//! ([`Poller`](crate::idle::Poller)). A sleeper ([`Idle::sleep`]) waits until a thread wakes it.
//! One poller is enough while handlers are short. Then one worker with warm caches handles events
//! that come close together. When handlers are long, the group is *eager*: all its idle workers are
//! pollers. Then the kernel wakes the next poller for an event that comes during a handler.
//!
//! A thread that adds work adds it first, and then reads the counts:
//!
//! - If no worker is idle, all workers are busy, and each looks at all queues before it sleeps.
//! - If a worker is *searching*, it will find the work, or count itself as idle and look again.
//! - If a wake is under way, the worker that receives it first counts itself as searching, and then
//!   looks.
//! - Otherwise the thread wakes a sleeper, or a poller if there is no sleeper.
//!
//! There is a sequentially consistent fence between adding work and reading the counts. There is
//! another fence between changing the counts and looking at the queues. One of two such fences
//! comes first. So either the worker sees the work, or the thread that added the work sees that the
//! worker is idle. A worker that becomes a sleeper looks once more after that, because it may have
//! missed a wake for sleepers. The kernel keeps a wake for pollers until a worker polls.

use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering, fence, lock};

/// The counts of one group of workers.
#[derive(Debug)]
pub(crate) struct Idle {
    /// How many workers are idle (upper half) and how many are searching (lower half).
    counts: AtomicU64,
    /// A wake for pollers is under way.
    waking: AtomicBool,
    pollers: AtomicU64,
    eager: AtomicBool,
    sleepers: Mutex<Sleepers>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Sleepers {
    sleeping: usize,
    /// How many of them are to wake.
    wakes: usize,
}

const ONE_IDLE: u64 = 1 << 32;
const ONE_SEARCHING: u64 = 1;

impl Idle {
    pub(crate) fn new() -> Self {
        Idle {
            counts: AtomicU64::new(0),
            waking: AtomicBool::new(false),
            pollers: AtomicU64::new(0),
            eager: AtomicBool::new(false),
            sleepers: Mutex::new(Sleepers::default()),
            wake: Condvar::new(),
        }
    }

    /// Wakes a worker for work that was added before, if needed. `wake_poller` wakes a worker that
    /// waits for events, or the next worker that begins to wait.
    pub(crate) fn wake_one(&self, wake_poller: impl FnOnce()) {
        fence(Ordering::SeqCst);
        let counts = self.counts.load(Ordering::Relaxed);
        let (idle, searching) = (counts >> 32, counts as u32);
        if idle > 0 && searching == 0 && !self.wake_sleeper() && !self.waking.swap(true, Ordering::SeqCst) {
            wake_poller();
        }
    }

    /// Wakes a sleeper. Returns false if there is no sleeper.
    fn wake_sleeper(&self) -> bool {
        let mut sleepers = lock(&self.sleepers);
        if sleepers.sleeping == 0 {
            return false;
        }
        if sleepers.wakes == 0 {
            sleepers.wakes = 1;
            self.wake.notify_one();
        }
        true
    }

    /// Wakes all sleepers.
    pub(crate) fn wake_sleepers(&self) {
        let mut sleepers = lock(&self.sleepers);
        sleepers.wakes = sleepers.sleeping;
        self.wake.notify_all();
    }

    /// Sleeps until a thread wakes this worker, unless there is work now. Returns whether it was
    /// woken.
    pub(crate) fn sleep(&self, has_work: impl FnOnce() -> bool) -> bool {
        let mut sleepers = lock(&self.sleepers);
        sleepers.sleeping += 1;
        drop(sleepers);
        let has_work = has_work();
        sleepers = lock(&self.sleepers);
        while sleepers.wakes == 0 && !has_work {
            sleepers = self.wake.wait(sleepers).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        sleepers.sleeping -= 1;
        let was_woken = sleepers.wakes > 0;
        sleepers.wakes = sleepers.wakes.saturating_sub(1);
        was_woken
    }

    /// Returns whether the worker becomes a poller. Otherwise it becomes a sleeper.
    pub(crate) fn enter_poll(&self) -> bool {
        if self.eager.load(Ordering::SeqCst) {
            self.pollers.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        self.pollers.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn leave_poll(&self) {
        self.pollers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether no worker waits for events.
    pub(crate) fn nobody_polls(&self) -> bool {
        self.pollers.load(Ordering::SeqCst) == 0
    }

    /// Returns whether handlers take long. Then all idle workers are pollers.
    pub(crate) fn is_eager(&self) -> bool {
        self.eager.load(Ordering::Relaxed)
    }

    /// Sets whether all idle workers are pollers. Sleepers wake to become pollers.
    pub(crate) fn set_eager(&self, eager: bool) {
        if self.eager.swap(eager, Ordering::SeqCst) != eager && eager {
            self.wake_sleepers();
        }
    }

    /// Returns whether a worker is idle.
    pub(crate) fn any(&self) -> bool {
        self.counts.load(Ordering::Relaxed) >> 32 > 0
    }

    /// Counts a worker that is about to sleep as idle. The worker looks at all queues after this,
    /// and before it sleeps.
    pub(crate) fn enter(&self) {
        self.counts.fetch_add(ONE_IDLE, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Notes that a worker is no longer idle.
    pub(crate) fn leave(&self) {
        self.counts.fetch_sub(ONE_IDLE, Ordering::SeqCst);
    }

    /// Notes that a sleeper was woken. It is no longer idle, and it searches.
    pub(crate) fn woken(&self) {
        self.counts.fetch_sub(ONE_IDLE - ONE_SEARCHING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// As [`Idle::woken`], for a poller that received the wake for pollers.
    pub(crate) fn poller_woken(&self) {
        self.counts.fetch_sub(ONE_IDLE - ONE_SEARCHING, Ordering::SeqCst);
        self.waking.swap(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Notes that a woken worker stops searching, because it found work or is about to become idle.
    /// Returns true if no other worker searches. Then a worker that found work must check whether
    /// there is more, and wake the next worker.
    pub(crate) fn stop_searching(&self) -> bool {
        let counts = self.counts.fetch_sub(ONE_SEARCHING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        counts as u32 == 1
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    struct Group {
        idle: Idle,
        /// A model of the kernel: it keeps a wake for pollers until a worker receives it.
        kernel: (Mutex<bool>, Condvar),
        work: AtomicUsize,
        done: AtomicUsize,
    }

    impl Group {
        fn new() -> Arc<Self> {
            Arc::new(Group {
                idle: Idle::new(),
                kernel: (Mutex::new(false), Condvar::new()),
                work: AtomicUsize::new(0),
                done: AtomicUsize::new(0),
            })
        }

        fn add_work(&self) {
            self.work.fetch_add(1, Ordering::Release);
            self.wake_one();
        }

        fn wake_one(&self) {
            self.idle.wake_one(|| {
                *lock(&self.kernel.0) = true;
                self.kernel.1.notify_one();
            });
        }

        fn poll(&self) {
            let mut wake = lock(&self.kernel.0);
            while !*wake {
                wake = self.kernel.1.wait(wake).unwrap();
            }
            *wake = false;
        }

        fn has_work(&self) -> bool {
            self.work.load(Ordering::Acquire) > 0
        }

        fn take(&self) -> bool {
            let took =
                self.work.fetch_update(Ordering::AcqRel, Ordering::Acquire, |work| work.checked_sub(1));
            took.is_ok() && {
                self.done.fetch_add(1, Ordering::SeqCst);
                true
            }
        }

        fn stop_searching(&self, searching: bool) {
            if searching && self.idle.stop_searching() && self.has_work() {
                self.wake_one();
            }
        }

        /// A worker as in `worker/events.rs`, which ends after one piece of work.
        fn worker(&self) {
            let mut searching = false;
            loop {
                if self.has_work() && self.take() {
                    return self.stop_searching(searching);
                }
                if std::mem::take(&mut searching) {
                    self.idle.stop_searching();
                }
                self.idle.enter();
                if self.has_work() {
                    self.idle.leave();
                } else if self.idle.enter_poll() {
                    self.poll();
                    self.idle.leave_poll();
                    self.idle.poller_woken();
                    searching = true;
                } else if self.idle.sleep(|| self.has_work()) {
                    self.idle.woken();
                    searching = true;
                } else {
                    self.idle.leave();
                }
            }
        }
    }

    /// Loom reports a deadlock if a worker sleeps although there is work.
    #[test]
    fn loom_a_poller_is_woken() {
        loom::model(|| {
            let group = Group::new();
            let worker = {
                let group = group.clone();
                thread::spawn(move || group.worker())
            };
            group.add_work();
            worker.join().unwrap();
            assert_eq!(group.done.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn loom_a_poller_and_a_sleeper_are_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let group = Group::new();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let group = group.clone();
                    thread::spawn(move || group.worker())
                })
                .collect();
            group.add_work();
            group.add_work();
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(group.done.load(Ordering::SeqCst), 2);
        });
    }
}
