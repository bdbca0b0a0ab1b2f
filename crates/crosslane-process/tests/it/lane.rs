//! Both ends of a lane, without a process between them.

use crosslane::batch::{Encode, Frame, Header, Plan};
use crosslane::display::value;
use crosslane::lane::{Lane, LaneError, Patience, wait_any};
use crosslane::{Address, ColumnBuilder, DataType, Entry, Failure, Part, batch};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{Emitted, GuestLane, Next, Room, RowCounts};
use crosslane_process::testing::{TYPES, both_ends, long_reply, raw_ends};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const CALL: Address = Address { function: 0, entry: Entry::Call, part: Part::Whole };
const SCAN: Address = Address { entry: Entry::Scan, ..CALL };
const TEXT: DataType = DataType::Varchar;

fn text(length: usize) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&TEXT);
    column.bytes(&vec![b'x'; length]).unwrap();
    column
}

/// A guest that answers each call with its argument, repeated `times` times.
fn echo(mut guest: GuestLane, times: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while let Some(call) = guest.next_call().unwrap() {
            let mut out = ColumnBuilder::new(&TEXT);
            {
                let columns = guest.columns(std::iter::once(&TEXT)).unwrap();
                out.bytes(&columns[0].bytes(0).repeat(times)).unwrap();
            }
            guest.succeed(call, &out, RowCounts::default()).unwrap();
        }
    })
}

fn collect(lane: &mut ProcessLane) -> usize {
    loop {
        if let Some(header) = lane.try_collect().unwrap() {
            assert_eq!((header.kind, header.rows), (batch::BATCH, 1));
            let columns = batch::columns(lane.frame(), std::iter::once(&TEXT)).unwrap();
            return columns[0].bytes(0).len();
        }
        wait_any(&[lane], Patience::Spin, Duration::from_millis(5));
    }
}

/// There are far more calls than the rings hold. The engine collects a reply only if there is no room
/// for another call. If a side waited for space without giving space back, it would wait for ever.
fn flood(length: usize, times: usize, calls: usize) {
    let (mut lane, guest) = both_ends(4096);
    let guest = echo(guest, times);
    let argument = text(length);
    let mut full = 0;
    for _ in 0..calls {
        while lane.submit(CALL, 1, &argument).unwrap().is_none() {
            full += 1;
            assert_eq!(collect(&mut lane), length * times);
        }
    }
    assert!(full > 0, "the lane held {calls} calls");
    while lane.in_flight() > 0 {
        assert_eq!(collect(&mut lane), length * times);
    }
    drop(lane);
    guest.join().unwrap();
}

/// The time slice of the calling thread in nanoseconds, from the first version of the structure of
/// `sched_getattr`.
fn slice() -> i64 {
    let mut attributes = [0_u64; 6];
    let size = size_of_val(&attributes) as u32;
    // SAFETY: the kernel writes at most `size` bytes there; thread 0 is the calling one.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) };
    assert_eq!(got, 0);
    attributes[3] as i64
}

/// A guest that sleeps for as many milliseconds as its argument says, and answers with its time slice.
fn sleeper(mut guest: GuestLane) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while let Some(call) = guest.next_call().unwrap() {
            let milliseconds =
                guest.columns(std::iter::once(&DataType::BigInt)).unwrap()[0].values::<i64>().unwrap()[0];
            thread::sleep(Duration::from_millis(milliseconds as u64));
            let mut out = ColumnBuilder::new(&DataType::BigInt);
            out.fixed(slice());
            guest.succeed(call, &out, RowCounts::default()).unwrap();
        }
    })
}

#[test]
fn a_guest_of_a_shared_lane_has_a_short_slice_but_for_long_calls() {
    let usual = slice();
    for is_shared in [false, true] {
        let (mut lane, guest) = both_ends(4096);
        if is_shared {
            lane.share();
        }
        let guest = sleeper(guest);
        let mut call = |function: u32, milliseconds: i64| {
            let mut argument = ColumnBuilder::new(&DataType::BigInt);
            argument.fixed(milliseconds);
            lane.submit(Address { function, ..CALL }, 1, &argument).unwrap().unwrap();
            while lane.try_collect().unwrap().is_none() {
                wait_any(&[&mut lane], Patience::Spin, Duration::from_millis(5));
            }
            batch::columns(lane.frame(), std::iter::once(&DataType::BigInt)).unwrap()[0]
                .values::<i64>()
                .unwrap()[0]
        };
        // Kernels before 6.12 do not report time slices, and do not grant them.
        let short = if is_shared && usual != 0 { 100_000 } else { usual };
        assert_eq!(call(0, 5), short, "it was not known to be long");
        assert_eq!([call(0, 0), call(1, 0)], [usual, short]);
        // A call may also take long because other threads have the processor.
        assert!((0..1000).any(|_| call(0, 0) == short), "it is still known to be long");
        drop(lane);
        guest.join().unwrap();
    }
}

