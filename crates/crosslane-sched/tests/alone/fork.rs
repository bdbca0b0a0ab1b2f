//! A child process cannot use its parent's scheduler, and gets errors.

use crate::alone;
use crosslane_sched::{Io, Scheduler, sleep, timeout};
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::process::ExitStatus;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const FORKED: &str = "this process was forked from the one in which the scheduler runs";

/// 0 in the child, which ends after a minute.
fn fork() -> i32 {
    // SAFETY: glibc's memory can be used in the child. The test checks the locks that other threads
    // hold.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: this sets a timer.
        unsafe { libc::alarm(60) };
    }
    child
}

fn wait(child: i32) -> ExitStatus {
    let mut status = 0;
    // SAFETY: the kernel writes a number there.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    ExitStatus::from_raw(status)
}

/// Makes the checks in a child.
fn in_child(check: impl FnOnce()) {
    let child = fork();
    if child == 0 {
        let failed = catch_unwind(AssertUnwindSafe(check)).is_err();
        // SAFETY: the child ends without running its parent's clean-up.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    assert_eq!(wait(child).code(), Some(0));
}

fn panics<T>(run: impl FnOnce() -> T) {
    let payload = catch_unwind(AssertUnwindSafe(run)).map(drop).unwrap_err();
    let text = payload.downcast_ref::<String>().unwrap();
    assert!(text.ends_with(FORKED), "{text}");
}

#[test]
fn a_child_process_harms_neither_itself_nor_its_parent() {
    let _alone = alone();
    let scheduler = Scheduler::builder().workers(1).start().unwrap();
    let handle = scheduler.handle().clone();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = handle.io(ours).unwrap();
    let dispatcher = handle.dispatcher();
    let waiting = handle.spawn(async { sleep(LONG).await });
    let mut sleeping = sleep(LONG);
    let mut slept = |context: &mut Context<'_>| Pin::new(&mut sleeping).poll(context);
    assert!(scheduler.block_on(poll_fn(|context| Poll::Ready(slept(context).is_pending()))));

    in_child(|| {
        let mut nobody = Context::from_waker(Waker::noop());
        let mut buffer = [0];
        let mut read = pin!(ours.read(&mut buffer));
        let Poll::Ready(Err(error)) = read.as_mut().poll(&mut nobody) else { panic!("it waits") };
        assert_eq!(error.to_string(), FORKED);
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(handle.io(one).unwrap_err().to_string(), FORKED);
        assert_eq!(Io::with_dispatcher(other, &dispatcher).unwrap_err().to_string(), FORKED);
        panics(|| slept(&mut nobody));
        panics(|| handle.spawn(async {}));
        panics(|| handle.spawn_blocking(|| ()));
        panics(|| handle.block_on(async {}));
        // The child can use a scheduler of its own.
        let own = Scheduler::builder().workers(1).start().unwrap();
        assert_eq!(own.block_on(own.handle().spawn(async { 5 })).unwrap(), 5);
    });

    // The child drops its copies of the parent's objects. The parent's scheduler goes on.
    let mut all = Some((scheduler, ours, dispatcher, waiting, sleeping));
    in_child(|| drop(all.take()));
    let (scheduler, ours, _dispatcher, waiting, _sleeping) = all.unwrap();
    let (mut buffer, mut waits) = ([0], false);
    let mut read = pin!(ours.read(&mut buffer));
    let read = scheduler.block_on(timeout(
        LONG,
        poll_fn(|context| {
            let polled = read.as_mut().poll(context);
            if polled.is_pending() && !std::mem::replace(&mut waits, true) {
                theirs.write_all(b"x").unwrap();
            }
            polled
        }),
    ));
    assert_eq!((read.unwrap().unwrap(), waits), (1, true));
    assert!(!waiting.is_finished());

    // A task forks. The fork returns to the worker in the child, too.
    let (errors, mut told) = UnixStream::pair().unwrap();
    let task = scheduler.handle().spawn(async move {
        let child = fork();
        if child == 0 {
            // SAFETY: both descriptors are open.
            unsafe { libc::dup2(errors.as_raw_fd(), 2) };
        }
        child
    });
    assert_eq!(wait(scheduler.block_on(task).unwrap()).signal(), Some(libc::SIGABRT));
    let mut text = String::new();
    told.read_to_string(&mut text).unwrap();
    assert_eq!(text, format!("crosslane-sched: a task that forks has to end the child itself: {FORKED}\n"));
    assert_eq!(scheduler.block_on(scheduler.handle().spawn(async { 6 })).unwrap(), 6);
}
