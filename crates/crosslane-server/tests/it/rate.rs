//! The `rate` of a function, which counts for all clients of a server.

use crate::common::raw::{Raw, call, frame};
use crate::common::{BEGUN, Client, DOUBLE, RARE, WAIT, eventually, integers, options, server, start, unix};
use crosslane::batch::{BATCH, CANCEL, Header, LAST};
use crosslane::{ColumnBuilder, DataType, Error};
use crosslane_server::Options;
use crosslane_server::wire::Tell;
use std::thread;
use std::time::Duration;

/// The exchange that waits in the server, by what it has told last.
fn held(raw: &mut Raw) -> Option<u32> {
    match raw.told() {
        Some(Tell::Progress { held, .. }) => held,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_client_waits_and_holds_no_worker() {
    let address = unix();
    let server = start(Options { workers: 1, ..options(std::slice::from_ref(&address)) }).unwrap();
    let (mut first, mut second) = (Raw::new(&address), Raw::new(&address));
    first.message(0, &frame(call(RARE, 1, 1), &integers([4])));
    assert_eq!(first.reply().exchange, 1);
    second.message(0, &frame(call(RARE, 1, 1), &integers([4])));
    assert_eq!(held(&mut second), Some(1));
    // The only worker is free for others, and for other lanes of the same client.
    first.message(0, &frame(call(DOUBLE, 2, 1), &integers([4])));
    assert_eq!(first.reply().exchange, 2);
    second.message(1, &frame(call(DOUBLE, 1, 1), &integers([4])));
    assert_eq!(second.reply().exchange, 1);
    // A row that is NULL without a call does not wait.
    let mut null = ColumnBuilder::new(&DataType::BigInt);
    null.null();
    second.message(2, &frame(call(RARE, 1, 1), &null));
    assert_eq!(second.reply().exchange, 1);
    let cancel = Header { kind: CANCEL, flags: LAST, exchange: 1, ..Header::default() };
    second.message(0, bytemuck::bytes_of(&cancel));
    let answer = second.reply();
    assert_eq!((answer.kind, answer.exchange, answer.rows), (BATCH, 1, 0));
    second.message(0, &frame(call(DOUBLE, 2, 1), &integers([4])));
    assert_eq!(second.reply().exchange, 2);
    // A client may leave while its batch waits.
    second.message(0, &frame(call(RARE, 3, 1), &integers([4])));
    drop(second);
    drop(first);
    eventually("something is left of a batch that waited", || server.load() == (0, 0));
}

#[test]
fn a_batch_that_waits_for_a_worker_does_not_count() {
    let address = unix();
    let server = start(Options { workers: 1, ..options(std::slice::from_ref(&address)) }).unwrap();
    let (mut busy, mut waits) = (Raw::new(&address), Raw::new(&address));
    busy.message(0, &frame(call(WAIT, 1, 1), &integers([600_000])));
    eventually("the worker is not busy", || BEGUN.lock().unwrap().contains(&600_000));
    waits.message(0, &frame(call(RARE, 1, 1), &integers([4])));
    eventually("it does not wait for a worker", || server.load().1 == 1);
    drop(waits);
    drop(busy);
    eventually("the clients are there", || server.load() == (0, 0));
    // The only call of an hour.
    let mut last = Raw::new(&address);
    last.message(0, &frame(call(RARE, 1, 1), &integers([4])));
    assert_eq!(last.reply().exchange, 1);
}

/// The exchange at which the worker is, its row, and the exchange that waits, by the next message.
fn progress(raw: &mut Raw) -> (u32, u32, Option<u32>) {
    match raw.told() {
        Some(Tell::Progress { exchange, row, held, .. }) => (exchange, row, held),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_knows_how_far_the_worker_is_and_what_waits_behind() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    raw.message(0, &frame(call(RARE, 1, 1), &integers([4])));
    assert_eq!(raw.reply().exchange, 1);
    raw.message(0, &frame(call(WAIT, 2, 60), &integers([50; 60])));
    let mut last = (0, u32::MAX, None);
    while !matches!(last, (2, 1.., None)) {
        last = progress(&mut raw);
    }
    raw.message(0, &frame(call(RARE, 3, 1), &integers([4])));
    while last.2.is_none() {
        let next = progress(&mut raw);
        assert!(next.0 == 2 && next.1 >= last.1, "{next:?} after {last:?}");
        last = next;
    }
    for _ in 0..3 {
        let next = progress(&mut raw);
        assert!(next.0 == 2 && next.1 >= last.1 && next.2 == Some(3), "{next:?} after {last:?}");
        last = next;
    }
}

#[test]
fn a_server_that_ends_does_not_wait_for_what_has_not_begun() {
    let (server, address) = server();
    let mut raw = Raw::new(&address);
    raw.message(0, &frame(call(RARE, 1, 1), &integers([4])));
    assert_eq!(raw.reply().exchange, 1);
    raw.message(0, &frame(call(RARE, 2, 1), &integers([4])));
    assert_eq!(held(&mut raw), Some(2));
    assert!(server.shut_down(Duration::from_secs(30)));
    assert!(raw.refusal().contains("shutting down"));
}

#[test]
fn a_batch_has_no_more_calls_than_may_begin_at_once() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    raw.message(0, &frame(call(RARE, 1, 2), &integers([4, 5])));
    let told = raw.told();
    assert!(
        matches!(&told, Some(Tell::Refused { message }) if message.contains("2 calls, where 1 may begin at once")),
        "{told:?}"
    );
}

#[test]
fn engines_wait_for_each_other_and_can_be_cancelled() {
    let (_server, address) = server();
    let (first, second) = (Client::new(&address), Client::new(&address));
    assert_eq!(first.call(RARE, &[4]).unwrap(), [8]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| second.call(RARE, &[4]));
        // A cancel ends only what has begun.
        eventually("the second engine waits on", || {
            second.cancel();
            waits.is_finished()
        });
        assert!(matches!(waits.join().unwrap(), Err(Error::Cancelled { .. })));
    });
    assert_eq!(second.call(DOUBLE, &[4]).unwrap(), [8]);
}