#[test]
fn a_full_lane_says_so_and_sends_nothing() {
    let (mut lane, mut guest) = both_ends(4096);
    // If the announcement of a batch finds no room, the lane sends no descriptor either.
    let mut sent = 0;
    for length in [100, 100_000] {
        while lane.submit(CALL, 1, &text(length)).unwrap().is_some() {
            sent += 1;
        }
    }
    assert_eq!(lane.in_flight(), sent);
    for _ in 0..sent {
        let call = guest.next_call().unwrap().unwrap();
        guest.succeed(call, &text(1), RowCounts::default()).unwrap();
        assert_eq!(collect(&mut lane), 1);
    }
    for length in [200_000, 3] {
        lane.submit(CALL, 1, &text(length)).unwrap().unwrap();
        let call = guest.next_call().unwrap().unwrap();
        let length_there = guest.columns(std::iter::once(&TEXT)).unwrap()[0].bytes(0).len();
        assert_eq!(length_there, length);
        guest.succeed(call, &text(length), RowCounts::default()).unwrap();
        assert_eq!(collect(&mut lane), length);
    }
}

#[test]
fn a_guest_that_gives_no_space_back_is_found_out() {
    let (mut lane, mut ends) = raw_ends(4096);
    let mut exchange = 0;
    let error = loop {
        match lane.submit(CALL, 1, &text(100)) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no room, though nothing is in flight"),
            Err(error) => break error,
        }
        exchange += 1;
        let header =
            Header { kind: batch::BATCH, flags: batch::LAST, exchange, rows: 1, ..Header::default() };
        assert!(ends.producer.push(&frame(&text(1), header), 0).unwrap());
        assert_eq!(collect(&mut lane), 1);
    };
    assert!(matches!(error, LaneError::Corrupt(_)), "{error}");
}

#[test]
fn a_guest_that_takes_no_descriptors_is_found_out() {
    let (mut lane, mut ends) = raw_ends(4096);
    let mut exchange = 0;
    let error = loop {
        match lane.submit(CALL, 1, &text(5000)) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no room, though nothing is in flight"),
            Err(error) => break error,
        }
        ends.consumer.pop().unwrap().unwrap();
        exchange += 1;
        let header =
            Header { kind: batch::BATCH, flags: batch::LAST, exchange, rows: 1, ..Header::default() };
        assert!(ends.producer.push(&frame(&text(1), header), 0).unwrap());
        assert_eq!(collect(&mut lane), 1);
    };
    assert!(matches!(error, LaneError::Corrupt(_)), "{error}");
}

fn frame(content: &ColumnBuilder, header: Header) -> Vec<u8> {
    let mut plan = Plan::default();
    content.plan(&mut plan);
    let mut frame = vec![0; plan.size()];
    content.write(&mut plan.start(&mut frame, header));
    frame
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
    let (mut lane, guest) = both_ends(4096);
    let guest = echo(guest, 1);
    lane.submit(CALL, 1, &text(200_000_000)).unwrap().unwrap();
    assert_eq!(collect(&mut lane), 200_000_000);
    drop(lane);
    guest.join().unwrap();
}

#[test]
fn failures_keep_their_order() {
    let (mut lane, mut guest) = both_ends(4096);
    for _ in 0..3 {
        lane.submit(CALL, 1, &text(1)).unwrap().unwrap();
    }
    for row in 0..3 {
        let call = guest.next_call().unwrap().unwrap();
        let failure = Failure { class: "E".into(), message: row.to_string(), ..Failure::default() };
        guest.fail(call, &failure, Some(row)).unwrap();
    }
    for row in 0..3u32 {
        let header = lane.try_collect().unwrap().unwrap();
        assert_eq!((header.kind, header.exchange, header.row), (batch::FAILURE, u64::from(row) + 1, row));
    }
    assert!(lane.try_collect().unwrap().is_none());
}

