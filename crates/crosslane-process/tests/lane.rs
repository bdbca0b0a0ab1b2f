//! Both ends of a lane, without a process between them.

use crosslane::batch::Trust;
use crosslane::lane::{Lane, LaneError, Patience};
use crosslane::{ColumnBuilder, DataType, Failure, batch};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{GuestLane, Mishaps};
use crosslane_process::testing::both_ends;
use std::thread;
use std::time::Duration;

const TEXT: DataType = DataType::Varchar;

fn text(length: usize) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&TEXT);
    column.bytes(&vec![b'x'; length]).unwrap();
    column
}

/// A guest that answers each call with its argument, `times` over.
fn echo(mut guest: GuestLane, times: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while let Some(call) = guest.next_call().unwrap() {
            let mut out = ColumnBuilder::new(&TEXT);
            {
                let columns = guest.columns(std::iter::once(&TEXT)).unwrap();
                out.bytes(&columns[0].bytes(0).repeat(times)).unwrap();
            }
            guest.succeed(call, &out, Mishaps::default()).unwrap();
        }
    })
}

fn collect(lane: &mut ProcessLane) -> usize {
    loop {
        if let Some(header) = lane.try_collect().unwrap() {
            assert_eq!((header.kind, header.rows), (batch::RESULT, 1));
            let columns = batch::columns(lane.frame(), std::iter::once(&TEXT), Trust::Nothing).unwrap();
            return columns[0].bytes(0).len();
        }
        ProcessLane::wait_any(&mut [lane], Patience::Spin, Duration::from_millis(5));
    }
}

/// Far more calls than the rings hold, none collected before the last is submitted: whoever waited for space
/// without taking replies would wait for ever.
fn flood(length: usize, times: usize, calls: usize) {
    let (mut lane, guest) = both_ends(4096);
    let guest = echo(guest, times);
    let argument = text(length);
    for _ in 0..calls {
        lane.submit(0, 1, &argument).unwrap();
    }
    assert_eq!(lane.in_flight(), calls);
    for _ in 0..calls {
        assert_eq!(collect(&mut lane), length * times);
    }
    assert_eq!(lane.in_flight(), 0);
    drop(lane);
    guest.join().unwrap();
}

#[test]
fn submitting_ahead_of_small_batches() {
    flood(100, 1, 10_000);
}

#[test]
fn submitting_ahead_of_requests_larger_than_the_ring() {
    flood(100_000, 1, 300);
}

#[test]
fn submitting_ahead_of_replies_larger_than_the_ring() {
    flood(10, 10_000, 300);
}

#[test]
fn one_very_large_batch() {
    flood(200_000_000, 1, 1);
}

#[test]
fn failures_keep_their_order() {
    let (mut lane, mut guest) = both_ends(4096);
    for _ in 0..3 {
        lane.submit(0, 1, &text(1)).unwrap();
    }
    for row in 0..3 {
        let call = guest.next_call().unwrap().unwrap();
        let failure = Failure { class: "E".into(), message: row.to_string(), ..Failure::default() };
        guest.fail(call, &failure, Some(row)).unwrap();
    }
    for row in 0..3u32 {
        let header = lane.try_collect().unwrap().unwrap();
        assert_eq!((header.kind, header.sequence, header.row), (batch::FAILURE, u64::from(row) + 1, row));
    }
    assert!(lane.try_collect().unwrap().is_none());
}

#[test]
fn a_reply_to_no_call_is_an_error() {
    let (mut lane, mut guest) = both_ends(4096);
    lane.submit(0, 1, &text(1)).unwrap();
    let call = guest.next_call().unwrap().unwrap();
    guest.succeed(call, &text(1), Mishaps::default()).unwrap();
    guest.succeed(call, &text(1), Mishaps::default()).unwrap();
    assert!(lane.try_collect().unwrap().is_some());
    assert!(matches!(lane.try_collect(), Err(LaneError::Corrupt(_))));
}

#[test]
fn the_end_of_a_guest_is_noticed_and_the_end_of_an_engine_too() {
    let (mut lane, guest) = both_ends(4096);
    lane.check().unwrap();
    drop(guest);
    assert!(matches!(lane.check(), Err(LaneError::Died(_))));
    let (lane, mut guest) = both_ends(4096);
    drop(lane);
    assert!(guest.next_call().unwrap().is_none());
}
