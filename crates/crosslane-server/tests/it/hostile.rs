//! Clients that lie, flood, stall and vanish end alone. Meanwhile, another client of the same server
//! goes on.

use crate::common::raw::{Raw, call, calls, frame, hello};
use crate::common::{
    BEGUN, Client, DOUBLE, END, ENDS, LARGE, NUMBERS, WAIT, eventually, integers, options, server, start,
    start_counted, unix,
};
use crate::crowd;
use crosslane::batch::{BATCH, CANCEL, FAILURE, Header, LAST};
use crosslane::{ColumnBuilder, DataType, Entry};
use crosslane_server::wire::{self, Ask, CONTROL, Tell, prefix};
use crosslane_server::{Address, Server};
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// A limit that is longer than anything in these tests takes.
const LONG: Duration = Duration::from_secs(30);

#[track_caller]
fn goes_on(client: &Client) {
    assert_eq!(client.call(DOUBLE, &[21]).unwrap(), [42]);
}

#[test]
fn what_breaks_the_protocol_ends_its_connection_and_says_why() {
    let (_server, address) = server();
    let client = Client::new(&address);
    let wrong_type = frame(call(DOUBLE, 1, 1), &{
        let mut text = ColumnBuilder::new(&DataType::Varchar);
        text.bytes(b"text").unwrap();
        text
    });
    let whole = calls(DOUBLE, 1, 4);
    let with = |change: &dyn Fn(&mut Header)| {
        let mut header = call(DOUBLE, 1, 1);
        change(&mut header);
        frame(header, &integers([4]))
    };
    let mut offsets = whole.clone();
    offsets[64 + 16] = 0xFF;
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"short".to_vec(), "no header"),
        (with(&|header| header.kind = 77), "kind 77"),
        (with(&|header| header.kind = FAILURE), "kind 2"),
        (with(&|header| header.flags = 9), "flags"),
        (with(&|header| header.flags = 0), "not the last"),
        (with(&|header| header.exchange = 0), "exchange 0"),
        (with(&|header| header.exchange = 2), "exchange 2"),
        (with(&|header| header.function = 1000), "no function 1000"),
        (with(&|header| header.entry = 99), "no entry 99"),
        (with(&|header| header.entry = Entry::SetUp as u32), "no entry 6"),
        (with(&|header| header.entry = Entry::Scan as u32), "no entry 2"),
        (with(&|header| header.rows = 2), "rows"),
        (whole[..whole.len() - 8].to_vec(), "malformed"),
        (offsets, "malformed"),
        (wrong_type, "malformed"),
        (frame(Header { kind: CANCEL, ..call(0, 5, 0) }, &()), "cancel of exchange 5"),
    ];
    for (message, why) in cases {
        let mut raw = Raw::new(&address);
        raw.message(3, &message);
        let refusal = raw.refusal();
        assert!(refusal.contains(why), "{refusal:?} where {why:?} is due");
        goes_on(&client);
    }
}

#[test]
fn a_partition_that_no_worker_made_reaches_none() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    let mut partition = ColumnBuilder::new(&DataType::Blob);
    partition.bytes(b"cos\nsystem\n(S'true'\ntR.").unwrap();
    let mut wanted = ColumnBuilder::new(&"INTEGER[]".parse().unwrap());
    wanted.null();
    let header = Header { entry: Entry::Scan as u32, ..call(NUMBERS, 1, 1) };
    raw.message(0, &frame(header, &vec![partition, wanted, integers([5])]));
    assert!(raw.refusal().contains("no worker of this server has given out"));
}

