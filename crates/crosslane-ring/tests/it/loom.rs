//! All interleavings of a producer and a consumer on a tiny ring.

use crosslane_ring::{Consumer, Memory, Producer, RingHeader, Spin, wait_any};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

const CAPACITY: usize = 64;
const LONG: Duration = Duration::from_secs(1);

/// Memory whose every word loom watches for unordered access.
struct Watched {
    header: RingHeader,
    words: [UnsafeCell<[u8; 8]>; CAPACITY / 8],
}

#[derive(Clone)]
struct Modelled(Arc<Watched>);

// SAFETY: loom checks that the protocol gives each word to one side at a time.
unsafe impl Send for Modelled {}

// SAFETY: the capacity is a power of two and the same for both sides.
unsafe impl Memory for Modelled {
    fn header(&self) -> &RingHeader {
        &self.0.header
    }
    fn capacity(&self) -> usize {
        CAPACITY
    }
    unsafe fn load(&self, at: usize, out: &mut [u8]) {
        for (index, byte) in out.iter_mut().enumerate() {
            let place = at + index;
            // SAFETY: loom's own check.
            *byte = self.0.words[place / 8].with(|word| unsafe { (*word)[place % 8] });
        }
    }
    unsafe fn store(&self, at: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let place = at + index;
            // SAFETY: loom's own check.
            self.0.words[place / 8].with_mut(|word| unsafe { (*word)[place % 8] = *byte });
        }
    }
    unsafe fn load_word(&self, at: usize) -> u64 {
        // SAFETY: loom's own check.
        self.0.words[at / 8].with(|word| u64::from_le_bytes(unsafe { *word }))
    }
    unsafe fn store_word(&self, at: usize, value: u64) {
        // SAFETY: loom's own check.
        self.0.words[at / 8].with_mut(|word| unsafe { *word = value.to_le_bytes() });
    }
}

fn ring() -> (Producer<Modelled>, Consumer<Modelled>) {
    let memory = Modelled(Arc::new(Watched {
        header: RingHeader::default(),
        words: std::array::from_fn(|_| UnsafeCell::new([0; 8])),
    }));
    // SAFETY: the ring is fresh, and these are its only ends.
    unsafe { (Producer::new(memory.clone()), Consumer::new(memory)) }
}

fn check(frames: &'static [usize]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (mut producer, mut consumer) = ring();
        let writer = thread::spawn(move || {
            for (number, length) in frames.iter().enumerate() {
                while !producer.push(&vec![number as u8; *length], number as u32).unwrap() {
                    producer.wait(Spin(Duration::ZERO), LONG);
                }
            }
        });
        for (number, length) in frames.iter().enumerate() {
            loop {
                if let Some(frame) = consumer.pop().unwrap() {
                    assert_eq!(frame, (number as u32, vec![number as u8; *length]));
                    break;
                }
                consumer.wait(Spin(Duration::ZERO), LONG);
            }
        }
        writer.join().unwrap();
    });
}

/// While the ring has room, no wake is lost and no access is unordered.
#[test]
fn two_frames() {
    check(&[8, 3]);
}

/// The producer parks until the ring has space. The consumer wakes it.
#[test]
fn a_full_ring() {
    check(&[24, 24, 8]);
}

/// The consumer sees the end-of-ring marker together with the frame behind it.
#[test]
fn around_the_end() {
    check(&[16, 16, 24, 8]);
}

/// If the ring is empty, the producer goes back to place 0, wherever the consumer is at that time.
#[test]
fn back_to_the_start() {
    check(&[8, 8, 3]);
}

/// A thread that wants to stop a waiting consumer sets a flag and sounds the alarm. The consumer's wait
/// ends, or does not begin. Without the alarm's wake the consumer sleeps for ever, which loom reports as
/// a deadlock.
#[test]
fn an_alarm_ends_a_wait() {
    loom::model(|| {
        let (_producer, mut consumer) = ring();
        let alarm = consumer.alarm();
        let stop = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let said = Arc::clone(&stop);
        let other = thread::spawn(move || {
            said.store(true, loom::sync::atomic::Ordering::Relaxed);
            alarm.sound();
        });
        while !stop.load(loom::sync::atomic::Ordering::Relaxed) {
            let stopped = || stop.load(loom::sync::atomic::Ordering::Relaxed);
            consumer.wait_or(Spin(Duration::ZERO), LONG, stopped);
        }
        other.join().unwrap();
    });
}

/// The engine waits for the replies of several lanes. It sees each reply, whichever ring has it and
/// however the earlier waits ended.
fn check_any(frames: [usize; 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (mut producers, mut consumers): (Vec<_>, Vec<_>) = (0..2).map(|_| ring()).unzip();
        let writers: Vec<_> = producers
            .drain(..)
            .zip(frames)
            .map(|(mut producer, count)| {
                thread::spawn(move || (0..count).for_each(|_| assert!(producer.push(&[7], 1).unwrap())))
            })
            .collect();
        let mut rest = frames;
        while rest != [0, 0] {
            for (consumer, rest) in consumers.iter_mut().zip(&mut rest) {
                while let Some(frame) = consumer.pop().unwrap() {
                    assert_eq!(frame, (1, vec![7]));
                    *rest -= 1;
                }
            }
            if rest != [0, 0] {
                let news = || consumers.iter().any(Consumer::has_news);
                wait_any(consumers.iter().map(Consumer::waiter), Spin(Duration::ZERO), LONG, news);
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

#[test]
fn waiting_for_either_of_two_rings() {
    check_any([1, 1]);
}

#[test]
fn waiting_for_the_second_of_two_rings() {
    check_any([0, 2]);
}

/// One thread sleeps in place of the consumer. Another thread suppresses its wakes and resumes them,
/// and a third thread resumes them too. The sleeping thread finds a frame that comes at any time.
/// Otherwise it sleeps for ever, which loom reports as a deadlock.
#[test]
fn a_sleeper_with_suppressed_wakes_is_woken_in_the_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (mut producer, consumer) = ring();
        let watch = Arc::new(consumer.watch());
        let sleeper = {
            let watch = Arc::clone(&watch);
            thread::spawn(move || {
                while !watch.has_news() {
                    wait_any([watch.waiter()], Spin(Duration::ZERO), LONG, || watch.has_news());
                }
            })
        };
        let writer = thread::spawn(move || assert!(producer.push(&[7], 1).unwrap()));
        let other = {
            let watch = Arc::clone(&watch);
            thread::spawn(move || watch.resume_wakes())
        };
        watch.suppress_wakes();
        watch.resume_wakes();
        other.join().unwrap();
        writer.join().unwrap();
        sleeper.join().unwrap();
    });
}
