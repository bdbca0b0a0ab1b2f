//! Mistakes of programs, and late events of the kernel: workers survive them, and no task waits for ever.

use crosslane_sched::{
    Handle, Interest, Io, JoinError, JoinHandle, Scheduler, Sleep, foreground, sleep, spawn,
};
use std::future::{Future, pending, poll_fn};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

fn one_worker() -> Scheduler {
    Scheduler::builder().workers(1).reserve(0).start().unwrap()
}

/// The result of a future, which must not hang.
fn soon<T: Send + 'static>(handle: &Handle, future: impl Future<Output = T> + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    let handle = handle.clone();
    thread::spawn(move || send.send(handle.block_on(future)));
    receive.recv_timeout(LONG).expect("it does not hang")
}

fn still_works(handle: &Handle) {
    for _ in 0..20 {
        assert_eq!(soon(handle, handle.spawn(async { 5 })).unwrap(), 5);
    }
}

/// The kernel reports the error of a datagram once; later the socket waits like any other.
#[test]
fn a_socket_with_an_error_keeps_no_worker_busy() {
    let scheduler = one_worker();
    let handle = scheduler.handle();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    socket.connect(gone).unwrap();
    let sender = socket.try_clone().unwrap();
    let socket = handle.io(socket).unwrap();
    let (send, receive) = mpsc::channel();
    let task = handle.spawn(async move {
        for _ in 0..2 {
            let _ = send.send(socket.with(Interest::Read, |socket| socket.recv(&mut [0])).await);
        }
    });
    // The task waits before the error comes.
    while handle.stats()[0].parks < 3 {
        still_works(handle);
    }
    sender.send(b"x").unwrap();
    let error = receive.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    still_works(handle);
    assert!(!task.is_finished());
}

/// Returns one byte at a time, however many there are.
struct OneByOne(UnixStream);

impl AsFd for OneByOne {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for &OneByOne {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(&mut buffer[..1])
    }
}

#[test]
fn short_reads_of_a_reader_do_not_stop_it() {
    let scheduler = one_worker();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"abc").unwrap();
    let ours = scheduler.handle().io(OneByOne(ours)).unwrap();
    let task = scheduler.handle().spawn(async move {
        let (mut text, mut buffer) = (Vec::new(), [0; 8]);
        while text.len() < 3 {
            let length = ours.read(&mut buffer).await.unwrap();
            text.extend_from_slice(&buffer[..length]);
        }
        text
    });
    assert_eq!(soon(scheduler.handle(), task).unwrap(), b"abc");
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("dropped"));
    }
}

/// Neither the process nor a worker ends when dropping panics: a future, a result, or a panic's payload.
#[test]
fn panics_in_drops_end_neither_process_nor_worker() {
    let scheduler = one_worker();
    let handle = scheduler.handle();
    let bomb = Bomb;
    let ended = handle.spawn(poll_fn(move |_| {
        let _bomb = &bomb;
        Poll::Ready(3)
    }));
    assert_eq!(soon(handle, ended).unwrap(), 3);
    let bomb = Bomb;
    let cancelled = handle.spawn(async move {
        pending::<()>().await;
        drop(bomb);
    });
    assert!(matches!(soon(handle, cancelled.cancel()), Err(JoinError::Cancelled)));
    drop(handle.spawn(async { Bomb }));
    drop(handle.spawn(async { std::panic::resume_unwind(Box::new(Bomb)) }));
    still_works(handle);
    assert_eq!(handle.tasks(), 0);
    let bomb = Bomb;
    handle.spawn(async move {
        pending::<()>().await;
        drop(bomb);
    });
    let end = scheduler.shut_down(Duration::ZERO);
    assert_eq!((end.cancelled, end.stuck), (1, 0));
}

struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("woken"));
    }
}

