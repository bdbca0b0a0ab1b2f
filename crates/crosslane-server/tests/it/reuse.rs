//! Results that the server keeps for all clients.

use crate::common::raw::{Raw, call, frame};
use crate::common::{
    BAD, CALLED, Client, DOUBLE, KEPT, LENGTHS, LONG, RARELY_KEPT, TEXTS, WORSE, eventually, integers,
    options, served, server, unix,
};
use crosslane::batch::{self, BATCH, CANCEL, FAILURE, Header, LAST};
use crosslane::{ColumnBuilder, DataType, Store};
use crosslane_server::wire::Tell;
use crosslane_server::{Address, Server};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

/// How often a function that keeps results was called with a value. Each test has values of its own.
fn called(value: i64) -> usize {
    CALLED.lock().unwrap().iter().filter(|called| **called == value).count()
}

/// The next answer of a lane: its header, and its integers.
fn answer(raw: &mut Raw) -> (Header, Vec<Option<i64>>) {
    loop {
        let (lane, frame) = raw.next().expect("an answer");
        if lane == crosslane_server::wire::CONTROL {
            continue;
        }
        let header = batch::header(&frame).unwrap();
        if header.kind != BATCH || header.nodes == 0 {
            return (header, Vec::new());
        }
        let frame = batch::Frame::of(&frame);
        let column = batch::column(frame.bytes(), &DataType::BigInt).unwrap();
        let value = |row| column.is_valid(row).then(|| column.value(row));
        return (header, (0..column.rows).map(value).collect());
    }
}

fn doubled(values: &[i64]) -> Vec<Option<i64>> {
    values.iter().map(|value| Some(2 * value)).collect()
}

/// Has a function called with a batch, and returns the results.
fn ask(raw: &mut Raw, exchange: u64, values: &[i64]) -> Vec<Option<i64>> {
    let header = call(KEPT, exchange, values.len() as u32);
    raw.message(0, &frame(header, &integers(values.iter().copied())));
    let (header, results) = answer(raw);
    assert_eq!((header.kind, header.flags, header.exchange), (BATCH, LAST, exchange));
    results
}

#[test]
fn clients_share_results_and_only_unknown_rows_are_called() {
    let (server, address) = server();
    let (mut first, mut second) = (Raw::new(&address), Raw::new(&address));
    assert_eq!(ask(&mut first, 1, &[11, 12, 11]), doubled(&[11, 12, 11]));
    assert_eq!(ask(&mut second, 1, &[12, 13, 11, 13]), doubled(&[12, 13, 11, 13]));
    assert_eq!(ask(&mut second, 2, &[13, 12]), doubled(&[13, 12]));
    assert_eq!([11, 12, 13].map(called), [1, 1, 1]);
    assert_eq!(server.reused(), [("kept".to_owned(), 3, 6)]);
    // An engine gets them, too.
    let engine = Client::new(&address);
    assert_eq!(engine.call(KEPT, &[11, 12, 13]).unwrap(), [22, 24, 26]);
    assert_eq!([11, 12, 13].map(called), [1, 1, 1]);
}

#[test]
fn batches_of_known_and_unknown_rows_are_answered_in_order() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    ask(&mut raw, 1, &[21]);
    let batches: [&[i64]; 6] = [&[21], &[22], &[21, 23], &[21], &[22, 21], &[24]];
    for (values, exchange) in batches.iter().zip(2..) {
        let header = call(KEPT, exchange, values.len() as u32);
        raw.message(0, &frame(header, &integers(values.iter().copied())));
    }
    for (values, exchange) in batches.iter().zip(2..) {
        let (header, results) = answer(&mut raw);
        assert_eq!((header.exchange, results), (exchange, doubled(values)));
    }
    // The worker has no lane any more.
    raw.message(1, &frame(call(DOUBLE, 1, 1), &integers([4])));
    assert_eq!(raw.reply().exchange, 1);
}

#[test]
fn a_failure_names_the_row_of_the_client() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    ask(&mut raw, 1, &[31, 32]);
    raw.message(0, &frame(call(KEPT, 2, 6), &integers([31, 32, 31, 33, BAD, 33])));
    let (header, _) = answer(&mut raw);
    assert_eq!((header.kind, header.exchange, header.row), (FAILURE, 2, 4));
    // Failures are not kept, nor is what their batch has not given.
    assert_eq!(ask(&mut raw, 3, &[33, 31]), doubled(&[33, 31]));
    assert_eq!([31, 32, 33].map(called), [1, 1, 2]);
}