#[test]
fn a_connection_without_a_greeting_is_refused_and_ended() {
    let (_server, address) = server();
    let client = Client::new(&address);
    let control = |text: &str| [&prefix(CONTROL, text.len())[..], text.as_bytes()].concat();
    for (sent, why) in [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(), "bytes"),
        (control("{}"), "no greeting"),
        (control(r#"{"op": "hello", "protocol": 99}"#), "version 99"),
        (control(r#"{"op": "close", "lane": 1}"#), "no greeting"),
        (prefix(CONTROL, 1 << 20).to_vec(), "bytes"),
        (calls(DOUBLE, 1, 1), "bytes"),
    ] {
        let mut raw = Raw::connect(&address);
        raw.send(&sent);
        let refusal = raw.refusal();
        assert!(refusal.contains(why), "{refusal:?} where {why:?} is due");
        goes_on(&client);
    }
    let mut raw = Raw::new(&address);
    raw.send(&wire::control(&hello(None, false)).unwrap());
    assert!(raw.refusal().contains("second greeting"));
}

#[test]
fn a_message_that_is_too_long_is_refused_at_once() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    raw.send(&prefix(1, (16 << 20) + 1));
    assert!(raw.refusal().contains("16777216 are the most"));
}

#[test]
fn there_are_so_many_lanes_and_connections() {
    let mut options = options(&[unix()]);
    options.connections = 3;
    let server = start(options).unwrap();
    let address = &server.addresses()[0];
    let mut raw = Raw::new(address);
    for lane in 0..64 {
        raw.message(lane, &calls(DOUBLE, 1, 1));
    }
    for _ in 0..64 {
        raw.reply();
    }
    raw.send(&wire::control(&Ask::Close { lane: 7 }).unwrap());
    raw.message(70, &calls(DOUBLE, 1, 1));
    raw.reply();
    let others = [Raw::new(address), Raw::new(address)];
    assert!(Raw::connect(address).refusal().contains("3 connections already"));
    drop(others);
    eventually("a place is free", || server.load().0 == 1);
    raw.message(71, &calls(DOUBLE, 1, 1));
    assert!(raw.refusal().contains("more than 64 lanes"));
}

#[test]
fn lanes_of_a_connection_do_not_wait_for_each_other() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    // The call is so long that the server has a worker for the second call before it ends, however busy
    // the machine is.
    raw.message(1, &calls(WAIT, 1, 1500));
    raw.message(2, &calls(DOUBLE, 1, 5));
    let first = raw.reply();
    assert_eq!((first.function, first.exchange), (DOUBLE, 1));
    assert_eq!(raw.reply().function, WAIT);
    // Within a lane, calls wait for each other.
    raw.message(1, &calls(WAIT, 2, 50));
    raw.message(1, &calls(DOUBLE, 3, 5));
    assert_eq!([raw.reply().exchange, raw.reply().exchange], [2, 3]);
}

#[test]
fn calls_may_be_sent_ahead_without_end_and_the_server_stops_reading() {
    let (server, address) = server();
    let client = Client::new(&address);
    let mut raw = Raw::new(&address);
    let mut writer = raw.stream.try_clone().unwrap();
    writer.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    // The client does not read the replies, which have half a MiB each.
    let mut sent = 0;
    for exchange in 1..100_000 {
        let message = calls(LARGE, exchange, 1 << 19);
        if writer.write_all(&[&prefix(5, message.len())[..], &message].concat()).is_err() {
            break;
        }
        sent = exchange;
    }
    assert!(sent < 90_000, "it has read {sent} calls");
    goes_on(&client);
    assert_eq!(server.load().0, 2);
    // The server answers the sent calls when the client reads.
    for exchange in 1..=sent.min(200) {
        assert_eq!(raw.reply().exchange, exchange);
    }
}

#[test]
fn a_cancel_overtakes_what_was_sent_before() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let server = start(options).unwrap();
    let mut raw = Raw::new(&server.addresses()[0]);
    // No other test waits for this number of milliseconds.
    const CANCELLED: i64 = 302;
    for exchange in 1..=200 {
        raw.message(1, &calls(WAIT, exchange, if exchange < 40 { 50 } else { CANCELLED }));
        if exchange % 40 == 0 {
            raw.message(1, &frame(Header { kind: CANCEL, ..call(0, exchange, 0) }, &()));
        }
    }
    raw.message(1, &calls(DOUBLE, 201, 5));
    // The server ends each call in its turn.
    for exchange in 1..=201 {
        let reply = raw.reply();
        assert_eq!((reply.exchange, reply.flags), (exchange, LAST));
    }
    let begun = BEGUN.lock().unwrap().iter().filter(|time| **time == CANCELLED).count();
    assert!(begun < 80, "{begun} of 161 cancelled calls were made");
}

