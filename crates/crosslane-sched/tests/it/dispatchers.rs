//! Dispatchers go first, any idle worker resumes them, and none is ever lost.

use crosslane_sched::{Io, Scheduler, foreground, sleep, spawn};
use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Answers each byte with the same byte until the other side closes.
async fn echo(stream: Io<UnixStream>) {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => return,
            length => stream.write_all(&buffer[..length]).await.unwrap(),
        }
    }
}

/// A pair of sockets. Reads of the second one wait for at most a minute.
fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (ours, theirs)
}

fn rounds(stream: &mut UnixStream, rounds: usize) {
    for round in 0..rounds {
        let sent = [round as u8];
        stream.write_all(&sent).unwrap();
        let mut got = [0];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, sent);
    }
}

#[test]
fn many_sockets_are_served_by_several_dispatchers() {
    for dispatchers in [1, 4] {
        let scheduler = Scheduler::builder().workers(2).dispatchers(dispatchers).start().unwrap();
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let (ours, mut theirs) = pair();
                scheduler.handle().spawn(echo(scheduler.handle().io(ours).unwrap()));
                thread::spawn(move || rounds(&mut theirs, 500))
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        assert!(scheduler.shut_down(Duration::from_secs(60)).cancelled == 0);
    }
}

/// There are one worker, and two sockets that become readable while it is busy. The handler of the first
/// socket starts a task in the background. The dispatcher serves the second socket before that task,
/// unless priority is off.
fn order(priority: bool) -> Vec<&'static str> {
    let scheduler = Scheduler::builder().workers(1).reserve(0).priority(priority).start().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (hold, held) = mpsc::channel::<()>();
    let (busy, is_busy) = mpsc::channel();
    let (mut writers, mut readers) = (Vec::new(), Vec::new());
    for name in ["first", "second"] {
        let (ours, theirs) = pair();
        writers.push(theirs);
        let log = log.clone();
        let ours = scheduler.handle().io(ours).unwrap();
        readers.push(scheduler.handle().spawn(async move {
            ours.read(&mut [0]).await.unwrap();
            log.lock().unwrap().push(name);
            let log = log.clone();
            spawn(async move { log.lock().unwrap().push("task") }).await.unwrap();
        }));
    }
    // Both tasks wait for their sockets before the test keeps the worker busy.
    while scheduler.handle().stats()[0].runs < 2 {
        thread::yield_now();
    }
    scheduler.handle().spawn(async move {
        busy.send(()).unwrap();
        held.recv().unwrap();
    });
    is_busy.recv().unwrap();
    for writer in &mut writers {
        writer.write_all(b"x").unwrap();
    }
    drop(hold);
    // The sender is gone, so `recv` fails and the task panics, which frees the worker too.
    for reader in readers {
        scheduler.block_on(reader).unwrap();
    }
    let log = log.lock().unwrap();
    log.clone()
}

#[test]
fn a_dispatcher_goes_before_tasks_that_its_handlers_start() {
    assert_eq!(order(true)[..2], ["first", "second"]);
}

#[test]
fn without_priority_a_dispatcher_waits_behind_them() {
    assert_eq!(order(false)[..2], ["first", "task"]);
}

/// A handler keeps its worker. Another worker takes the dispatcher out of its queue and serves the other sockets.
#[test]
fn a_dispatcher_is_resumed_by_another_worker() {
    for priority in [true, false] {
        let scheduler = Scheduler::builder().workers(2).reserve(0).priority(priority).start().unwrap();
        let (ours, mut slow) = pair();
        let (release, released) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let ours = scheduler.handle().io(ours).unwrap();
        let blocked = scheduler.handle().spawn(async move {
            ours.read(&mut [0]).await.unwrap();
            started.send(()).unwrap();
            released.recv().unwrap();
        });
        let (ours, mut quick) = pair();
        scheduler.handle().spawn(echo(scheduler.handle().io(ours).unwrap()));
        slow.write_all(b"x").unwrap();
        has_started.recv().unwrap();
        rounds(&mut quick, 100);
        release.send(()).unwrap();
        scheduler.block_on(blocked).unwrap();
    }
}

