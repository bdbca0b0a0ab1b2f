//! Tasks: starting, ending, cancelling, panicking, sleeping, and the end of a scheduler.

use crosslane_sched::{
    Elapsed, Handle, JoinError, Scheduler, foreground, sleep, spawn, spawn_blocking, timeout, yield_now,
};
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// The order of events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn add(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn read(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

fn one_worker() -> Scheduler {
    Scheduler::builder().workers(1).reserve(0).start().unwrap()
}

#[test]
fn a_task_runs_on_a_worker_and_has_a_result() {
    let scheduler = Scheduler::builder().workers(2).start().unwrap();
    let here = thread::current().id();
    let (there, sum) = scheduler.block_on(async {
        let parts: Vec<_> = (0..100_u64).map(|part| spawn(async move { part * part })).collect();
        let mut sum = 0;
        for part in parts {
            sum += part.await.unwrap();
        }
        (spawn(async { thread::current().id() }).await.unwrap(), sum)
    });
    assert_ne!(here, there);
    assert_eq!(sum, 328_350);
    assert_eq!(scheduler.handle().tasks(), 0);
}

#[test]
fn a_task_in_the_foreground_runs_before_its_starter_goes_on() {
    let (scheduler, log) = (one_worker(), Log::default());
    let task = {
        let log = log.clone();
        scheduler.handle().spawn(async move {
            let background = spawn({
                let log = log.clone();
                async move { log.add("background") }
            });
            log.add("before");
            let child = foreground({
                let log = log.clone();
                async move {
                    log.add("foreground");
                    yield_now().await;
                    log.add("foreground, later");
                }
            })
            .await;
            log.add("after");
            background.await.unwrap();
            child.await.unwrap();
        })
    };
    scheduler.block_on(task).unwrap();
    let log = log.read();
    assert_eq!(log[..3], ["before", "foreground", "after"]);
    assert_eq!(log.len(), 5);
    assert!(scheduler.handle().stats()[0].foreground >= 1);
}

/// The starter waits behind a task that keeps its worker, so another worker takes the starter.
#[test]
fn another_worker_goes_on_with_the_starter_of_a_long_task() {
    let scheduler = Scheduler::builder().workers(2).reserve(0).start().unwrap();
    let (send, receive) = mpsc::channel();
    let task = scheduler.handle().spawn(async move {
        let child = foreground(async move { receive.recv().unwrap() }).await;
        send.send(7).unwrap();
        child.await.unwrap()
    });
    assert_eq!(scheduler.block_on(task).unwrap(), 7);
}

#[test]
fn foreground_outside_of_a_worker_starts_in_the_background() {
    let scheduler = one_worker();
    assert_eq!(scheduler.block_on(async { foreground(async { 5 }).await.await }).unwrap(), 5);
}

#[test]
fn tasks_that_wait_for_each_other_need_several_workers() {
    let scheduler = Scheduler::builder().workers(3).start().unwrap();
    let barrier = Arc::new(Barrier::new(3));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let barrier = barrier.clone();
            scheduler.handle().spawn(async move { barrier.wait().is_leader() })
        })
        .collect();
    let leaders = tasks.into_iter().map(|task| scheduler.block_on(task).unwrap());
    assert_eq!(leaders.filter(|is_leader| *is_leader).count(), 1);
}

#[test]
fn a_task_that_yields_for_ever_keeps_no_other_from_running() {
    let scheduler = one_worker();
    let stop = Arc::new(AtomicBool::new(false));
    let yielding = {
        let stop = stop.clone();
        scheduler.handle().spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                yield_now().await;
            }
        })
    };
    let task = scheduler.handle().spawn(async move { stop.store(true, Ordering::SeqCst) });
    scheduler.block_on(async { (task.await.unwrap(), yielding.await.unwrap()) });
}

