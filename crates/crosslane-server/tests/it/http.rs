//! The information that the HTTP listener shows to people and monitoring programs while functions are
//! called.

use crate::common::{Client, DOUBLE, END, FAIL, NUMBERS, WAIT, eventually, options, server, start, unix};
use crate::crowd;
use crosslane_server::http::Access;
use crosslane_server::{Http, HttpRuntime};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn open(access: Access) -> (HttpRuntime, Http) {
    let runtime = HttpRuntime::start().unwrap();
    let http = Http::open(&runtime, "127.0.0.1:0", access, &Arc::default()).unwrap();
    (runtime, http)
}

/// The status, the head and the body of the answer to a request. The request has these further headers.
pub(crate) fn ask(address: SocketAddr, request: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer: {answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.into())
}

fn get(http: &Http, path: &str) -> (u16, String) {
    let (status, _, body) = ask(http.address(), &format!("GET {path}"), "Host: localhost\r\n");
    (status, body)
}

fn state(http: &Http) -> Value {
    let (status, body) = get(http, "/state.json");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn function(http: &Http, number: u32) -> Value {
    state(http)["functions"][number as usize].clone()
}

/// The value of a metric. The labels are part of the name.
fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

fn metrics(http: &Http) -> String {
    let (status, text) = get(http, "/metrics");
    assert_eq!(status, 200, "{text}");
    text
}

#[test]
fn a_server_is_healthy_while_it_loads_and_ready_until_it_drains() {
    let (_runtime, http) = open(Access::Local);
    http.loading("words.py is being loaded");
    assert_eq!(get(&http, "/health"), (200, "ok\n".into()));
    assert_eq!(get(&http, "/ready"), (503, "words.py is being loaded\n".into()));
    assert_eq!(state(&http)["unready"], "words.py is being loaded");
    assert_eq!(metric(&metrics(&http), "crosslane_ready"), 0.0);
    let (server, address) = server();
    http.show(&server);
    assert_eq!(get(&http, "/ready"), (200, "ok\n".into()));
    eventually("it is ready", || metric(&metrics(&http), "crosslane_ready") == 1.0);
    let client = Client::new(&address);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.call(WAIT, &[60_000]));
        eventually("the call runs", || function(&http, WAIT)["in_flight"] == 1);
        let ends = scope.spawn(|| server.shut_down(Duration::from_secs(60)));
        eventually("it drains", || get(&http, "/ready") == (503, "the server is shutting down\n".into()));
        assert_eq!(get(&http, "/health").0, 200);
        client.cancel();
        call.join().unwrap().unwrap_err();
        assert!(ends.join().unwrap());
    });
    assert_eq!(get(&http, "/ready").0, 503);
    assert_eq!(get(&http, "/metrics").0, 200);
}

#[test]
fn what_calls_cost_is_counted_for_each_function() {
    let (server, address) = server();
    let (_runtime, http) = open(Access::Local);
    http.show(&server);
    let client = Client::new(&address);
    for _ in 0..3 {
        client.call(DOUBLE, &[1, 2, 3]).unwrap();
    }
    client.call(FAIL, &[1]).unwrap_err();
    client.call(END, &[1]).unwrap_err();
    client.scan(1000, usize::MAX).unwrap();
    eventually("all calls are seen", || {
        let state = state(&http);
        let calls: Vec<_> =
            state["functions"].as_array().unwrap().iter().map(|seen| seen["calls"].clone()).collect();
        calls[..5] == [3, 0, 1, 1, 1]
    });
    let seen = |function: &Value| {
        let history = function["history"].as_array().expect("numbers");
        history.iter().filter_map(Value::as_u64).sum::<u64>()
    };
    eventually("ticks have seen them", || seen(&function(&http, DOUBLE)) == 3);
    let state = state(&http);
    let double = &state["functions"][0];
    assert_eq!((&double["name"], &double["kind"]), (&"double".into(), &"scalar".into()));
    assert_eq!(
        (&double["rows"], &double["failures"], &double["in_flight"]),
        (&9.into(), &0.into(), &0.into())
    );
    let latency = |name: &str| double["latency"][name].as_f64().unwrap();
    assert!(0.0 < latency("p50") && latency("p50") <= latency("p99") && latency("p99") <= latency("p999"));
    assert_eq!(state["functions"][2]["rows"], 1000);
    assert_eq!(
        (&state["functions"][3]["failures"], &state["functions"][3]["deaths"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        (&state["functions"][4]["failures"], &state["functions"][4]["deaths"]),
        (&1.into(), &0.into())
    );
    assert!(state["connections"]["open"].as_u64() > Some(0));

    let text = metrics(&http);
    let labels = |name: &str| format!("{{function=\"{name}\",library=\"test\",language=\"Python\"}}");
    let of =
        |name: &str, function: &str| metric(&text, &format!("crosslane_function_{name}{}", labels(function)));
    assert_eq!((of("calls_total", "double"), of("rows_total", "double")), (3.0, 9.0));
    assert_eq!((of("errors_total", "fail"), of("worker_deaths_total", "end")), (1.0, 1.0));
    assert_eq!(of("latency_seconds_count", "double"), 3.0);
    assert!(of("latency_seconds_sum", "double") > 0.0);
    assert!(of("received_bytes_total", "double") > 72.0 && of("sent_bytes_total", "double") > 72.0);
    let everything = labels("double").replace('}', ",le=\"+Inf\"}");
    assert_eq!(metric(&text, &format!("crosslane_function_latency_seconds_bucket{everything}")), 3.0);
    let workers = "{library=\"test\",language=\"Python\"}";
    assert_eq!(metric(&text, &format!("crosslane_workers_limit{workers}")), 2.0);
    assert!(metric(&text, &format!("crosslane_workers_booted_total{workers}")) >= 2.0);
    // No bytes wait any more.
    assert_eq!(metric(&text, "crosslane_waiting_bytes"), 0.0);
    assert_eq!(metric(&text, "crosslane_waiting_bytes_limit"), f64::from(1 << 30));
}

#[test]
fn waiting_calls_are_shown() {
    let mut options = options(&[unix()]);
    options.workers = 1;
    let server = start(options).unwrap();
    let (_runtime, http) = open(Access::Local);
    http.show(&server);
    let clients: Vec<_> = (0..3).map(|_| Client::new(&server.addresses()[0])).collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| client.call(WAIT, &[60_000]).unwrap_err());
        }
        eventually("one works, and two wait", || {
            let state = state(&http);
            (&state["in_flight"], &state["waiting"]) == (&1.into(), &2.into())
                && state["libraries"][0]["workers"]["line"] == 2
                && state["libraries"][0]["workers"]["working"] == 1
        });
        clients.iter().for_each(Client::cancel);
    });
    eventually("nobody waits", || {
        let state = state(&http);
        (&state["in_flight"], &state["waiting"]) == (&0.into(), &0.into())
    });
}

