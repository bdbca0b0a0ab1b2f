//! What a server records of its clients' calls, and who gets it over HTTP.

use crate::common::{Client, DOUBLE, END, FAIL, WAIT, eventually, options, traced, unix};
use crate::http::ask;
use crosslane::trace::{Event, EventKind, Subject, Trace};
use crosslane_server::http::Access;
use crosslane_server::{Http, HttpRuntime, Server};
use std::sync::Arc;
use std::thread;

/// A server with one worker, and its trace.
fn server() -> (Server, Arc<Trace>) {
    let trace = Arc::default();
    let (served, _) = traced("/a/test", &trace).unwrap();
    let mut options = options(&[unix()]);
    options.workers = 1;
    (Server::start(options, vec![served]).unwrap(), trace)
}

fn of(trace: &Trace, kind: EventKind) -> Vec<Event<Subject>> {
    trace.events().into_iter().filter(|event| event.kind == kind).collect()
}

/// The names of functions and numbers of rows.
fn rows(events: &[Event<Subject>]) -> Vec<(&str, u32)> {
    events.iter().map(|event| (event.subject.function.as_deref().unwrap_or_default(), event.rows)).collect()
}

#[test]
fn calls_are_recorded_while_a_trace_is_on() {
    let (server, trace) = server();
    let client = Client::new(&server.addresses()[0]);
    client.call(DOUBLE, &[1]).unwrap();
    assert!(trace.events().is_empty());
    assert!(trace.start());
    client.call(DOUBLE, &[7, 8]).unwrap();
    client.scan(1000, usize::MAX).unwrap();
    client.call(FAIL, &[1]).unwrap_err();
    client.call(END, &[1]).unwrap_err();
    trace.stop();
    client.call(DOUBLE, &[1]).unwrap();

    let functions = of(&trace, EventKind::Function);
    let scanned: u32 =
        rows(&functions).iter().filter(|(name, _)| *name == "numbers").map(|(_, rows)| rows).sum();
    assert_eq!(scanned, 1000);
    let mut called = rows(&functions);
    called.retain(|(name, _)| *name != "numbers");
    assert_eq!(called, [("double", 2), ("fail", 0)]);
    assert_eq!(functions[0].detail.as_deref(), Some("x = 7"));
    assert_eq!(
        rows(&of(&trace, EventKind::CopyIn)),
        [("double", 2), ("numbers", 1), ("fail", 1), ("end", 1)]
    );
    let exceptions = of(&trace, EventKind::Exception);
    assert_eq!((exceptions.len(), exceptions[0].detail.as_deref()), (1, Some("Oops: it fails")));
    let lost = of(&trace, EventKind::LaneLost);
    assert_eq!(rows(&lost), [("end", 0)]);
    // All of this has happened on one worker, for one client.
    let events = trace.events();
    let mut places: Vec<_> = events
        .iter()
        .filter(|event| event.subject.function.is_some())
        .map(|event| (event.lane, event.thread))
        .collect();
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
    assert!(places[0].0 > 0);
    assert!(events.iter().all(|event| event.start <= event.end));
}

#[test]
fn a_wait_for_a_worker_is_recorded() {
    let (server, trace) = server();
    let clients = [(); 2].map(|()| Client::new(&server.addresses()[0]));
    assert!(trace.start());
    thread::scope(|scope| {
        let first = scope.spawn(|| clients[0].call(WAIT, &[60_000]).unwrap_err());
        eventually("the worker has it", || of(&trace, EventKind::CopyIn).len() == 1);
        let second = scope.spawn(|| clients[1].call(DOUBLE, &[1]));
        eventually("the second waits", || server.load().1 == 1);
        clients[0].cancel();
        first.join().unwrap();
        assert_eq!(second.join().unwrap().unwrap(), [2]);
    });
    // The first call may have waited for the start of the worker.
    let waits: Vec<_> = of(&trace, EventKind::Wait)
        .into_iter()
        .filter(|wait| wait.subject.function.as_deref() == Some("double"))
        .collect();
    assert_eq!(waits.len(), 1);
    let given = of(&trace, EventKind::CopyIn);
    assert_eq!(waits[0].thread, given[1].thread);
    assert_ne!(waits[0].thread, given[0].thread);
    assert!(waits[0].end <= given[1].start);
}

fn open(access: Access) -> (HttpRuntime, Http) {
    let runtime = HttpRuntime::start().unwrap();
    let http = Http::open(&runtime, "127.0.0.1:0", access, &Arc::default()).unwrap();
    (runtime, http)
}

/// The status of the answer to a request.
fn status(http: &Http, request: &str, headers: &str) -> u16 {
    ask(http.address(), request, &format!("Host: {}\r\n{headers}", http.address())).0
}

#[test]
fn a_program_starts_one_trace_and_gets_it_at_the_end() {
    let (_runtime, http) = open(Access::Local);
    assert_eq!(status(&http, "GET /trace.html", ""), 404);
    assert_eq!(status(&http, "POST /trace/end", ""), 409);
    assert_eq!(status(&http, "GET /trace/start", ""), 405);
    assert_eq!(status(&http, "POST /trace.html", ""), 405);
    assert_eq!(status(&http, "POST /trace/start", ""), 200);
    assert_eq!(status(&http, "POST /trace/start", ""), 409);
    assert_eq!(status(&http, "GET /trace.html", ""), 404);
    assert_eq!(status(&http, "POST /trace/end", ""), 200);
    assert_eq!(status(&http, "GET /trace.html", ""), 200);
    assert_eq!(status(&http, "GET /trace.json", ""), 200);
}

#[test]
fn pages_of_other_sites_and_strangers_have_no_trace() {
    let (_runtime, http) = open(Access::Local);
    let own = format!("Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\n", http.address());
    for headers in ["Origin: http://example.org\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        assert_eq!(status(&http, "POST /trace/start", headers), 403, "{headers}");
    }
    let behind_proxy = "Origin: https://functions.example.org\r\nSec-Fetch-Site: same-origin\r\n";
    assert_eq!(status(&http, "POST /trace/start", behind_proxy), 200);
    assert_eq!(status(&http, "POST /trace/end", ""), 200);
    let same_site = own.replace("same-origin", "same-site");
    assert_eq!(status(&http, "POST /trace/start", &same_site), 403);
    assert_eq!(status(&http, "POST /trace/start", &own), 200);
    assert_eq!(ask(http.address(), "POST /trace/end", "Host: example.org\r\n").0, 421);

    let (_runtime, public) = open(Access::Public);
    for request in ["POST /trace/start", "POST /trace/end", "GET /trace.html", "GET /trace.json"] {
        assert_eq!(status(&public, request, ""), 403, "{request}");
    }
    let (_, _, state) = ask(public.address(), "GET /state.json", "Host: localhost\r\n");
    assert!(state.contains("\"trace\":null"), "{state}");

    let (_runtime, guarded) = open(Access::Token("secret".into()));
    assert_eq!(status(&guarded, "POST /trace/start", ""), 401);
    let right = "Authorization: Bearer secret\r\n";
    assert_eq!(status(&guarded, "POST /trace/start", &format!("{right}Origin: http://example.org\r\n")), 403);
    assert_eq!(status(&guarded, "POST /trace/start", right), 200);
}
