//! Busy polling, as programs use it.

use crosslane_sched::{BusyPoll, Scheduler, Shutdown};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

/// Wakes a task when a poll finds it full.
#[derive(Default)]
struct Letterbox {
    is_full: AtomicBool,
    reader: Mutex<Option<Waker>>,
    /// Whether `handle` panics.
    panics: AtomicBool,
    looks: AtomicUsize,
    /// Whether the last call was `rest`.
    rests: AtomicBool,
}

impl BusyPoll for Letterbox {
    fn look(&self) -> bool {
        self.looks.fetch_add(1, SeqCst);
        self.rests.store(false, SeqCst);
        self.is_full.load(SeqCst) && self.reader.lock().unwrap().is_some()
    }

    fn handle(&self) {
        let reader = self.reader.lock().unwrap().take();
        reader.into_iter().for_each(Waker::wake);
        assert!(!self.panics.load(SeqCst), "as it was told");
    }

    fn rest(&self) {
        self.rests.store(true, SeqCst);
    }
}

impl Letterbox {
    /// Waits until it is full.
    async fn read(&self) {
        let mut is_registered = false;
        poll_fn(|context| {
            if is_registered && self.reader.lock().unwrap().is_none() {
                return Poll::Ready(());
            }
            is_registered = true;
            *self.reader.lock().unwrap() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

fn polling(time: Duration) -> (Scheduler, Arc<Letterbox>) {
    let letterbox = Arc::<Letterbox>::default();
    let builder = Scheduler::builder().workers(1).reserve(0).busy_poll(time, letterbox.clone());
    (builder.start().unwrap(), letterbox)
}

/// Waits until a condition is true.
#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut look = || {
        thread::sleep(Duration::from_millis(1));
        is_so()
    };
    assert!((0..30_000).any(|_| look()), "{what}");
}

/// Wakes the worker, which may pause its polling on a busy machine.
fn call_worker(scheduler: &Scheduler) {
    scheduler.block_on(scheduler.handle().spawn(async {})).unwrap();
}

#[test]
fn a_task_that_a_poll_wakes_runs_on_the_polling_worker() {
    let (scheduler, letterbox) = polling(Duration::from_millis(5));
    let (reader, here) = (letterbox.clone(), Arc::<Mutex<Option<thread::ThreadId>>>::default());
    let told = here.clone();
    drop(scheduler.handle().spawn(async move {
        reader.read().await;
        *told.lock().unwrap() = Some(thread::current().id());
    }));
    eventually("it waits", || letterbox.reader.lock().unwrap().is_some());
    assert_eq!(*here.lock().unwrap(), None);
    letterbox.is_full.store(true, SeqCst);
    eventually("it is read", || {
        call_worker(&scheduler);
        here.lock().unwrap().is_some()
    });
    let worker = scheduler.block_on(scheduler.handle().spawn(async { thread::current().id() })).unwrap();
    assert_eq!(*here.lock().unwrap(), Some(worker));
}

#[test]
fn a_panic_ends_nothing() {
    let (scheduler, letterbox) = polling(Duration::from_millis(5));
    for panics in [true, false] {
        letterbox.panics.store(panics, SeqCst);
        letterbox.is_full.store(false, SeqCst);
        let (reader, is_read) = (letterbox.clone(), Arc::<AtomicBool>::default());
        let told = is_read.clone();
        drop(scheduler.handle().spawn(async move {
            reader.read().await;
            told.store(true, SeqCst);
        }));
        eventually("it waits", || letterbox.reader.lock().unwrap().is_some());
        letterbox.is_full.store(true, SeqCst);
        eventually("it is read", || {
            call_worker(&scheduler);
            is_read.load(SeqCst)
        });
    }
}

#[test]
fn no_worker_polls_while_all_sleep() {
    let (scheduler, letterbox) = polling(Duration::from_micros(200));
    eventually("somebody looks", || {
        call_worker(&scheduler);
        letterbox.looks.load(SeqCst) > 0
    });
    eventually("nobody looks any more", || {
        let looks = letterbox.looks.load(SeqCst);
        thread::sleep(Duration::from_millis(50));
        looks == letterbox.looks.load(SeqCst)
    });
    eventually("others are told", || letterbox.rests.load(SeqCst));
}

#[test]
fn a_long_task_does_not_keep_others_from_being_woken() {
    let (scheduler, letterbox) = polling(Duration::from_millis(5));
    let (reader, is_held, is_free) =
        (letterbox.clone(), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (held, free) = (is_held.clone(), is_free.clone());
    drop(scheduler.handle().spawn(async move {
        // The worker does not poll while this task runs on it.
        reader.read().await;
        held.store(true, SeqCst);
        while !free.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }));
    eventually("it waits", || letterbox.reader.lock().unwrap().is_some());
    letterbox.is_full.store(true, SeqCst);
    eventually("the task runs", || {
        drop(scheduler.handle().spawn(async {}));
        is_held.load(SeqCst)
    });
    eventually("others are told that the worker looks no more", || letterbox.rests.load(SeqCst));
    is_free.store(true, SeqCst);
    assert_eq!(scheduler.shut_down(Duration::from_secs(30)), Shutdown::default());
}