/// All workers are busy with long tasks. The threads in reserve dispatch.
#[test]
fn sockets_are_served_while_all_workers_are_busy() {
    let scheduler = Scheduler::builder().workers(1).start().unwrap();
    let (release, released) = mpsc::channel::<()>();
    let (started, has_started) = mpsc::channel();
    let (ours, mut theirs) = pair();
    scheduler.handle().spawn(echo(scheduler.handle().io(ours).unwrap()));
    rounds(&mut theirs, 1);
    let busy = scheduler.handle().spawn(async move {
        started.send(()).unwrap();
        released.recv().unwrap();
    });
    has_started.recv().unwrap();
    rounds(&mut theirs, 100);
    release.send(()).unwrap();
    scheduler.block_on(busy).unwrap();
}

/// A waiting socket holds no worker: with only one thread, other tasks run.
#[test]
fn an_idle_dispatcher_holds_no_worker() {
    let scheduler = Scheduler::builder().workers(1).reserve(0).start().unwrap();
    let (ours, mut theirs) = pair();
    let ours = scheduler.handle().io(ours).unwrap();
    let waiting = scheduler.handle().spawn(async move { ours.read(&mut [0]).await.unwrap() });
    for _ in 0..100 {
        scheduler.block_on(scheduler.handle().spawn(async {})).unwrap();
    }
    theirs.write_all(b"x").unwrap();
    assert_eq!(scheduler.block_on(waiting).unwrap(), 1);
}

/// A task that a handler starts in the foreground runs at once, and an idle worker reads the handler's socket.
#[test]
fn a_handler_that_starts_long_tasks_in_the_foreground_goes_on_reading() {
    let scheduler = Scheduler::builder().workers(2).start().unwrap();
    let (ours, mut theirs) = pair();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let ours = Arc::new(scheduler.handle().io(ours).unwrap());
    scheduler.handle().spawn(async move {
        let mut byte = [0];
        while ours.read(&mut byte).await.unwrap() > 0 {
            let (ours, released) = (ours.clone(), released.clone());
            foreground(async move {
                if byte[0] == 0 {
                    released.lock().unwrap().recv().unwrap();
                }
                ours.write_all(&byte).await.unwrap();
            })
            .await;
        }
    });
    theirs.write_all(&[0, 1]).unwrap();
    let mut got = [9];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(got, [1]);
    release.send(()).unwrap();
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(got, [0]);
}

