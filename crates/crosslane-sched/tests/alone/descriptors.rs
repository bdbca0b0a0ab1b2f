//! A listener while its process has no descriptors left.

use crate::alone;
use crosslane_sched::Scheduler;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// The process cannot open a descriptor until this is dropped.
struct Exhausted(Rlimit);

impl Exhausted {
    fn new() -> Self {
        let usual = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).unwrap();
        Self(usual)
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

#[test]
fn a_listener_without_descriptors_says_so_once_and_tries_again() {
    let _alone = alone();
    let scheduler = Scheduler::builder().workers(1).reserve(0).start().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = scheduler.handle().io(listener).unwrap();
    let (send, receive) = mpsc::channel();
    scheduler.handle().spawn(async move {
        loop {
            let accepted = listener.accept().await.map(drop).map_err(|error| Errno::from_io_error(&error));
            send.send(accepted).unwrap();
        }
    });
    let parks = || scheduler.handle().stats()[0].parks;
    // After a success, the next lack of descriptors is an error again.
    for _ in 0..2 {
        let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let exhausted = Exhausted::new();
        connect(&client, &address).unwrap();
        assert_eq!(receive.recv_timeout(LONG).unwrap(), Err(Some(Errno::MFILE)));
        // The worker sleeps before each attempt, and nothing else wakes it.
        let before = parks();
        while parks() < before + 3 {
            thread::yield_now();
        }
        drop(exhausted);
        assert_eq!(receive.recv_timeout(LONG).unwrap(), Ok(()));
    }
}