/// A LIMIT is no error.
#[test]
fn a_table_that_is_not_read_to_its_end_has_not_failed() {
    let (server, address) = server();
    let (_runtime, http) = open(Access::Local);
    http.show(&server);
    let client = Client::new(&address);
    client.scan(1_000_000_000, 250).unwrap();
    client.call(DOUBLE, &[1]).unwrap();
    eventually("it has ended", || function(&http, NUMBERS)["calls"] == 1);
    assert_eq!(function(&http, NUMBERS)["failures"], 0);
}

#[test]
fn other_machines_see_nothing_unless_the_user_allows_it() {
    let runtime = HttpRuntime::start().unwrap();
    let error = Http::open(&runtime, "0.0.0.0:0", Access::Local, &Arc::default()).unwrap_err().to_string();
    assert!(error.contains("--http-token-file") && error.contains("--http-public"), "{error}");
    let public = Http::open(&runtime, "0.0.0.0:0", Access::Public, &Arc::default()).unwrap();
    let here = SocketAddr::from(([127, 0, 0, 1], public.address().port()));
    assert_eq!(ask(here, "GET /metrics", "Host: example.org\r\n").0, 200);
    let guarded =
        Http::open(&runtime, "127.0.0.1:0", Access::Token("secret".into()), &Arc::default()).unwrap();
    for path in ["/", "/metrics", "/state.json", "/nowhere"] {
        for headers in ["", "Authorization: Bearer other\r\n", "Authorization: Bearer\r\n"] {
            let (status, head, _) =
                ask(guarded.address(), &format!("GET {path}"), &format!("Host: x\r\n{headers}"));
            assert_eq!(status, 401, "{path} {headers}");
            assert!(head.contains("www-authenticate: basic"), "{head}");
        }
    }
    // The second header is the encoding of "any:secret".
    for headers in ["Authorization: Bearer secret\r\n", "Authorization: Basic YW55OnNlY3JldA==\r\n"] {
        assert_eq!(ask(guarded.address(), "GET /", &format!("Host: x\r\n{headers}")).0, 200, "{headers}");
    }
    assert_eq!(ask(guarded.address(), "GET /health", "Host: x\r\n").0, 200);
    let error =
        Http::open(&runtime, &here.to_string(), Access::Local, &Arc::default()).unwrap_err().to_string();
    assert!(error.contains("cannot listen for HTTP"), "{error}");
}

#[test]
fn a_page_of_another_site_sees_nothing() {
    let (_runtime, http) = open(Access::Local);
    for headers in ["Host: example.org\r\n", "Host: 127.0.0.1.example.org:80\r\n"] {
        assert_eq!(ask(http.address(), "GET /state.json", headers).0, 421, "{headers}");
    }
    let (status, head, page) = ask(http.address(), "GET /", &format!("Host: {}\r\n", http.address()));
    assert_eq!(status, 200);
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(!head.contains("access-control"), "{head}");
    assert!(page.contains("<table"), "{page}");
}

#[test]
fn silent_clients_keep_no_other_client_out() {
    let _crowd = crowd();
    let (server, address) = server();
    let (runtime, http) = open(Access::Local);
    http.show(&server);
    let silent: Vec<_> = (0..300)
        .map(|number| {
            let mut stream = TcpStream::connect(http.address()).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: loc").unwrap();
            }
            stream
        })
        .collect();
    assert_eq!(get(&http, "/health").0, 200);
    assert_eq!(Client::new(&address).call(DOUBLE, &[4]).unwrap(), [8]);
    // The server has ended the oldest connections.
    let mut oldest = &silent[1];
    oldest.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let ended = oldest.read(&mut [0]);
    let waited = ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(!waited && !matches!(ended, Ok(1)), "{ended:?}");
    assert_eq!(ask(http.address(), "POST /", "Host: localhost\r\nContent-Length: 0\r\n").0, 405);
    assert_eq!(ask(http.address(), "GET /nowhere", "Host: localhost\r\n").0, 404);
    let (status, _, body) = ask(http.address(), "HEAD /metrics", "Host: localhost\r\n");
    assert_eq!((status, body.as_str()), (200, ""));
    let long = format!("Host: localhost\r\nX: {}\r\n", "x".repeat(100_000));
    let mut stream = TcpStream::connect(http.address()).unwrap();
    // The server may end the connection before the client has written everything.
    let _ = stream.write_all(format!("GET / HTTP/1.1\r\n{long}\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(get(&http, "/health").0, 200);
    drop(runtime);
    assert!(TcpStream::connect(http.address()).is_err());
}