#[test]
fn clients_that_vanish_leave_nothing() {
    let (server, address) = server();
    let client = Client::new(&address);
    for round in 0..30 {
        let mut raw = Raw::new(&address);
        match round % 5 {
            0 => raw.message(1, &calls(WAIT, 1, 20)),
            1 => raw.message(1, &calls(LARGE, 1, 8 << 20)),
            2 => {
                let whole = calls(DOUBLE, 1, 1);
                raw.send(&prefix(1, whole.len()));
                raw.send(&whole[..whole.len() / 2]);
            }
            3 => (0..20).for_each(|lane| raw.message(lane, &calls(WAIT, 1, 5))),
            _ => {
                raw.message(1, &calls(DOUBLE, 1, 1));
                raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
        }
        drop(raw);
        goes_on(&client);
    }
    eventually("all connections are gone", || server.load() == (1, 0));
}

#[test]
fn the_server_notices_a_client_that_vanishes_while_its_lane_is_full() {
    let (server, address) = server();
    let mut raw = Raw::new(&address);
    raw.message(1, &calls(WAIT, 1, 60_000));
    (2..100).for_each(|exchange| raw.message(1, &calls(DOUBLE, exchange, 1)));
    drop(raw);
    eventually("its connection is gone", || server.load() == (0, 0));
}

#[test]
fn a_malformed_call_in_a_full_lane_ends_the_connection() {
    let (server, address) = server();
    let mut raw = Raw::new(&address);
    raw.message(1, &calls(WAIT, 1, 200));
    raw.message(1, &calls(WAIT, 2, 200));
    let text = ColumnBuilder::new(&DataType::Varchar);
    // The server reads this message when a worker has room for it.
    raw.message(1, &frame(call(DOUBLE, 3, 1), &text));
    (4..100).for_each(|exchange| raw.message(1, &calls(DOUBLE, exchange, 1)));
    assert!(raw.refusal().contains("malformed"));
    eventually("its connection is gone", || server.load() == (0, 0));
}

#[test]
fn the_server_stops_reading_from_a_client_that_reads_no_answers() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let server = start(options).unwrap();
    let address = &server.addresses()[0];
    let mut other = Raw::new(address);
    other.message(1, &calls(WAIT, 1, 20_000));
    let mut raw = Raw::new(address);
    raw.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    // A call that waits for a worker is answered as soon as it is cancelled.
    let mut sent = 0;
    for exchange in 1..200_000 {
        let cancel = frame(Header { kind: CANCEL, ..call(0, exchange, 0) }, &());
        let messages = [calls(DOUBLE, exchange, 1), cancel];
        let messages = messages.iter().flat_map(|message| [&prefix(1, message.len())[..], message].concat());
        if raw.stream.write_all(&messages.collect::<Vec<u8>>()).is_err() {
            break;
        }
        sent = exchange;
    }
    assert!(sent < 190_000, "it has taken {sent} calls");
    for exchange in 1..=sent {
        assert_eq!(raw.reply().exchange, exchange);
    }
}

/// A scan of a whole table, without partitions.
fn scans(exchange: u64, rows: i64) -> Vec<u8> {
    let (mut partition, mut wanted) =
        (ColumnBuilder::new(&DataType::Blob), ColumnBuilder::new(&"INTEGER[]".parse().unwrap()));
    partition.null();
    wanted.null();
    let header = Header { entry: Entry::Scan as u32, ..call(NUMBERS, exchange, 1) };
    frame(header, &vec![partition, wanted, integers([rows])])
}

