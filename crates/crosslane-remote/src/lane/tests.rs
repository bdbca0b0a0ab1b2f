//! Tests of lanes whose server splits messages, sends wrong ones, or closes the connection.

use super::*;
use crate::wire;
use crosslane::batch::BATCH;
use crosslane::lane::{Patience, wait_any};
use crosslane::{ColumnBuilder, DataType};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

const LARGEST: usize = 8 << 20;

/// A lane, and the server's end of its connection.
fn lane() -> (RemoteLane, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let options = LaneOptions { largest: LARGEST, stuck: Stuck::default() };
    let from = "the server: ".to_owned();
    (RemoteLane::new(1, from, Stream::of(ours), LARGEST, options), theirs)
}

fn texts(values: &[&str]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::Varchar);
    values.iter().for_each(|value| column.bytes(value.as_bytes()).unwrap());
    column
}

fn submit(lane: &mut RemoteLane, text: &str) -> Option<u64> {
    lane.submit(Target::call(0), 1, &texts(&[text])).unwrap()
}

/// A reply to an exchange, with its prefix.
fn reply(exchange: u64, text: &str) -> Vec<u8> {
    let mut plan = Plan::default();
    let column = texts(&[text]);
    column.plan(&mut plan);
    let mut frame = vec![0; plan.size()];
    let header = Header { kind: BATCH, flags: LAST, exchange, rows: 1, entry: 1, ..Header::default() };
    column.write(&mut plan.start(&mut frame, header));
    [&prefix(LANE, frame.len())[..], &frame].concat()
}

/// Waits for the next reply, or for the end of the lane.
fn next(lane: &mut RemoteLane) -> Result<Header, LaneError> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(header) = lane.try_collect()? {
            return Ok(header);
        }
        assert!(Instant::now() < until, "no reply came");
        wait_any(&[&mut *lane], Patience::Sleep, Duration::from_secs(1));
    }
}

fn text(lane: &RemoteLane) -> String {
    let column = batch::column(lane.frame(), &DataType::Varchar).unwrap();
    String::from_utf8(column.bytes(0).to_vec()).unwrap()
}

#[test]
fn replies_are_put_together_however_they_are_torn() {
    let sent = ["short".to_owned(), "x".repeat(PIECE * 3 + 5), String::new()];
    let told =
        wire::control(&Tell::Progress { lane: 0, exchange: 2, row: 7, rest: 0, held: Some(3) }).unwrap();
    let replies = (1..).zip(&sent).map(|(exchange, text)| reply(exchange, text));
    let bytes = [told, replies.collect::<Vec<_>>().concat()].concat();
    for piece in [1, 3, 7, 8, 100, PIECE - 1, PIECE, bytes.len()] {
        let (mut lane, mut server) = lane();
        sent.iter().for_each(|_| assert!(submit(&mut lane, "?").is_some()));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                bytes.chunks(piece).for_each(|bytes| server.write_all(bytes).unwrap());
            });
            for (exchange, expected) in (1..).zip(&sent) {
                assert_eq!(next(&mut lane).unwrap().exchange, exchange);
                assert_eq!(text(&lane), *expected, "in pieces of {piece}");
            }
            writer.join().unwrap();
        });
        assert_eq!(lane.progress(), (2, 7));
        assert!(!lane.has_news() && lane.lives() && lane.in_flight() == 0);
    }
}

#[test]
fn messages_that_are_too_large_or_cancelled_are_dropped_and_the_next_is_read() {
    let (mut lane, mut server) = lane();
    submit(&mut lane, "?");
    submit(&mut lane, "?");
    let writer = thread::spawn(move || {
        server.write_all(&reply(1, &"x".repeat(LARGEST))).unwrap();
        server.write_all(&reply(2, "next")).unwrap();
        server
    });
    let error = next(&mut lane).unwrap_err();
    assert!(matches!(&error, LaneError::TooLarge(what) if what.contains("largest_batch")), "{error:?}");
    next(&mut lane).unwrap();
    assert_eq!(text(&lane), "next");
    let mut server = writer.join().unwrap();
    submit(&mut lane, "?");
    lane.cancel().unwrap();
    server.write_all(&reply(3, &"x".repeat(LARGEST / 100))).unwrap();
    while lane.in_flight() > 0 {
        wait_any(&[&mut lane], Patience::Sleep, Duration::from_secs(1));
        assert!(lane.try_collect().unwrap().is_none());
    }
    submit(&mut lane, "?");
    server.write_all(&reply(4, "again")).unwrap();
    next(&mut lane).unwrap();
    assert_eq!(text(&lane), "again");
}

#[test]
fn a_thread_sends_the_bytes_for_which_the_socket_has_no_room() {
    let (mut lane, mut server) = lane();
    let long = "x".repeat(LARGEST / 2);
    assert_eq!(submit(&mut lane, &long), Some(1));
    assert_eq!(submit(&mut lane, "?"), None, "one that is being sent is enough");
    let cancelled = lane.cancel();
    cancelled.unwrap();
    let mut bytes = [0; PREFIX];
    let mut exchanges = Vec::new();
    for kind in [BATCH, CANCEL] {
        server.read_exact(&mut bytes).unwrap();
        let (length, lane) = read_prefix(bytes);
        assert_eq!(lane, LANE);
        let mut message = Aligned::default();
        message.resize(length).unwrap();
        server.read_exact(message.bytes_mut()).unwrap();
        let header = batch::header(message.bytes()).unwrap();
        assert_eq!(header.kind, kind);
        exchanges.push(header.exchange);
    }
    assert_eq!(exchanges, [1, 1]);
    server.write_all(&reply(1, "late")).unwrap();
    while lane.in_flight() > 0 {
        wait_any(&[&mut lane], Patience::Sleep, Duration::from_secs(1));
        assert!(lane.try_collect().unwrap().is_none());
    }
    let until = Instant::now() + Duration::from_secs(30);
    while lane.outbox.rest().has_sender {
        assert!(Instant::now() < until, "the thread goes on");
        thread::yield_now();
    }
    assert_eq!(submit(&mut lane, "?"), Some(2));
}