/// Two tasks of a worker wake each other for ever, and always come from the worker's own queue. A third
/// task still runs.
#[test]
fn tasks_that_wake_each_other_for_ever_keep_no_other_from_running() {
    let scheduler = one_worker();
    let stop = Arc::new(AtomicBool::new(false));
    let finished = {
        let stop = stop.clone();
        scheduler.handle().spawn(async move {
            spawn({
                let stop = stop.clone();
                async move { stop.store(true, Ordering::SeqCst) }
            });
            let wakers = Arc::new([Mutex::new(None), Mutex::new(None)]);
            let players = [0, 1].map(|me| {
                let (wakers, stop) = (wakers.clone(), stop.clone());
                spawn(poll_fn(move |context| {
                    *wakers[me].lock().unwrap() = Some(context.waker().clone());
                    let other: Option<std::task::Waker> = wakers[1 - me].lock().unwrap().take();
                    if let Some(other) = other {
                        other.wake();
                    }
                    if stop.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
                }))
            });
            for player in players {
                player.await.unwrap();
            }
        })
    };
    scheduler.block_on(finished).unwrap();
}

#[test]
fn a_panic_stays_in_its_task() {
    let scheduler = one_worker();
    let handle = scheduler.handle();
    let task = handle.spawn(async {
        if thread::current().name().is_some() {
            std::panic::resume_unwind(Box::new("broken"));
        }
    });
    let error = scheduler.block_on(task).unwrap_err();
    assert_eq!(error.to_string(), "the task panicked: broken");
    let JoinError::Panicked(panic) = error else { panic!("{error}") };
    assert!(panic.into_payload().is::<&str>());
    assert_eq!(scheduler.block_on(handle.spawn(async { 1 })).unwrap(), 1);
}

/// Reports when it is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_cancelled_task_is_dropped_where_it_waits() {
    let scheduler = one_worker();
    let drops = Arc::new(AtomicUsize::new(0));
    let dropped = Dropped(drops.clone());
    let task = scheduler.handle().spawn(async move {
        pending::<()>().await;
        drop(dropped);
    });
    assert!(!task.is_finished());
    let error = scheduler.block_on(task.cancel()).unwrap_err();
    assert_eq!(error.to_string(), "the task was cancelled");
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert_eq!(scheduler.handle().tasks(), 0);
}

#[test]
fn a_task_goes_on_when_its_handle_is_dropped() {
    let scheduler = one_worker();
    let (send, receive) = mpsc::channel();
    drop(scheduler.handle().spawn(async move {
        yield_now().await;
        send.send(3).unwrap();
    }));
    assert_eq!(receive.recv().unwrap(), 3);
}

#[test]
fn sleepers_wake_in_the_order_of_their_times() {
    let scheduler = one_worker();
    let log = Log::default();
    let tasks = [("third", 30), ("first", 10), ("second", 20)].map(|(what, millis)| {
        let log = log.clone();
        scheduler.handle().spawn(async move {
            sleep(Duration::from_millis(millis)).await;
            log.add(what);
        })
    });
    for task in tasks {
        scheduler.block_on(task).unwrap();
    }
    assert_eq!(log.read(), ["first", "second", "third"]);
}

