//! The ring between two threads of one process. Miri runs this file too.

use crosslane_ring::{Parked, RingError, Spin, heap_ring};
use std::thread;
use std::time::Duration;

const FRAMES: u32 = if cfg!(miri) { 40 } else { 200_000 };
const LONG: Duration = Duration::from_secs(60);

/// A small, fast generator (xorshift32; G. Marsaglia, "Xorshift RNGs", 2003).
fn next(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

fn content(number: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number as usize * 31 + at * 7) as u8).collect()
}

/// Moves frames of random sizes from one thread to another and compares every byte.
fn exchange(capacity: usize, frames: u32, largest: usize, spin: Spin) {
    let (mut producer, mut consumer) = heap_ring(capacity);
    let writer = thread::spawn(move || {
        let mut random = 1;
        for number in 0..frames {
            let bytes = content(number, next(&mut random) as usize % (largest + 1));
            while !producer.push(&bytes, number).unwrap() {
                assert_eq!(producer.wait(spin, LONG), Parked::Ready, "a lost wake");
            }
        }
    });
    let mut random = 1;
    for number in 0..frames {
        let expected = content(number, next(&mut random) as usize % (largest + 1));
        loop {
            if let Some((tag, bytes)) = consumer.pop().unwrap() {
                assert_eq!((tag, bytes), (number, expected));
                break;
            }
            assert_eq!(consumer.wait(spin, LONG), Parked::Ready, "a lost wake");
        }
    }
    assert_eq!(consumer.pop(), Ok(None));
    writer.join().unwrap();
}

#[test]
fn frames_arrive_whole_and_in_order() {
    exchange(1024, FRAMES, 500, Spin::default());
}

#[test]
fn parking_without_spinning_loses_no_wake() {
    exchange(256, FRAMES / 4, 100, Spin(Duration::ZERO));
}

#[test]
fn the_largest_frame_always_fits_an_empty_ring() {
    let (mut producer, mut consumer) = heap_ring(64);
    let most = producer.most();
    for round in 0..20 {
        // A short frame before moves the start around the ring.
        assert!(producer.push(&vec![1; round % 9], 0).unwrap());
        consumer.pop().unwrap().unwrap();
        assert!(producer.push(&vec![2; most], 1).unwrap(), "round {round}");
        assert_eq!(consumer.pop().unwrap(), Some((1, vec![2; most])));
    }
    let error = producer.push(&vec![0; most + 1], 0).unwrap_err();
    assert_eq!(error, RingError::TooLarge { length: most + 1, most });
}

#[test]
fn an_uncommitted_grant_publishes_nothing() {
    let (mut producer, mut consumer) = heap_ring(64);
    assert!(producer.reserve(8).unwrap().is_some());
    assert_eq!(consumer.pop(), Ok(None));
    let mut grant = producer.reserve(16).unwrap().unwrap();
    grant.fill(&[5; 16]);
    grant.commit(3, 9);
    assert_eq!(consumer.pop(), Ok(Some((9, vec![5; 3]))));
}

#[test]
fn a_wait_ends_at_its_time() {
    let (mut producer, mut consumer) = heap_ring(64);
    assert_eq!(consumer.wait(Spin::default(), Duration::from_millis(1)), Parked::TimedOut);
    while producer.push(&[0; 8], 0).unwrap() {}
    assert_eq!(producer.wait(Spin(Duration::ZERO), Duration::from_millis(1)), Parked::TimedOut);
}

#[test]
fn a_frame_that_is_not_released_stays_the_oldest() {
    let (mut producer, mut consumer) = heap_ring(64);
    assert!(producer.push(&[1; 8], 1).unwrap() && producer.push(&[2; 8], 2).unwrap());
    for _ in 0..2 {
        assert_eq!(consumer.peek().unwrap().unwrap().tag(), 1);
    }
    consumer.release();
    // The consumer has looked at no frame since then, so this releases nothing.
    consumer.release();
    assert_eq!(consumer.pop(), Ok(Some((2, vec![2; 8]))));
    assert_eq!(consumer.pop(), Ok(None));
}