#[test]
fn a_reply_to_no_call_is_an_error() {
    let (mut lane, mut guest) = both_ends(4096);
    lane.submit(CALL, 1, &text(1)).unwrap();
    let call = guest.next_call().unwrap().unwrap();
    guest.succeed(call, &text(1), RowCounts::default()).unwrap();
    guest.succeed(call, &text(1), RowCounts::default()).unwrap();
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

/// A guest may have other work than to wait for room.
#[test]
fn a_wait_for_room_can_be_stopped() {
    const SIZE: usize = 1000;
    let (mut lane, mut guest) = both_ends(4096);
    let mut answered = 0;
    while guest.wait_for_room_or(SIZE, || true).unwrap() {
        lane.submit(CALL, 1, &text(1)).unwrap().unwrap();
        let call = guest.next_call().unwrap().unwrap();
        guest.succeed(call, &text(SIZE - 200), RowCounts::default()).unwrap();
        answered += 1;
    }
    assert!(answered > 1, "{answered}");
    let stop = AtomicBool::new(false);
    let alarm = guest.alarm();
    thread::scope(|scope| {
        scope.spawn(|| {
            stop.store(true, Relaxed);
            alarm.sound();
        });
        assert!(!guest.wait_for_room_or(SIZE, || stop.load(Relaxed)).unwrap());
    });
    for _ in 0..answered {
        assert_eq!(collect(&mut lane), SIZE - 200);
    }
    assert!(guest.wait_for_room_or(SIZE, || false).unwrap());
}

/// An exception may hold a value of any size in its message. The guest passes on only as much as a
/// person can read.
#[test]
fn long_texts_of_failures_are_cut() {
    let (mut lane, mut guest) = both_ends(4096);
    lane.submit(CALL, 1, &text(1)).unwrap();
    let call = guest.next_call().unwrap().unwrap();
    let long = "ä\u{1}".repeat(10_000_000);
    let failure =
        Failure { class: long.clone(), message: long.clone(), traceback: long.clone(), ..Failure::default() };
    guest.fail(call, &failure, None).unwrap();
    lane.try_collect().unwrap().unwrap();
    let told: Failure = serde_json::from_slice(batch::failure_text(lane.frame()).unwrap()).unwrap();
    for part in [told.class, told.message, told.traceback] {
        assert!(part.len() < 100_000, "{} bytes", part.len());
        assert!(part.starts_with("ä\u{1}ä"));
        assert!(part.contains("bytes are left out"));
    }
}

#[test]
fn a_guest_that_does_not_cut_its_failures_is_found_out() {
    let frame = batch::failure_frame(Header::default(), &vec![b' '; 300_000_000]);
    assert!(batch::failure_text(&frame).is_err());
}

/// A guest of one scan. It sends texts of 1, 2, ... bytes, `step` apart, until the engine wants no more.
/// It returns the number of texts.
fn scan(guest: &mut GuestLane, step: usize) -> usize {
    let Next::Call(call) = guest.next_call_or(|| false).unwrap() else { panic!("no scan") };
    assert_eq!(call.entry(), Some(Entry::Scan));
    for sent in 0.. {
        match guest.emit(&call, 1, &text(1 + sent * step), || false).unwrap() {
            Emitted::Sent => {}
            Emitted::Cancelled => {
                guest.succeed(call.with_rows(0), &ColumnBuilder::new(&TEXT), RowCounts::default()).unwrap();
                return sent;
            }
            other => panic!("{other:?}"),
        }
    }
    unreachable!("a scan without an end")
}

/// The engine cancels an endless scan, with batches of all sizes. Afterwards the lane runs calls as
/// before.
#[test]
fn a_cancelled_scan_leaves_its_lane_as_it_was() {
    for step in [1, 100, 3000] {
        let (mut lane, mut guest) = both_ends(4096);
        let guest = thread::spawn(move || {
            let sent = scan(&mut guest, step);
            let call = guest.next_call().unwrap().unwrap();
            guest.succeed(call, &text(7), RowCounts::default()).unwrap();
            (sent, scan(&mut guest, step))
        });
        for taken in [20, 0] {
            assert!(lane.submit(SCAN, 1, &text(1)).unwrap().is_some());
            assert_eq!(lane.submit(CALL, 1, &text(1)).unwrap(), None, "a scan has its lane for itself");
            for count in 0..taken {
                assert_eq!(collect(&mut lane), 1 + count * step);
            }
            assert!(!lane.is_cancelled());
            lane.cancel().unwrap();
            while lane.in_flight() > 0 {
                assert!(lane.is_cancelled());
                assert_eq!(lane.try_collect().unwrap(), None, "it was cancelled");
                wait_any(&[&mut lane], Patience::Spin, Duration::from_millis(5));
            }
            assert_eq!(lane.frame().len(), size_of::<Header>(), "what nobody wants was copied");
            if taken > 0 {
                lane.submit(CALL, 1, &text(1)).unwrap().unwrap();
                assert_eq!(collect(&mut lane), 7);
            }
        }
        let (sent, _) = guest.join().unwrap();
        assert!(sent >= 20, "{sent} were sent");
    }
}

#[test]
fn a_batch_of_one_lane_is_passed_on_to_another() {
    for name in TYPES {
        let data_type: DataType = name.parse().unwrap();
        for rows in [0, 1, 3, 8, 300] {
            let (mut lane, mut raw) = raw_ends(1 << 18);
            lane.submit(CALL, 1, &text(1)).unwrap().unwrap();
            assert!(raw.producer.push(&long_reply(&data_type, rows), 0).unwrap());
            assert_eq!(lane.try_collect().unwrap().unwrap().rows, rows);
            let column = batch::column(lane.frame(), &data_type).unwrap();
            // The engine passes the column on twice, with another column between.
            let rows = rows as usize;
            let mut numbers = ColumnBuilder::new(&DataType::BigInt);
            (0..rows as i64).for_each(|row| numbers.fixed(row));
            let numbers = numbers.column(&DataType::BigInt);
            let (mut next, mut guest) = both_ends(1 << 18);
            let sent = vec![column.clone(), numbers, column.clone()];
            next.submit(CALL, rows, &sent).unwrap().unwrap();
            guest.next_call().unwrap().unwrap();
            let taken = guest.columns([&data_type, &DataType::BigInt, &data_type].into_iter()).unwrap();
            for (taken, sent) in taken.iter().zip(&sent) {
                for row in 0..rows {
                    assert_eq!(taken.is_valid(row), sent.is_valid(row), "{name}");
                    assert_eq!(value(taken, row), value(sent, row), "{name}");
                }
            }
            // The frame has all of the column, and nothing else.
            let frame = Frame::new(&column, rows).unwrap();
            let head = size_of::<Header>();
            assert_eq!(frame.bytes()[head..], lane.frame()[head..], "{name}");
        }
    }
}

/// A guest that makes its results one by one can ask for a cancellation between them.
#[test]
fn a_guest_sees_a_cancel_without_waiting() {
    let (mut lane, mut guest) = both_ends(4096);
    for _ in 0..3 {
        lane.submit(SCAN, 1, &text(1)).unwrap().unwrap();
        let Next::Call(call) = guest.next_call_or(|| false).unwrap() else { panic!("no scan") };
        assert!(!guest.is_cancelled(&call).unwrap() && !guest.has_message());
        lane.cancel().unwrap();
        assert!(guest.has_message() && guest.is_cancelled(&call).unwrap());
        guest.succeed(call.with_rows(0), &ColumnBuilder::new(&TEXT), RowCounts::default()).unwrap();
        assert_eq!((lane.try_collect().unwrap(), lane.in_flight()), (None, 0));
    }
}

/// The guest does not begin the batches behind the cancelled one, and the lane goes on.
#[test]
fn a_guest_sees_a_cancel_behind_what_comes_next() {
    let (mut lane, mut guest) = both_ends(4096);
    let map = Address::whole(7, Entry::Map);
    for round in 0..20 {
        for _ in 0..3 {
            lane.submit(map, 1, &text(1)).unwrap().unwrap();
        }
        let Next::Call(call) = guest.next_call_or(|| false).unwrap() else { panic!("no batch") };
        assert_eq!(call.header.exchange, 3 * round + 1);
        assert!(!guest.is_cancelled(&call).unwrap() && !guest.has_message(), "only more batches");
        let (_, seen) = guest.news();
        lane.cancel().unwrap();
        assert!(guest.has_message());
        let (word, same) = guest.news();
        assert!(word.load(Relaxed) != seen && seen == same);
        // The guest also sees the cancel while it waits for room.
        let sent = guest.emit(&call, 1, &text(1), || panic!("there is room")).unwrap();
        assert!(matches!(sent, Emitted::Cancelled));
        assert!(guest.is_cancelled(&call).unwrap() && !guest.has_message());
        guest.succeed(call.with_rows(0), &(), RowCounts::default()).unwrap();
        assert!(matches!(guest.next_call_or(|| true).unwrap(), Next::Stopped));
        assert_eq!((lane.try_collect().unwrap(), lane.try_collect().unwrap()), (None, None));
        assert_eq!((lane.try_collect().unwrap(), lane.in_flight()), (None, 0));
    }
}

/// A guest waits until its results are taken, and has the next ones ready. Its work on those counts,
/// too.
#[test]
fn what_a_guest_works_before_a_wait_and_after_it_counts() {
    const NAP: Duration = Duration::from_millis(20);
    let (mut lane, mut guest) = both_ends(4096);
    lane.submit(SCAN, 1, &text(1)).unwrap().unwrap();
    let (waits, is_about_to_wait) = std::sync::mpsc::channel();
    let guest = thread::spawn(move || {
        let Next::Call(call) = guest.next_call_or(|| false).unwrap() else { panic!("no scan") };
        guest.emit(&call, 1, &text(1), || false).unwrap();
        thread::sleep(NAP);
        waits.send(()).unwrap();
        assert!(matches!(guest.await_room(&call, Room::All, || false).unwrap(), Emitted::Sent));
        thread::sleep(NAP);
        guest.succeed(call, &text(2), RowCounts::default()).unwrap();
    });
    is_about_to_wait.recv().unwrap();
    thread::sleep(3 * NAP);
    assert_eq!(collect(&mut lane), 1);
    let header = loop {
        match lane.try_collect().unwrap() {
            Some(header) => break header,
            None => wait_any(&[&mut lane], Patience::Spin, Duration::from_millis(5)),
        }
    };
    assert!(u128::from(header.worked) >= 2 * NAP.as_nanos() && header.waited > 0, "{header:?}");
    guest.join().unwrap();
}

/// Results come while the engine sends arguments, and the guest may end first. Batches that were sent
/// since then do not belong to the next call.
#[test]
fn both_directions_are_open_at_once() {
    let (mut lane, mut guest) = both_ends(4096);
    let part = |part| Address { part, ..SCAN };
    lane.submit(part(Part::First), 1, &text(1)).unwrap().unwrap();
    let Next::Call(mut call) = guest.next_call_or(|| false).unwrap() else { panic!("no batch") };
    for length in 2..100 {
        assert!(!call.is_last());
        assert!(matches!(guest.emit(&call, 1, &text(length), || false).unwrap(), Emitted::Sent));
        assert_eq!(collect(&mut lane), length);
        lane.submit(part(Part::Next), 1, &text(length)).unwrap().unwrap();
        let Next::Call(next) = guest.more(&call, || false).unwrap() else { panic!("no batch") };
        assert_eq!(guest.columns(std::iter::once(&TEXT)).unwrap()[0].bytes(0).len(), length);
        call = next;
    }
    guest.succeed(call, &text(5), RowCounts::default()).unwrap();
    lane.submit(part(Part::Last), 1, &text(1)).unwrap().unwrap();
    assert_eq!(collect(&mut lane), 5);
    lane.submit(CALL, 1, &text(9)).unwrap().unwrap();
    let call = guest.next_call().unwrap().unwrap();
    assert_eq!(guest.columns(std::iter::once(&TEXT)).unwrap()[0].bytes(0).len(), 9);
    guest.succeed(call, &text(9), RowCounts::default()).unwrap();
    assert_eq!(collect(&mut lane), 9);
}

#[test]
fn a_guest_says_which_entries_it_does_not_have() {
    let (mut lane, mut guest) = both_ends(4096);
    lane.submit(SCAN, 1, &text(1)).unwrap().unwrap();
    let guest = thread::spawn(move || guest.next_call().unwrap().is_none());
    let header = loop {
        match lane.try_collect().unwrap() {
            Some(header) => break header,
            None => wait_any(&[&mut lane], Patience::Spin, Duration::from_millis(5)),
        }
    };
    assert_eq!(header.kind, batch::FAILURE);
    let told = String::from_utf8(batch::failure_text(lane.frame()).unwrap().to_vec()).unwrap();
    assert!(told.contains("this guest has no entry Scan of function 0"), "{told}");
    assert_eq!(lane.in_flight(), 0);
    drop(lane);
    assert!(guest.join().unwrap());
}