#[test]
fn known_rows_do_not_wait_for_a_rate() {
    let (_server, address) = server();
    let (first, second) = (Client::new(&address), Client::new(&address));
    assert_eq!(first.call(RARELY_KEPT, &[51]).unwrap(), [102]);
    // No other call may begin for an hour.
    for _ in 0..3 {
        assert_eq!(second.call(RARELY_KEPT, &[51, 51]).unwrap(), [102, 102]);
    }
    assert_eq!(called(51), 1);
}

#[test]
fn what_a_lying_worker_says_is_not_kept() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    let count = called(BAD);
    for exchange in 1..=2 {
        raw.message(0, &frame(call(TEXTS, exchange, 2), &integers([BAD, 61])));
        let header = raw.reply();
        // The client finds out what is wrong with the text.
        assert_eq!((header.kind, header.exchange, header.rows), (BATCH, exchange, 2));
    }
    assert!(called(BAD) >= count + 2);
    assert_eq!(called(61), 1);
    raw.message(0, &frame(call(TEXTS, 3, 2), &integers([WORSE, 62])));
    let ended = loop {
        match raw.told() {
            Some(Tell::Progress { .. }) => {}
            other => break other,
        }
    };
    let why = "a reply of 1 rows to 2";
    assert!(matches!(&ended, Some(Tell::Ended { message, .. }) if message.contains(why)), "{ended:?}");
    raw.message(1, &frame(call(TEXTS, 1, 1), &integers([62])));
    assert_eq!(raw.reply().rows, 1);
    assert_eq!(called(62), 2);
}

#[test]
fn what_a_lying_client_says_is_no_key() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    let mut texts = ColumnBuilder::new(&DataType::Varchar);
    texts.bytes(&[0xFF, 0xFE]).unwrap();
    raw.message(0, &frame(call(LENGTHS, 1, 1), &texts));
    assert!(raw.refusal().contains("lengths: a client sent"));
    let mut raw = Raw::new(&address);
    // More rows than the message has.
    raw.message(0, &frame(call(KEPT, 1, u32::MAX), &integers([1])));
    assert!(!raw.refusal().is_empty());
}

#[test]
fn short_arguments_do_not_make_an_answer_without_end() {
    let (_server, address) = server();
    let mut raw = Raw::new(&address);
    raw.message(0, &frame(call(TEXTS, 1, 1), &integers([LONG])));
    assert_eq!(raw.reply().rows, 1);
    // The answer would have 20 MB, where a message has 16 MiB at most.
    raw.message(0, &frame(call(TEXTS, 2, 1000), &integers([LONG; 1000])));
    let header = raw.reply();
    assert_eq!((header.kind, header.exchange), (FAILURE, 2));
    raw.message(0, &frame(call(TEXTS, 3, 500), &integers([LONG; 500])));
    assert_eq!(raw.reply().rows, 500);
    assert_eq!(called(LONG), 1);
}

/// A batch of a result, and when it was made.
type Stored = (Vec<u8>, u64);

/// A store whose uses wait until it is opened.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    /// Whether results can be found at all times.
    finds: bool,
    opened: Condvar,
    results: Mutex<HashMap<Vec<u8>, Stored>>,
    /// How many uses have begun.
    uses: Mutex<usize>,
}

impl Gate {
    fn set(&self, is_open: bool) {
        *self.is_open.lock().unwrap() = is_open;
        self.opened.notify_all();
    }

    fn pass(&self, passes: bool) {
        *self.uses.lock().unwrap() += 1;
        let closed = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(closed, |is_open| !*is_open && !passes).unwrap());
    }

    fn uses(&self) -> usize {
        *self.uses.lock().unwrap()
    }
}

impl Store for Gate {
    fn find(&self, _types: &str, keys: &[&[u8]]) -> Vec<Option<Stored>> {
        self.pass(self.finds);
        let results = self.results.lock().unwrap();
        keys.iter().map(|key| results.get(*key).cloned()).collect()
    }

    fn keep(&self, _types: &str, kept: &[(&[u8], &[u8])], made: u64) {
        self.pass(false);
        let mut results = self.results.lock().unwrap();
        for (key, result) in kept {
            results.insert(key.to_vec(), (result.to_vec(), made));
        }
    }
}