#[test]
fn a_server_that_lies_or_goes_ends_the_lane_with_a_reason() {
    let raw = |length: usize, lane: u32| prefix(lane, length).to_vec();
    let said = |text: &str| [&prefix(CONTROL, text.len())[..], text.as_bytes()].concat();
    let tell = |told: Tell| wire::control(&told).unwrap();
    let mut torn = reply(1, "torn");
    torn.truncate(20);
    let mut garbled = reply(1, "garbled");
    garbled[PREFIX] ^= 0xf0;
    let cases: [(&str, Vec<u8>, &str); 11] = [
        ("nothing", Vec::new(), CLOSED),
        ("half a message", torn, CLOSED),
        ("another lane", raw(100, 7), "no message of a lane"),
        ("less than a header", raw(3, LANE), "half a header"),
        ("too many words", raw(LONGEST_WORDS + 1, CONTROL), "no message of a lane"),
        ("garbled words", said("{"), "cannot be read"),
        (
            "a second greeting",
            tell(Tell::Welcome {
                protocol: 1,
                server: String::new(),
                functions: Vec::new(),
                text: None,
                largest: 1,
                reloads: false,
                contexts: false,
            }),
            "greeted twice",
        ),
        ("its end", tell(Tell::Ended { lane: 0, message: "the worker died".into() }), "the worker died"),
        ("a refusal", tell(Tell::Refused { message: "go away".into() }), "go away"),
        ("a reply out of turn", reply(2, "?"), "exchange 2"),
        ("a message of no kind", garbled, "kind"),
    ];
    for (name, bytes, expected) in cases {
        let (mut lane, mut server) = lane();
        submit(&mut lane, "?");
        server.write_all(&bytes).unwrap();
        drop(server);
        let error = next(&mut lane).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn all_exchanges_may_have_begun_unless_the_server_reports_the_loss() {
    let progress =
        wire::control(&Tell::Progress { lane: 0, exchange: 1, row: 3, rest: 0, held: None }).unwrap();
    let ended = wire::control(&Tell::Ended { lane: 0, message: "its worker died".into() }).unwrap();
    let refused = wire::control(&Tell::Refused { message: "it is shut down".into() }).unwrap();
    for (told, may) in [
        (vec![&progress, &ended], [true, false, false]),
        (vec![&ended], [false, false, false]),
        (vec![&progress], [true, true, true]),
        (vec![&progress, &refused], [true, true, true]),
        (vec![], [true, true, true]),
    ] {
        let (mut lane, mut server) = lane();
        (0..3).for_each(|_| assert!(submit(&mut lane, "?").is_some()));
        told.iter().for_each(|bytes| server.write_all(bytes).unwrap());
        drop(server);
        next(&mut lane).unwrap_err();
        assert_eq!([1, 2, 3].map(|exchange| lane.may_have_begun(exchange)), may, "{told:?}");
    }
}

#[test]
fn a_failed_send_is_an_error_at_once_and_earlier_answers_can_be_read() {
    let (mut lane, mut server) = lane();
    submit(&mut lane, "?");
    server.write_all(&reply(1, "answered")).unwrap();
    drop(server);
    let sent = lane.submit(Target::call(0), 1, &texts(&["?"]));
    assert!(sent.unwrap_err().to_string().contains(CLOSED));
    next(&mut lane).unwrap();
    assert_eq!((text(&lane).as_str(), lane.in_flight()), ("answered", 0));
    assert!(next(&mut lane).is_err());
}

#[test]
fn an_idle_lane_whose_server_goes_is_known_to_have_ended() {
    let (mut lane, mut server) = lane();
    assert!(lane.check().is_ok());
    server.write_all(&wire::control(&Tell::Refused { message: "closing".into() }).unwrap()).unwrap();
    drop(server);
    assert!(!lane.lives());
    assert!(lane.check().unwrap_err().to_string().contains("closing"));
    assert!(lane.has_ended());
}

#[test]
fn nothing_is_sent_to_a_server_that_has_closed_the_connection() {
    let (mut lane, mut server) = lane();
    server.write_all(&wire::control(&Tell::Refused { message: "closing".into() }).unwrap()).unwrap();
    // The server's socket could still receive data.
    server.shutdown(std::net::Shutdown::Write).unwrap();
    let sent = lane.submit(Target::call(0), 1, &texts(&["?"]));
    assert!(sent.unwrap_err().to_string().contains("closing"));
    drop(lane);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_lane_that_is_dropped_closes_its_connection_also_with_much_to_send() {
    for text in [String::new(), "x".repeat(LARGEST / 2)] {
        let (mut lane, mut server) = lane();
        submit(&mut lane, &text);
        drop(lane);
        server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        let _ = server.read_to_end(&mut rest);
        assert!(rest.len() <= text.len() + 1000);
    }
}
