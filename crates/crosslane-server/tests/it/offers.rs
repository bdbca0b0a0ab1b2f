//! A server that offers other functions while it runs, and clients that do not learn of it, or pretend not
//! to.

use crate::common::raw::{Raw, call, frame, hello};
use crate::common::{Client, DOUBLE, eventually, integers, options, served, unix};
use crosslane_server::server::ServedLibrary;
use crosslane_server::wire::{Tell, control};
use crosslane_server::{Address, Options, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A library with a text of this name, and the number of its guests.
fn version(text: &str) -> (ServedLibrary, Arc<AtomicUsize>) {
    let (served, guests) = served("test").unwrap();
    (ServedLibrary { text: Some(text.into()), ..served }, guests)
}

fn serve(text: &str) -> (Server, Address, Arc<AtomicUsize>) {
    let (address, (first, guests)) = (unix(), version(text));
    let options = Options { reloads: true, ..options(std::slice::from_ref(&address)) };
    (Server::start(options, vec![first]).unwrap(), address, guests)
}

/// A client, and the text of the functions that it got.
fn welcomed(address: &Address, known: Option<&String>, watches: bool) -> (Raw, String) {
    let mut raw = Raw::connect(address);
    raw.send(&control(&hello(known.cloned(), watches)).unwrap());
    match raw.told() {
        Some(Tell::Welcome { text: Some(text), reloads: true, .. }) => (raw, text),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn goes_on(raw: &mut Raw, exchange: u64) {
    raw.message(0, &frame(call(DOUBLE, exchange, 1), &integers([21])));
    assert_eq!(raw.reply().exchange, exchange);
}

#[track_caller]
fn is_refused(raw: &mut Raw) {
    assert!(
        matches!(raw.told(), Some(Tell::Refused { message }) if message.contains("loaded its files again"))
    );
    assert_eq!(raw.next(), None);
}

#[test]
fn a_connection_keeps_its_functions_and_new_ones_may_ask_for_them() {
    let (server, address, guests) = serve("one");
    let (mut old, one) = welcomed(&address, None, false);
    goes_on(&mut old, 1);
    let (mut watch, _) = welcomed(&address, None, true);
    server.offer(vec![version("two").0]).unwrap();
    is_refused(&mut watch);
    goes_on(&mut old, 2);
    let (mut new, two) = welcomed(&address, None, false);
    assert_ne!(one, two);
    goes_on(&mut new, 1);
    // A query that began before needs one more lane.
    let (mut again, known) = welcomed(&address, Some(&one), false);
    assert_eq!(known, one);
    goes_on(&mut again, 1);
    let (mut late, known) = welcomed(&address, Some(&two), true);
    assert_eq!(known, two);
    server.end_unused();
    assert_eq!(welcomed(&address, Some(&one), false).1, one);
    drop((old, again));
    eventually("workers of old functions go on without a client", || {
        server.end_unused();
        guests.load(Relaxed) == 0
    });
    assert_eq!(welcomed(&address, Some(&one), false).1, two);
    server.offer(vec![version("three").0]).unwrap();
    is_refused(&mut late);
    goes_on(&mut new, 2);
}

#[test]
fn a_client_cannot_keep_any_number_of_old_functions() {
    let (server, address, guests) = serve("0");
    let (mut oldest, zero) = welcomed(&address, None, false);
    goes_on(&mut oldest, 1);
    let mut kept = Vec::new();
    for number in 1..=4 {
        server.offer(vec![version(&number.to_string()).0]).unwrap();
        let (mut raw, _) = welcomed(&address, None, false);
        goes_on(&mut raw, 1);
        kept.push(raw);
        goes_on(&mut oldest, 1 + number);
    }
    server.offer(vec![version("5").0]).unwrap();
    is_refused(&mut oldest);
    // A client that has read the refusal cannot ask for these functions, though others may have them.
    assert_ne!(welcomed(&address, Some(&zero), false).1, zero);
    kept.iter_mut().for_each(|raw| goes_on(raw, 2));
    eventually("workers of very old functions go on", || {
        server.end_unused();
        guests.load(Relaxed) == 0
    });
}

#[test]
fn functions_that_cannot_be_offered_change_nothing() {
    let (server, address, _) = serve("one");
    let client = Client::new(&address);
    let error = server.offer(vec![version("two").0, version("three").0]).unwrap_err();
    assert!(error.to_string().contains("have the same name"), "{error}");
    assert_eq!(client.call(DOUBLE, &[21]).unwrap(), [42]);
    assert!(server.shut_down(Duration::from_secs(30)));
}