#[test]
fn a_dropped_sleep_wakes_no_task() {
    let scheduler = one_worker();
    let task = scheduler.handle().spawn(async {
        let mut forever = Box::pin(sleep(Duration::MAX));
        poll_fn(|context| {
            assert!(forever.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(forever);
        sleep(Duration::from_millis(1)).await;
    });
    scheduler.block_on(task).unwrap();
}

#[test]
fn tags_share_no_tasks() {
    let scheduler = Scheduler::builder().workers(1).tag("reports").workers(1).dispatchers(0).start().unwrap();
    let name = || thread::current().name().unwrap().to_owned();
    let names = |handle: &Handle| {
        let tasks: Vec<_> = (0..200)
            .map(|_| {
                handle.spawn(async move {
                    let first = name();
                    let inner = spawn(async move { name() }).await.unwrap();
                    (first, inner)
                })
            })
            .collect();
        tasks.into_iter().map(|task| scheduler.block_on(task).unwrap()).collect::<Vec<_>>()
    };
    for (first, inner) in names(scheduler.tag("reports").unwrap()) {
        assert_eq!((&*first, &*inner), ("reports-0", "reports-0"));
    }
    for (first, inner) in names(scheduler.handle()) {
        assert!(first.starts_with("default-") && inner.starts_with("default-"), "{first} {inner}");
    }
    assert!(scheduler.tag("none").is_none());
}

#[test]
fn invalid_options_are_errors() {
    let error = Scheduler::builder().workers(0).start().unwrap_err();
    assert_eq!(error.to_string(), "the tag \"default\" needs at least one worker");
    let error = Scheduler::builder().workers(1).tag("default").start().unwrap_err();
    assert_eq!(error.to_string(), "the tag \"default\" stands twice");
    let error = Scheduler::builder().tag("a\0b").start().unwrap_err();
    assert_eq!(error.to_string(), "the tag \"a\\0b\" has a NUL in its name, which threads get");
    let error = Scheduler::builder().blocking(0).start().unwrap_err();
    assert_eq!(error.to_string(), "the tag \"default\" needs at least one thread for calls that block");
    for number in [usize::MAX, 1 << 32, (1 << 15) + 1] {
        let builder = Scheduler::builder;
        let builders = [
            builder().workers(number),
            builder().reserve(number),
            builder().dispatchers(number),
            builder().blocking(number),
        ];
        for builder in builders {
            let error = builder.start().unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
            let text = format!(
                "the tag \"default\" cannot have {number} threads or dispatchers; 32768 are the most"
            );
            assert_eq!(error.to_string(), text);
        }
    }
}

#[test]
fn shutting_down_lets_tasks_end() {
    let scheduler = one_worker();
    let (send, receive) = mpsc::channel();
    scheduler.handle().spawn(async move {
        sleep(Duration::from_millis(20)).await;
        let inner = spawn(async { 4 });
        send.send(inner.await.unwrap()).unwrap();
    });
    let end = scheduler.shut_down(LONG);
    assert_eq!((end.cancelled, end.stuck), (0, 0));
    assert_eq!(receive.recv().unwrap(), 4);
}

#[test]
fn shutting_down_cancels_tasks_that_do_not_end() {
    let scheduler = Scheduler::builder().workers(2).start().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let dropped = Dropped(drops.clone());
            scheduler.handle().spawn(async move {
                sleep(Duration::MAX).await;
                drop(dropped);
            })
        })
        .collect();
    let handle = scheduler.handle().clone();
    let end = scheduler.shut_down(Duration::from_millis(5));
    assert_eq!((end.cancelled, end.stuck), (10, 0));
    assert_eq!(drops.load(Ordering::SeqCst), 10);
    assert!(tasks.iter().all(|task| task.is_finished()));
    // A later task is cancelled at once.
    let late = handle.spawn(async {});
    let scheduler = one_worker();
    assert!(matches!(scheduler.block_on(late), Err(JoinError::Cancelled)));
}

#[test]
fn a_task_that_never_lets_go_of_its_worker_is_left_behind() {
    let scheduler = Scheduler::builder().workers(2).reserve(0).start().unwrap();
    let (send, receive) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel();
    scheduler.handle().spawn(async move {
        began.send(()).unwrap();
        let _ = receive.recv();
    });
    has_begun.recv().unwrap();
    let end = scheduler.shut_down(Duration::ZERO);
    assert_eq!((end.cancelled, end.stuck), (1, 1));
    drop(send);
}

#[test]
#[should_panic(expected = "block_on is not called in a task")]
fn block_on_in_a_task_is_refused() {
    let scheduler = one_worker();
    let handle = scheduler.handle().clone();
    let task = scheduler.handle().spawn(async move { handle.block_on(async {}) });
    match scheduler.block_on(task) {
        Err(JoinError::Panicked(panic)) => std::panic::resume_unwind(panic.into_payload()),
        other => panic!("{other:?}"),
    }
}

/// Errors of tasks go into the errors of programs.
#[test]
fn the_error_of_a_task_is_an_error_like_others() {
    let scheduler = one_worker();
    let task =
        scheduler.handle().spawn(async { std::panic::resume_unwind(Box::new(String::from("broken"))) });
    let joined = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        scheduler.block_on(task)?;
        Ok(())
    };
    assert_eq!(joined().unwrap_err().to_string(), "the task panicked: broken");
}