#[test]
fn short_answers_of_many_lanes_come_in_order_also_to_a_late_reader() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    let (scanning, calling, each) = (1..=2, 3..=20, 50);
    // These are some megabytes in pieces of a kilobyte: more than the server lets wait.
    let rows = 300_000;
    for lane in scanning.clone() {
        raw.message(lane, &scans(1, rows));
    }
    let (mut sender, lanes) = (raw.stream.try_clone().unwrap(), calling.clone());
    // The server reads no calls while so many answers wait, and then the socket may have no room for these calls. So a
    // thread of their own sends them.
    let sending = thread::spawn(move || {
        for (exchange, lane) in
            (1..=each).flat_map(|exchange| lanes.clone().map(move |lane| (exchange, lane)))
        {
            let message = calls(DOUBLE, exchange, 1);
            sender.write_all(&[&prefix(lane, message.len())[..], &message].concat()).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(300));
    let mut got = [0; 21];
    let mut open = scanning.clone().count() + calling.clone().count();
    while open > 0 {
        let (lane, bytes) = raw.next().expect("a reply");
        if lane == CONTROL {
            continue;
        }
        let header = crosslane::batch::header(&bytes).unwrap();
        assert_eq!(header.kind, BATCH);
        let got = &mut got[lane as usize];
        if scanning.contains(&lane) {
            if header.rows > 0 {
                let row_type = "STRUCT(i BIGINT)".parse().unwrap();
                let column = crosslane::batch::column(&bytes, &row_type).unwrap();
                assert_eq!(column.children[0].values::<i64>().unwrap()[0], *got);
            }
            *got += i64::from(header.rows);
            open -= usize::from(header.flags & LAST != 0);
        } else {
            *got += 1;
            assert_eq!(header.exchange, *got as u64);
            open -= usize::from(header.exchange == each);
        }
    }
    sending.join().unwrap();
    assert!(scanning.into_iter().all(|lane| got[lane as usize] == rows));
}

/// A server that lets no more bytes wait than the largest message has. Slow clients may be slow for this
/// long.
fn server_with_little_room(slow: Duration) -> (Server, Address) {
    let mut options = options(&[unix()]);
    (options.waiting, options.slow) = (options.largest, slow);
    let server = start(options).unwrap();
    let address = server.addresses()[0].clone();
    (server, address)
}

#[test]
fn a_message_that_comes_too_slowly_makes_room_for_another() {
    let (server, address) = &server_with_little_room(Duration::from_millis(200));
    let client = Client::new(address);
    let rows = 1_200_000;
    let message = frame(call(DOUBLE, 1, rows), &integers(0..i64::from(rows)));
    let (mut slow, mut other) = (Raw::new(address), Raw::new(address));
    slow.send(&prefix(1, message.len()));
    slow.send(&message[..message.len() / 2]);
    thread::scope(|scope| {
        // The server has no room for this message as long as the rest of the first message may come.
        scope.spawn(|| {
            other.message(1, &message);
            assert_eq!(other.reply().rows, rows);
        });
        assert!(slow.refusal().contains("too slowly"));
    });
    goes_on(&client);
    assert_eq!(server.load().0, 2);
}

#[test]
fn the_connection_with_the_most_unread_answers_is_ended() {
    let (server, address) = &server_with_little_room(LONG);
    let client = Client::new(address);
    let mut waiting: Vec<Raw> = (0..3).map(|_| Raw::new(address)).collect();
    let sizes = [7 << 20, 8 << 20, 6 << 20];
    for (raw, size) in waiting.iter_mut().zip(sizes) {
        raw.message(1, &calls(LARGE, 1, size));
    }
    eventually("one is ended", || server.load().0 == 3);
    goes_on(&client);
    // The others may still read their replies.
    for (raw, size) in waiting.iter_mut().zip(sizes) {
        let mut replies = std::iter::from_fn(|| raw.next()).filter(|(lane, _)| *lane != CONTROL);
        let whole = replies.next().is_some_and(|(_, reply)| reply.len() > size as usize);
        assert_eq!(whole, size != 8 << 20);
    }
}

#[test]
fn a_stream_may_end_while_more_of_it_is_on_its_way() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    let part = |exchange, flags| Header { flags, entry: Entry::Iterate as u32, ..call(ENDS, exchange, 0) };
    for exchange in 1..4 {
        raw.message(1, &frame(part(exchange, 0), &()));
        let reply = raw.reply();
        assert_eq!((reply.kind, reply.exchange, reply.flags), (FAILURE, exchange, LAST));
        // The client did not know of the end when it sent this batch.
        raw.message(1, &frame(Header { rows: 1, ..part(exchange, 0) }, &integers([1])));
        if exchange == 2 {
            raw.message(1, &frame(part(exchange, LAST), &()));
        }
    }
    raw.message(1, &calls(DOUBLE, 4, 21));
    assert_eq!(raw.reply().exchange, 4);
    raw.message(1, &frame(Header { flags: 0, ..part(4, 0) }, &()));
    assert!(raw.refusal().contains("exchange 4"), "a batch of what has had its last");
}

#[test]
fn many_connections_at_once_are_no_more_than_there_may_be() {
    let mut options = options(&[unix()]);
    options.connections = 3;
    let server = start(options).unwrap();
    let mut raws: Vec<_> = (0..60).map(|_| Raw::connect(&server.addresses()[0])).collect();
    assert!(server.load().0 <= 3);
    let hello = wire::control(&hello(None, false)).unwrap();
    raws.iter_mut().for_each(|raw| raw.send(&hello));
    let welcome = raws.iter_mut().filter_map(Raw::told).filter(|told| matches!(told, Tell::Welcome { .. }));
    assert_eq!(welcome.count(), 3);
}