/// A server whose function `kept` has a store.
fn with_store(gate: &Arc<Gate>) -> (Server, Address) {
    let (address, (library, _)) = (unix(), served("test").unwrap());
    let store = Arc::clone(gate) as Arc<dyn Store>;
    library.library.functions[KEPT as usize].keep_in(|| Ok::<_, ()>(Some(store))).unwrap();
    (Server::start(options(std::slice::from_ref(&address)), vec![library]).unwrap(), address)
}

#[test]
fn a_store_outlives_the_server() {
    let gate = Arc::new(Gate { is_open: Mutex::new(true), ..Gate::default() });
    for values in [&[71, 72][..], &[72, 73, 71]] {
        let (_server, address) = with_store(&gate);
        assert_eq!(ask(&mut Raw::new(&address), 1, values), doubled(values));
    }
    assert_eq!([71, 72, 73].map(called), [1, 1, 1]);
}

#[test]
fn nobody_waits_for_a_slow_store_but_its_lane() {
    let gate = Arc::new(Gate::default());
    let (server, address) = with_store(&gate);
    let mut raw = Raw::new(&address);
    let waits = |raw: &mut Raw, lane| raw.message(lane, &frame(call(KEPT, 1, 1), &integers([81])));
    (0..40).for_each(|lane| waits(&mut raw, lane));
    eventually("the store is not asked", || gate.uses() > 0);
    // Other functions go on, on this connection and on others, also if workers have to be started.
    raw.message(50, &frame(call(DOUBLE, 1, 1), &integers([4])));
    assert_eq!(raw.reply().exchange, 1);
    assert_eq!(Client::new(&address).call(DOUBLE, &[4]).unwrap(), [8]);
    // A cancelled batch is answered at once. What is found for it later is forgotten.
    let cancel = Header { kind: CANCEL, flags: LAST, exchange: 1, ..Header::default() };
    raw.message(0, bytemuck::bytes_of(&cancel));
    let (header, _) = answer(&mut raw);
    assert_eq!((header.exchange, header.rows), (1, 0));
    // A client may leave meanwhile.
    let mut other = Raw::new(&address);
    waits(&mut other, 0);
    drop(other);
    assert_eq!((called(81), gate.uses()), (0, 1));
    gate.set(true);
    for _ in 1..40 {
        assert_eq!(answer(&mut raw).1, doubled(&[81]));
    }
    eventually("something is left", || server.load().1 == 0);
}

#[test]
fn results_of_a_client_that_leaves_are_kept() {
    let gate = Arc::new(Gate { finds: true, ..Gate::default() });
    let (server, address) = with_store(&gate);
    let mut raw = Raw::new(&address);
    raw.message(0, &frame(call(KEPT, 1, 1), &integers([91])));
    eventually("the result is not kept", || gate.uses() == 2);
    drop(raw);
    eventually("the client stays", || server.load().0 == 0);
    gate.set(true);
    assert_eq!(ask(&mut Raw::new(&address), 1, &[91]), doubled(&[91]));
    assert_eq!(called(91), 1);
}

#[test]
fn a_lane_takes_no_reply_while_results_are_kept() {
    let gate = Arc::new(Gate { finds: true, ..Gate::default() });
    let (_server, address) = with_store(&gate);
    let mut raw = Raw::new(&address);
    for (exchange, value) in (1..=4).zip(101..) {
        raw.message(0, &frame(call(KEPT, exchange, 1), &integers([value])));
    }
    // The worker has two exchanges at once, and the second one is answered after the first one.
    eventually("the worker works on", || called(102) == 1);
    assert_eq!(called(103), 0);
    let cancel = Header { kind: CANCEL, flags: LAST, exchange: 4, ..Header::default() };
    raw.message(0, bytemuck::bytes_of(&cancel));
    raw.message(0, &frame(call(DOUBLE, 5, 1), &integers([4])));
    gate.set(true);
    let answers: Vec<_> = (0..5).map(|_| answer(&mut raw).0).collect();
    let exchanges: Vec<_> = answers.iter().map(|header| header.exchange).collect();
    assert_eq!(exchanges, [1, 2, 3, 4, 5]);
    assert_eq!((answers[0].rows, answers[3].rows, answers[4].rows), (1, 0, 1));
}