#[test]
fn a_timeout_ends_a_slow_future() {
    let scheduler = one_worker();
    let drops = Arc::new(AtomicUsize::new(0));
    let dropped = Dropped(drops.clone());
    let late = async move {
        pending::<()>().await;
        drop(dropped);
    };
    let elapsed = scheduler.block_on(timeout(Duration::from_millis(1), late));
    assert_eq!((elapsed, drops.load(Ordering::SeqCst)), (Err(Elapsed), 1));
    assert_eq!(scheduler.block_on(timeout(LONG, async { 4 })), Ok(4));
    // A future that is ready is never late, whatever the limit is.
    assert_eq!(scheduler.block_on(timeout(Duration::ZERO, async { 4 })), Ok(4));
    assert_eq!(scheduler.block_on(timeout(Duration::MAX, async { 4 })), Ok(4));
    let error = std::io::Error::from(Elapsed);
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "the time was over before the future was ready");
}

/// There are more blocking calls than workers, and all run at the same time. Meanwhile, the worker runs
/// other tasks.
#[test]
fn calls_that_block_hold_no_worker() {
    let scheduler = one_worker();
    let barrier = Arc::new(Barrier::new(4));
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let barrier = barrier.clone();
            scheduler.handle().spawn(async move { spawn_blocking(move || barrier.wait()).await.map(drop) })
        })
        .collect();
    assert_eq!(scheduler.block_on(scheduler.handle().spawn(async { 6 })).unwrap(), 6);
    barrier.wait();
    for call in calls {
        scheduler.block_on(call).unwrap().unwrap();
    }
    let error =
        scheduler.block_on(async { spawn_blocking(|| std::panic::resume_unwind(Box::new("bad"))).await });
    assert_eq!(error.map(|(): ()| ()).unwrap_err().to_string(), "the task panicked: bad");
    // A task that such a thread starts runs on the tag's workers.
    let name = || thread::current().name().map(str::to_owned);
    let names = scheduler.block_on(async move {
        let here = Handle::current().unwrap();
        here.spawn_blocking(move || {
            (name(), Handle::current().unwrap().block_on(spawn(async move { name() })))
        })
        .await
    });
    let (blocking, task) = names.unwrap();
    assert_eq!((blocking.unwrap(), task.unwrap().unwrap()), ("default-blocking".into(), "default-0".into()));
    assert_eq!(scheduler.handle().tasks(), 0);
}

/// There is one thread for two calls. The second call waits for the thread, and can be cancelled while
/// it waits.
#[test]
fn calls_that_block_have_a_limit() {
    let scheduler = Scheduler::builder().workers(1).reserve(0).blocking(1).start().unwrap();
    let handle = scheduler.handle();
    let (release, released) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel();
    let first = handle.spawn_blocking(move || {
        began.send(()).unwrap();
        released.recv()
    });
    has_begun.recv().unwrap();
    let second = handle.spawn_blocking(|| 2);
    let third = handle.spawn_blocking(|| 3);
    let stats = handle.blocking();
    assert_eq!((stats.threads, stats.idle, stats.waiting, stats.runs), (1, 0, 2, 0));
    let cancelled = third.cancel();
    release.send(()).unwrap();
    assert!(matches!(scheduler.block_on(cancelled), Err(JoinError::Cancelled)));
    scheduler.block_on(first).unwrap().unwrap();
    assert_eq!(scheduler.block_on(second).unwrap(), 2);
    while handle.blocking().idle == 0 {
        thread::yield_now();
    }
    let stats = handle.blocking();
    assert_eq!((stats.threads, stats.idle, stats.waiting, stats.runs), (1, 1, 0, 3));
    assert_eq!(scheduler.shut_down(LONG).stuck, 0);
}

#[test]
fn shutting_down_waits_for_calls_that_block() {
    let scheduler = Scheduler::builder().workers(1).reserve(0).blocking(1).start().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..10 {
        let count = count.clone();
        drop(scheduler.handle().spawn_blocking(move || count.fetch_add(1, Ordering::SeqCst)));
    }
    let end = scheduler.shut_down(LONG);
    assert_eq!((end.cancelled, end.stuck, count.load(Ordering::SeqCst)), (0, 0, 10));
}

