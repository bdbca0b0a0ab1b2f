//! Rings in shared memory, between two mappings of the same memfd.

use crosslane_ring::{Ends, Parked, RegionError, Spin, Waiter, wait_any};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn both_ends(capacity: usize) -> (Ends, Ends) {
    let (engine, memory) = Ends::create(capacity).unwrap();
    // SAFETY: the memory is new, and this is its only guest.
    (engine, unsafe { Ends::open(memory) }.unwrap())
}

/// Ten million frames of random sizes, each filled with its own byte.
#[test]
fn ten_million_frames() {
    const FRAMES: u32 = 10_000_000;
    let (mut engine, mut guest) = both_ends(1 << 16);
    let next = |state: &mut u32| {
        // xorshift32 (G. Marsaglia, "Xorshift RNGs", 2003).
        *state ^= *state << 13;
        *state ^= *state >> 17;
        *state ^= *state << 5;
        *state
    };
    let size = move |random: u32| if random.is_multiple_of(1000) { 30_000 } else { random as usize % 200 };
    let writer = thread::spawn(move || {
        let mut random = 7;
        for number in 0..FRAMES {
            let length = size(next(&mut random));
            let mut grant = loop {
                match engine.producer.reserve(length).unwrap() {
                    Some(grant) => break grant,
                    None => assert_eq!(engine.producer.wait(Spin::default(), LONG), Parked::Ready),
                }
            };
            grant.bytes().fill(number as u8);
            grant.commit(length, number);
        }
    });
    let mut random = 7;
    for number in 0..FRAMES {
        let frame = loop {
            match guest.consumer.peek().unwrap() {
                Some(frame) => break frame,
                None => assert_eq!(guest.consumer.wait(Spin::default(), LONG), Parked::Ready),
            }
        };
        assert_eq!((frame.tag(), frame.length()), (number, size(next(&mut random))));
        // SAFETY: the producer above does not touch a published frame.
        let bytes = unsafe { guest.consumer.bytes() };
        assert!(bytes.iter().all(|byte| *byte == number as u8), "frame {number}");
        guest.consumer.release();
    }
    writer.join().unwrap();
}

/// Sleeps until one of the rings has a frame.
fn wait_for_any(engines: &[Ends]) {
    let news = || engines.iter().any(|ends| ends.consumer.has_news());
    let waiters = || engines.iter().map(|ends| ends.consumer.waiter());
    while wait_any(waiters(), Spin(Duration::ZERO), LONG, news) == Parked::TimedOut {}
}

/// Whether a descriptor can be read.
fn is_readable(descriptor: &impl AsFd) -> bool {
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut descriptors, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn waiting_for_rings_and_descriptors() {
    for (rings, pipes) in [(0usize, 1usize), (0, 3), (1, 1), (2, 3)] {
        for first in 0..rings + pipes {
            let (engines, mut guests): (Vec<_>, Vec<_>) = (0..rings).map(|_| both_ends(4096)).unzip();
            let (readers, writers): (Vec<_>, Vec<_>) = (0..pipes).map(|_| std::io::pipe().unwrap()).unzip();
            let (done, answer) = std::sync::mpsc::channel();
            let waiter = thread::spawn(move || {
                let frames = engines.iter().map(|ends| ends.consumer.waiter());
                let waiters =
                    || frames.clone().chain(readers.iter().map(|pipe| Waiter::Descriptor(pipe.as_fd())));
                let news =
                    || engines.iter().any(|ends| ends.consumer.has_news()) || readers.iter().any(is_readable);
                while wait_any(waiters(), Spin(Duration::ZERO), LONG, news) == Parked::TimedOut {}
                done.send(()).unwrap();
            });
            thread::sleep(Duration::from_millis(2));
            match first.checked_sub(rings) {
                None => assert!(guests[first].producer.push(b"reply", 0).unwrap()),
                Some(pipe) => (&writers[pipe]).write_all(b"x").unwrap(),
            }
            answer.recv_timeout(LONG / 2).expect("it sleeps on");
            waiter.join().unwrap();
        }
    }
}

#[test]
fn waiting_for_any_of_several() {
    let (mut engines, mut guests): (Vec<_>, Vec<_>) = (0..3).map(|_| both_ends(4096)).unzip();
    for round in 0..100 {
        let mut guest = guests.remove(round % 3);
        let replier = thread::spawn(move || {
            thread::sleep(Duration::from_micros(300));
            assert!(guest.producer.push(b"reply", 0).unwrap());
            guest
        });
        wait_for_any(&engines);
        assert_eq!(engines[round % 3].consumer.pop().unwrap(), Some((0, b"reply".to_vec())));
        guests.insert(round % 3, replier.join().unwrap());
    }
}

/// The number of rings is more than the kernel can watch at once.
#[test]
fn a_reply_on_the_last_of_many_rings_is_not_slept_through() {
    let (engines, mut guests): (Vec<_>, Vec<_>) = (0..130).map(|_| both_ends(4096)).unzip();
    let mut last = guests.pop().unwrap();
    let (done, answer) = std::sync::mpsc::channel();
    let waiter = thread::spawn(move || {
        wait_for_any(&engines);
        done.send(()).unwrap();
    });
    thread::sleep(Duration::from_millis(20));
    assert!(last.producer.push(b"reply", 0).unwrap());
    answer.recv_timeout(LONG / 2).unwrap();
    waiter.join().unwrap();
}

#[test]
fn memory_cannot_shrink_under_the_other_side() {
    let (_engine, fd) = Ends::create(4096).unwrap();
    // SAFETY: a call on an open descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
}

#[test]
fn other_files_are_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: the memory does not belong to a lane.
    let opened = unsafe { Ends::open(file.as_fd()) };
    assert!(matches!(opened, Err(RegionError::NotALane | RegionError::System(_))));
}