#[test]
fn a_long_queue_of_cancelled_calls_holds_no_worker() {
    let _crowd = crowd();
    let mut options = options(&[unix()]);
    options.workers = 1;
    options.connections = 500;
    let server = start(options).unwrap();
    let address = &server.addresses()[0];
    let mut other = Raw::new(address);
    other.message(1, &calls(WAIT, 1, 60_000));
    let cancel = frame(Header { kind: CANCEL, ..call(0, 1, 0) }, &());
    let mut raws: Vec<_> = (0..300).map(|_| Raw::new(address)).collect();
    for raw in &mut raws {
        for lane in 0..64 {
            raw.message(lane, &calls(DOUBLE, 1, 1));
            raw.message(lane, &cancel);
        }
        (0..64).for_each(|_| assert_eq!(raw.reply().exchange, 1));
    }
    assert_eq!(server.load().1, 300 * 64);
    // The worker of the first call ends, and the server starts another one.
    drop(other);
    raws[7].message(7, &calls(DOUBLE, 2, 1));
    assert_eq!(raws[7].reply().exchange, 2);
}

#[test]
fn a_client_that_closes_lanes_with_calls_gets_no_more_workers() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let (server, guests) = start_counted(options).unwrap();
    let mut raw = Raw::new(&server.addresses()[0]);
    let begun = Instant::now();
    for lane in 0..200 {
        raw.message(lane, &calls(WAIT, 1, 4_000));
        // The call is with a worker, or in the queue.
        thread::sleep(Duration::from_millis(5));
        raw.send(&wire::control(&Ask::Close { lane }).unwrap());
    }
    let most = 16 * (2 + begun.elapsed().as_secs() as usize / 2);
    assert!(guests.load(Relaxed) <= most, "{} instead of {most}", guests.load(Relaxed));
    raw.message(200, &calls(DOUBLE, 1, 1));
    assert_eq!(raw.reply().exchange, 1);
    drop(raw);
    eventually("its connection is gone", || server.load() == (0, 0));
}

#[test]
fn a_soak_of_all_at_once() {
    let mut options = options(&[unix()]);
    options.workers = 3;
    let (server, guests) = start_counted(options).unwrap();
    let address = &server.addresses()[0];
    let until = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                let client = Client::new(address);
                let mut value = number;
                while Instant::now() < until {
                    value += 3;
                    assert_eq!(client.call(DOUBLE, &[value]).unwrap(), [value * 2]);
                    if value % 50 == 0 {
                        assert!(client.call(END, &[1]).is_err());
                        assert_eq!(client.scan(1 << 40, 300).unwrap()[..3], [0, 1, 2]);
                    }
                }
            });
        }
        scope.spawn(move || {
            let mut round = 0;
            while Instant::now() < until {
                round += 1;
                let mut raw = Raw::new(address);
                raw.message(round % 7, &calls(WAIT, 1, i64::from(round % 4)));
                raw.message(8, &calls(if round % 3 == 0 { 999 } else { LARGE }, 1, 100_000));
                if round % 2 == 0 {
                    drop(raw.next());
                }
            }
        });
    });
    eventually("all is over", || server.load() == (0, 0));
    assert!(Server::shut_down(server, Duration::from_secs(10)));
    eventually("no guest is left", || guests.load(Relaxed) == 0);
}

#[test]
fn answers_that_are_read_end_no_connection_however_little_room_there_is() {
    let (server, address) = &server_with_little_room(LONG);
    let most = options(&[]).largest;
    let (mut full, mut light) = (Raw::new(address), Raw::new(address));
    // The worker has two calls, and the third one waits in the server. There is also room for a small
    // call, but not for its answer.
    (1..=2).for_each(|exchange| full.message(1, &calls(WAIT, exchange, 60_000)));
    let small = calls(DOUBLE, 1, 1).len();
    let waiting = |rows: u32| frame(call(WAIT, 3, rows), &integers(0..i64::from(rows)));
    let rows = (most - 256 - small - waiting(0).len()) / 8;
    let message =
        (0..100).map(|less| waiting(rows as u32 - less)).find(|message| message.len() + 256 + small <= most);
    let message = message.expect("one that fits");
    assert!(message.len() + 2 * 256 + 2 * small > most);
    full.message(1, &message);
    for exchange in 1..=300 {
        light.message(1, &calls(DOUBLE, exchange, 1));
        assert_eq!(light.reply().exchange, exchange);
    }
    assert_eq!(server.load().0, 2);
}