#[test]
fn a_waker_that_panics_ends_no_worker() {
    let scheduler = one_worker();
    let handle = scheduler.handle();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = handle.io(ours).unwrap();
    let waker = Waker::from(Arc::new(BadWaker));
    let mut context = Context::from_waker(&waker);
    let mut buffer = [0];
    let mut read = pin!(ours.read(&mut buffer));
    let mut timer = pin!(sleep(Duration::from_millis(1)));
    scheduler.block_on(poll_fn(|_| {
        assert!(read.as_mut().poll(&mut context).is_pending());
        let _ = timer.as_mut().poll(&mut context);
        Poll::Ready(())
    }));
    theirs.write_all(b"x").unwrap();
    soon(handle, async { sleep(Duration::from_millis(5)).await });
    still_works(handle);
    assert_eq!(scheduler.shut_down(LONG).stuck, 0);
}

/// The inner `block_on` sleeps on the same thread, and must not swallow the wake of the outer one.
#[test]
fn block_on_in_block_on_loses_no_wake() {
    let scheduler = one_worker();
    let handle = scheduler.handle().clone();
    let waits_once = || {
        let mut waited = false;
        poll_fn(move |context| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
    };
    let mut outer = waits_once();
    soon(scheduler.handle(), async move {
        poll_fn(|context| {
            let polled = Pin::new(&mut outer).poll(context);
            handle.block_on(waits_once());
            polled
        })
        .await
    });
}

/// A stuck thread drops the tasks in its queue when its task returns at last.
#[test]
fn tasks_behind_one_that_was_left_behind_are_cancelled() {
    let scheduler = one_worker();
    let (release, released) = mpsc::channel::<()>();
    let (send, receive) = mpsc::channel::<Vec<JoinHandle<()>>>();
    scheduler.handle().spawn(async move {
        send.send((0..3).map(|_| spawn(async {})).collect()).unwrap();
        let _ = released.recv();
    });
    let behind = receive.recv().unwrap();
    assert_eq!(scheduler.shut_down(Duration::ZERO).stuck, 1);
    drop(release);
    let other = one_worker();
    for task in behind {
        assert!(matches!(soon(other.handle(), task), Err(JoinError::Cancelled)));
    }
}

/// A task of one of its workers drops the scheduler.
#[test]
fn a_scheduler_that_one_of_its_tasks_drops_ends() {
    let scheduler = one_worker();
    let handle = scheduler.handle().clone();
    let waiting = handle.spawn(pending::<()>());
    let (send, receive) = mpsc::channel();
    let task = handle.spawn(async move {
        drop(scheduler);
        send.send(()).unwrap();
    });
    receive.recv_timeout(LONG).expect("dropping a scheduler does not panic");
    let other = one_worker();
    assert!(matches!(soon(other.handle(), waiting), Err(JoinError::Cancelled)));
    soon(other.handle(), task).unwrap();
}

/// On a thread without a permit for other tasks, a handler starts two tasks that wake each other for ever.
#[test]
fn tasks_of_a_handler_keep_no_task_from_outside_from_running() {
    let scheduler = one_worker();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = scheduler.handle().io(ours).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (began, has_begun) = mpsc::channel();
    let wakers = Arc::new([Mutex::new(None::<Waker>), Mutex::new(None)]);
    let stopping = stop.clone();
    let players = scheduler.handle().spawn(async move {
        ours.read(&mut [0]).await.unwrap();
        let players = [0, 1].map(|me| {
            let (wakers, stop) = (wakers.clone(), stop.clone());
            spawn(poll_fn(move |context| {
                *wakers[me].lock().unwrap() = Some(context.waker().clone());
                let other = wakers[1 - me].lock().unwrap().take();
                if let Some(other) = other {
                    other.wake();
                }
                if stop.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            }))
        });
        began.send(()).unwrap();
        for player in players {
            player.await.unwrap();
        }
    });
    while scheduler.handle().stats()[0].parks < 2 {
        thread::yield_now();
    }
    theirs.write_all(b"x").unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    let task = scheduler.handle().spawn(async move { stopping.store(true, Ordering::SeqCst) });
    soon(scheduler.handle(), task).unwrap();
    soon(scheduler.handle(), players).unwrap();
}

/// In each turn, the worker runs several tasks. The turn of the oldest task must not fall between two of
/// them.
#[test]
fn tasks_that_start_tasks_in_the_foreground_for_ever_keep_no_other_from_running() {
    let scheduler = one_worker();
    let stop = Arc::new(AtomicBool::new(false));
    let task = scheduler.handle().spawn(async move {
        let stopping = stop.clone();
        spawn(async move { stopping.store(true, Ordering::SeqCst) });
        while !stop.load(Ordering::SeqCst) {
            foreground(async {
                foreground(async {}).await;
            })
            .await;
        }
    });
    soon(scheduler.handle(), task).unwrap();
}

/// Each task starts the next one in the foreground and waits for its start.
fn chain(stop: Arc<AtomicBool>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        if !stop.load(Ordering::SeqCst) {
            foreground(chain(stop)).await;
        }
    })
}