/// One call has begun and does not end; another one has not begun, and never does.
#[test]
fn a_call_that_blocks_too_long_is_left_behind() {
    let scheduler = Scheduler::builder().workers(1).reserve(0).blocking(1).start().unwrap();
    let handle = scheduler.handle().clone();
    let (release, released) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel();
    let first = handle.spawn_blocking(move || {
        began.send(()).unwrap();
        let _ = released.recv();
        5
    });
    has_begun.recv().unwrap();
    let second = handle.spawn_blocking(|| 6);
    let end = scheduler.shut_down(Duration::ZERO);
    assert_eq!((end.cancelled, end.stuck), (2, 1));
    let late = handle.spawn_blocking(|| 7);
    // The result of the first call still comes.
    drop(release);
    let other = one_worker();
    assert!(matches!(other.block_on(second), Err(JoinError::Cancelled)));
    assert!(matches!(other.block_on(late), Err(JoinError::Cancelled)));
    assert_eq!(other.block_on(first).unwrap(), 5);
}

/// A call may drop the scheduler, and does not wait for itself.
#[test]
fn a_scheduler_that_one_of_its_calls_drops_ends() {
    let scheduler = one_worker();
    let handle = scheduler.handle().clone();
    let (send, receive) = mpsc::channel();
    let call = handle.spawn_blocking(move || {
        drop(scheduler);
        send.send(()).unwrap();
    });
    receive.recv_timeout(LONG).unwrap();
    one_worker().block_on(call).unwrap();
    let scheduler = one_worker();
    let handle = scheduler.handle().clone();
    let call = handle.spawn_blocking(move || scheduler.shut_down(Duration::ZERO));
    let error = one_worker().block_on(call).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the task panicked: shut_down is not called in a task, for which it would wait"
    );
}

/// A chain of tasks. Each task starts the next one in the other tag, and then ends.
fn hop([here, there]: [Handle; 2], left: usize, done: mpsc::Sender<()>) {
    here.clone().spawn(async move {
        match left {
            0 => done.send(()).unwrap(),
            _ => hop([there, here], left - 1, done),
        }
    });
}

#[test]
fn shutting_down_waits_for_tasks_that_start_others_and_end() {
    for tags in [["default", "other"], ["other", "default"], ["default", "default"]] {
        let scheduler = Scheduler::builder().workers(2).tag("other").workers(2).start().unwrap();
        let tags = tags.map(|tag| scheduler.tag(tag).unwrap().clone());
        let (done, is_done) = mpsc::channel();
        hop(tags, 20_000, done);
        let end = scheduler.shut_down(LONG);
        assert_eq!((end.cancelled, end.stuck), (0, 0));
        is_done.recv().expect("the chain came to its end");
    }
}

/// Does the same as `hop`, with calls that block. Each call belongs to another shard of the list of
/// tasks than the call before it.
fn hop_blocking(handle: Handle, left: usize, done: mpsc::Sender<()>) {
    handle.clone().spawn_blocking(move || match left {
        0 => done.send(()).unwrap(),
        _ => hop_blocking(handle, left - 1, done),
    });
}

#[test]
fn shutting_down_counts_tasks_while_they_start_others_and_end() {
    let scheduler = Scheduler::builder().workers(64).dispatchers(0).blocking(1).start().unwrap();
    let (done, is_done) = mpsc::channel();
    hop_blocking(scheduler.handle().clone(), 100_000, done);
    let end = scheduler.shut_down(LONG);
    assert_eq!((end.cancelled, end.stuck), (0, 0));
    is_done.recv().expect("the chain came to its end");
}

/// Tasks start and wait again and again while the scheduler ends: none of them is forgotten.
#[test]
fn tasks_that_are_busy_while_the_scheduler_ends_are_cancelled() {
    for _ in 0..200 {
        let scheduler = Scheduler::builder().workers(2).reserve(0).start().unwrap();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                scheduler.handle().spawn(async {
                    for _ in 0..3 {
                        yield_now().await;
                    }
                    pending::<()>().await;
                })
            })
            .collect();
        assert_eq!(scheduler.shut_down(Duration::ZERO).stuck, 0);
        assert!(tasks.iter().all(|task| task.is_finished()));
    }
}