/// While workers look for dispatchers, the test adds and drops them. There are more dispatchers than
/// workers.
#[test]
fn dispatchers_come_and_go() {
    let scheduler = Scheduler::builder().workers(2).reserve(1).start().unwrap();
    let handle = scheduler.handle().clone();
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicUsize::new(0));
    let comings: Vec<_> = (0..3)
        .map(|_| {
            let (handle, stop, served) = (handle.clone(), stop.clone(), served.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let dispatchers: Vec<_> = (0..4).map(|_| handle.dispatcher()).collect();
                    let mut clients: Vec<_> = dispatchers
                        .iter()
                        .map(|dispatcher| {
                            let (ours, theirs) = pair();
                            handle.spawn(echo(Io::with_dispatcher(ours, dispatcher).unwrap()));
                            theirs
                        })
                        .collect();
                    // The dispatchers end with their last socket.
                    drop(dispatchers);
                    for client in &mut clients {
                        rounds(client, 3);
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    let (ours, mut theirs) = pair();
    scheduler.handle().spawn(echo(scheduler.handle().io(ours).unwrap()));
    while served.load(Ordering::SeqCst) < 400 {
        rounds(&mut theirs, 10);
    }
    stop.store(true, Ordering::SeqCst);
    for coming in comings {
        coming.join().unwrap();
    }
}

/// Handlers of several dispatchers preempt them all the time, some for longer than others. Each byte
/// gets an answer.
#[test]
fn no_socket_hangs_under_preemption() {
    let scheduler = Scheduler::builder().workers(2).reserve(2).dispatchers(3).start().unwrap();
    let bytes = |client| if client == 0 { 300 } else { 3000 };
    let (waits, is_waiting) = mpsc::channel();
    let clients: Vec<_> = (0..6)
        .map(|client| {
            let (ours, mut theirs) = pair();
            let ours = Arc::new(scheduler.handle().io(ours).unwrap());
            let waits = waits.clone();
            scheduler.handle().spawn(async move {
                let mut buffer = [0];
                loop {
                    let length = {
                        let mut read = pin!(ours.read(&mut buffer));
                        poll_fn(|context| {
                            let polled = read.as_mut().poll(context);
                            let _ = waits.send(());
                            polled
                        })
                        .await
                    };
                    if length.unwrap() == 0 {
                        return;
                    }
                    let ours = ours.clone();
                    foreground(async move {
                        if client == 0 {
                            thread::sleep(Duration::from_micros(300));
                        }
                        ours.write_all(&buffer).await.unwrap();
                    })
                    .await;
                }
            });
            // The task waits before the test sends anything, so an event brings the first byte.
            is_waiting.recv().unwrap();
            move || rounds(&mut theirs, bytes(client))
        })
        .collect();
    drop(is_waiting);
    let clients: Vec<_> = clients.into_iter().map(thread::spawn).collect();
    for client in clients {
        client.join().unwrap();
    }
    // For each byte, the socket's task starts a task in the foreground. At the first byte of each
    // socket, the dispatcher had started the socket's task, and was preempted. A task may read a later
    // byte without an event.
    let starts: u64 = scheduler.handle().stats().iter().map(|worker| worker.foreground).sum();
    let sent: usize = (0..6).map(bytes).sum();
    assert!(starts >= (sent + 6) as u64, "{starts} of {sent}");
}

#[test]
fn tcp_connections_are_accepted_and_made() {
    let scheduler = Scheduler::builder().workers(2).start().unwrap();
    let got = scheduler.block_on(async {
        let listener = Io::new(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let address = listener.get_ref().local_addr().unwrap();
        let server = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // The kernel buffers far less than this, so writing waits for the reader.
            stream.write_all(&vec![7; 30_000_000]).await.unwrap();
        });
        let client = spawn(async move {
            let stream = Io::<TcpStream>::connect(address).await.unwrap();
            let (mut sum, mut buffer) = (0, vec![0; 100_000]);
            loop {
                match stream.read(&mut buffer).await.unwrap() {
                    0 => return sum,
                    length => sum += length,
                }
            }
        });
        server.await.unwrap();
        client.await.unwrap()
    });
    assert_eq!(got, 30_000_000);
}

#[test]
fn a_connection_that_is_refused_is_an_error() {
    let scheduler = Scheduler::builder().workers(1).start().unwrap();
    let address = {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        gone.local_addr().unwrap()
    };
    let task = scheduler.handle().spawn(async move { Io::<TcpStream>::connect(address).await.map(drop) });
    let error = scheduler.block_on(task).unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_regular_file_is_an_error() {
    let scheduler = Scheduler::builder().workers(1).start().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let error = scheduler.block_on(async { Io::new(file).map(drop) }).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(1));
}

/// Several tasks read from one socket; each of them is woken.
#[test]
fn several_readers_of_a_socket_are_all_woken() {
    let scheduler = Scheduler::builder().workers(2).start().unwrap();
    let (ours, mut theirs) = pair();
    let (ready, is_ready) = mpsc::channel();
    let ours = Arc::new(scheduler.handle().io(ours).unwrap());
    let read = |_| {
        let (ours, ready) = (ours.clone(), ready.clone());
        scheduler.handle().spawn(async move {
            ready.send(()).unwrap();
            let mut byte = [0];
            ours.read(&mut byte).await.unwrap();
            byte[0]
        })
    };
    let tasks: Vec<_> = (0..5).map(read).collect();
    for _ in 0..5 {
        is_ready.recv().unwrap();
    }
    theirs.write_all(&[1, 2, 3, 4, 5]).unwrap();
    let bytes: HashSet<u8> = tasks.into_iter().map(|task| scheduler.block_on(task).unwrap()).collect();
    assert_eq!(bytes, HashSet::from([1, 2, 3, 4, 5]));
}

/// Timers and sockets wake the same worker.
#[test]
fn timers_run_beside_sockets() {
    let scheduler = Scheduler::builder().workers(1).reserve(0).start().unwrap();
    let (ours, mut theirs) = pair();
    scheduler.handle().spawn(echo(scheduler.handle().io(ours).unwrap()));
    let sleeping: Vec<_> = (0..50)
        .map(|millis| scheduler.handle().spawn(async move { sleep(Duration::from_millis(millis)).await }))
        .collect();
    rounds(&mut theirs, 1000);
    for task in sleeping {
        scheduler.block_on(task).unwrap();
    }
}