#[test]
fn an_endless_chain_of_starts_in_the_foreground_keeps_no_other_from_running() {
    let scheduler = one_worker();
    let stop = Arc::new(AtomicBool::new(false));
    let task = scheduler.handle().spawn({
        let stop = stop.clone();
        async move {
            let stopping = stop.clone();
            let other = spawn(async move { stopping.store(true, Ordering::SeqCst) });
            foreground(chain(stop)).await;
            other.await.unwrap();
        }
    });
    soon(scheduler.handle(), task).unwrap();
}

/// The socket of a task is always ready, so the task would never wait.
#[test]
fn a_socket_that_is_always_ready_keeps_no_other_task_from_running() {
    let scheduler = one_worker();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (ours, theirs) = (scheduler.handle().io(ours).unwrap(), scheduler.handle().io(theirs).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let busy = scheduler.handle().spawn(async move {
        while !stop.load(Ordering::SeqCst) {
            ours.write_all(b"x").await.unwrap();
            assert_eq!(theirs.read(&mut [0]).await.unwrap(), 1);
        }
    });
    let task = scheduler.handle().spawn(async move { stopping.store(true, Ordering::SeqCst) });
    soon(scheduler.handle(), task).unwrap();
    soon(scheduler.handle(), busy).unwrap();
}

/// The one worker runs a long task, and a handler on a thread in reserve finds its sockets always ready.
#[test]
fn a_handler_that_finds_its_socket_always_ready_needs_no_worker() {
    let scheduler = Scheduler::builder().workers(1).reserve(2).start().unwrap();
    let handle = scheduler.handle();
    let (ours, mut start) = UnixStream::pair().unwrap();
    let ours = handle.io(ours).unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    let (one, other) = (handle.io(one).unwrap(), handle.io(other).unwrap());
    let handler = handle.spawn(async move {
        ours.read(&mut [0]).await.unwrap();
        for _ in 0..1000 {
            one.write_all(b"x").await.unwrap();
            assert_eq!(other.read(&mut [0]).await.unwrap(), 1);
        }
    });
    let (release, released) = mpsc::channel::<()>();
    let (began, has_begun) = mpsc::channel();
    while handle.stats().iter().map(|worker| worker.runs).sum::<u64>() == 0 {
        thread::yield_now();
    }
    let busy = handle.spawn(async move {
        began.send(()).unwrap();
        let _ = released.recv();
    });
    has_begun.recv_timeout(LONG).unwrap();
    start.write_all(b"x").unwrap();
    soon(handle, handler).unwrap();
    drop(release);
    soon(handle, busy).unwrap();
}

/// Drops another timer when it is dropped.
struct Holder {
    _timer: Mutex<Sleep>,
}

impl Wake for Holder {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_that_a_timer_drops_may_drop_timers() {
    let scheduler = one_worker();
    soon(scheduler.handle(), async {
        let mut first = sleep(LONG * 100);
        let mut second = sleep(LONG * 100);
        poll_fn(|context| {
            assert!(Pin::new(&mut first).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        let holder = Waker::from(Arc::new(Holder { _timer: Mutex::new(first) }));
        assert!(Pin::new(&mut second).poll(&mut Context::from_waker(&holder)).is_pending());
        drop(holder);
        poll_fn(|context| {
            assert!(Pin::new(&mut second).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    });
}

#[test]
fn cancelling_needs_no_waiting() {
    let scheduler = one_worker();
    let (send, receive) = mpsc::channel::<()>();
    let task = scheduler.handle().spawn(async move {
        pending::<()>().await;
        drop(send);
    });
    drop(task.cancel());
    assert_eq!(receive.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_tag_without_dispatchers_takes_no_sockets() {
    let scheduler = Scheduler::builder().workers(1).dispatchers(0).start().unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let error = scheduler.handle().io(ours).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_eq!(error.to_string(), "the tag has no event dispatcher that takes sockets");
}

fn is_shut_down<T: std::fmt::Debug>(result: io::Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Other);
    assert_eq!(error.to_string(), "the scheduler has shut down");
}

/// All of its operations are errors, even if it has bytes to read.
#[test]
fn a_socket_is_of_no_use_after_the_end_of_its_scheduler() {
    let (scheduler, other) = (one_worker(), one_worker());
    let handle = scheduler.handle().clone();
    let dispatcher = handle.dispatcher();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = handle.io(ours).unwrap();
    let listener = handle.io(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    theirs.write_all(b"x").unwrap();
    assert_eq!(scheduler.shut_down(LONG).stuck, 0);
    soon(other.handle(), async move {
        is_shut_down(ours.read(&mut [0]).await);
        is_shut_down(ours.write(b"x").await);
        is_shut_down(ours.write_all(b"x").await);
        is_shut_down(ours.with(Interest::Read, |_| Ok(())).await);
        is_shut_down(listener.accept().await);
    });
    let (ours, theirs) = UnixStream::pair().unwrap();
    is_shut_down(handle.io(ours));
    is_shut_down(Io::with_dispatcher(theirs, &dispatcher));
    let address = "127.0.0.1:1".parse().unwrap();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(handle.block_on(Io::<TcpStream>::connect(address))));
    is_shut_down(receive.recv_timeout(LONG).unwrap());
}

/// A wait outside of the scheduler's tasks gets an error. The scheduler cancels its tasks.
#[test]
fn a_socket_that_waits_while_its_scheduler_ends_fails() {
    let (scheduler, other) = (one_worker(), one_worker());
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let ours = scheduler.handle().io(ours).unwrap();
    let (waits, is_waiting) = mpsc::channel();
    let task = other.handle().spawn(async move {
        let mut buffer = [0];
        let mut read = pin!(ours.read(&mut buffer));
        poll_fn(|context| {
            let polled = read.as_mut().poll(context);
            let _ = waits.send(polled.is_pending());
            polled
        })
        .await
    });
    assert!(is_waiting.recv_timeout(LONG).unwrap());
    assert_eq!(scheduler.shut_down(LONG).stuck, 0);
    is_shut_down(soon(other.handle(), task).unwrap());
}

/// A sleep has no error, so it panics, and does not wait for ever.
#[test]
fn a_sleep_of_a_scheduler_that_has_ended_panics() {
    let scheduler = one_worker();
    let handle = scheduler.handle().clone();
    let (waits, is_waiting) = mpsc::channel();
    let (panics, has_panicked) = mpsc::channel();
    let sleeper = || {
        let (handle, waits, panics) = (handle.clone(), waits.clone(), panics.clone());
        move || {
            let mut forever = sleep(Duration::MAX);
            let slept = poll_fn(|context| {
                let polled = Pin::new(&mut forever).poll(context);
                let _ = waits.send(());
                polled
            });
            let payload = catch_unwind(AssertUnwindSafe(|| handle.block_on(slept))).unwrap_err();
            panics.send(payload.downcast_ref::<String>().unwrap().clone()).unwrap();
        }
    };
    thread::spawn(sleeper());
    is_waiting.recv_timeout(LONG).unwrap();
    assert_eq!(scheduler.shut_down(LONG).stuck, 0);
    thread::spawn(sleeper());
    for _ in 0..2 {
        let text = has_panicked.recv_timeout(LONG).unwrap();
        assert_eq!(text, "a sleep would never end: the scheduler has shut down");
    }
}
