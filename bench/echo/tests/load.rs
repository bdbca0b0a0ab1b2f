//! The load generator with a correct server, and with wrong ones.

use crosslane_bench_echo::frame::{self, Request};
use crosslane_bench_echo::load::{Load, Measured, Work, run};
use crosslane_bench_echo::process::Server;
use crosslane_load::plan::plan;
use crosslane_load::{Arrivals, Mix};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Duration;
use std::{process, thread};

const BINARY: &str = env!("CARGO_BIN_EXE_crosslane-bench-echo");
const OPEN: Work = Work::Open { arrivals: Arrivals::Poisson, rate: 20_000 };
/// Some requests are heavy, so that answers come out of order if the server allows that.
const LOAD: Load = Load {
    work: OPEN,
    warm_up: Duration::from_millis(50),
    time: Duration::from_millis(150),
    patience: Duration::from_secs(60),
    mix: Mix { share: 0.01, heavy: (50, 50) },
    seed: 1,
};

fn measure(server: &str, load: &Load) -> Measured {
    let server = Server::start(&[BINARY.into(), server.into()]).unwrap();
    let measured = run(server.address, server.id(), 4, load).unwrap();
    server.stop().unwrap();
    measured
}

/// The generator itself refuses a second answer, a wrong answer, and an answer without a request.
/// Tests below check that.
#[test]
fn every_request_is_answered_once() {
    for server in ["raw", "tokio", "tokio-spawn"] {
        let open = measure(server, &LOAD);
        let planned = plan(Arrivals::Poisson, 20_000, LOAD.warm_up + LOAD.time, LOAD.mix, LOAD.seed);
        assert_eq!((&open.requests, open.lost), (&planned, 0), "{server}");
        let first = planned.iter().filter(|request| request.at < 50_000_000).count();
        let report = &open.report;
        assert_eq!(report["latency"]["count"], planned.len() - first, "{server}");
        let heavy = planned[first..].iter().filter(|request| request.work > 0).count();
        assert_eq!(report["heavy"]["count"], heavy, "{server}");
        assert_eq!(report["light"]["count"], planned.len() - first - heavy, "{server}");
        assert!(report["used"]["cpu_us"].as_f64().unwrap() > 0.0, "{report}");

        let closed = measure(server, &Load { work: Work::Closed { outstanding: 16 }, ..LOAD });
        assert!(closed.requests.len() > 4 * 16, "{server}");
        assert_eq!(closed.lost, 0, "{server}");
    }
}

/// The generator's result for a server that does this with each connection.
fn with(
    serve: impl Fn(TcpStream) + Copy + Send + 'static,
    connections: usize,
    load: &Load,
) -> anyhow::Result<Measured> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    run(address, process::id(), connections, load)
}

/// A server's work on a connection: it answers each frame with these frames.
fn answering<const N: usize>(
    mut stream: TcpStream,
    answers: impl Fn([u8; frame::SIZE]) -> [[u8; frame::SIZE]; N],
) {
    let mut request = [0; frame::SIZE];
    while stream.read_exact(&mut request).is_ok() {
        // It fails when the generator has closed the connection.
        stream.write_all(answers(request).as_flattened()).ok();
    }
}

#[test]
fn wrong_answers_are_errors() {
    let message = |result: anyhow::Result<Measured>| result.unwrap_err().to_string();
    let twice = message(with(|stream| answering(stream, |frame| [frame, frame]), 4, &LOAD));
    assert!(twice.starts_with("a second answer to request "), "{twice}");
    let unknown = message(with(
        |stream| answering(stream, |_| [Request { number: 1 << 40, spin: 0 }.encode()]),
        4,
        &LOAD,
    ));
    assert_eq!(unknown, "an answer to request 1099511627776, which was not sent");
    let torn = message(with(
        |stream| {
            answering(stream, |mut frame| {
                frame[63] ^= 1;
                [frame]
            })
        },
        4,
        &LOAD,
    ));
    assert!(torn.ends_with(" is not its frame"), "{torn}");
    assert_eq!(message(with(drop, 4, &LOAD)), "the server closed a connection");
}

#[test]
fn what_is_not_answered_counts_with_the_time_that_it_waited() {
    // All other requests are answered before, even on a busy processor.
    let load = Load { patience: Duration::from_secs(3), ..LOAD };
    let swallows_the_last = |stream: TcpStream| {
        let last =
            plan(Arrivals::Poisson, 20_000, LOAD.warm_up + LOAD.time, LOAD.mix, LOAD.seed).len() as u64 - 1;
        let mut writer = stream.try_clone().unwrap();
        let mut reader = stream;
        let mut request = [0; frame::SIZE];
        while reader.read_exact(&mut request).is_ok() {
            if Request::decode(&request).number != last {
                writer.write_all(&request).unwrap();
            }
        }
    };
    let measured = with(swallows_the_last, 4, &load).unwrap();
    assert_eq!((measured.lost, &measured.report["lost"]), (1, &1.into()));
    let max = measured.report["latency"]["max_us"].as_f64().unwrap();
    let waited =
        load.warm_up + load.time + load.patience - Duration::from_nanos(measured.requests.last().unwrap().at);
    assert!(max >= waited.as_secs_f64() * 1e6, "{max}");
}

/// The server reads nothing from one connection until it has answered everything on the other.
/// There is far more to send than fits into the sockets.
#[test]
fn a_server_that_does_not_read_stops_no_other_connection() {
    static OTHER_DONE: Barrier = Barrier::new(2);
    const ALL: usize = 200_000;
    let load =
        Load { work: Work::Open { arrivals: Arrivals::Uniform, rate: 1_000_000 }, mix: Mix::LIGHT, ..LOAD };
    let serve = |stream: TcpStream| {
        let mut first = [0; frame::SIZE];
        stream.peek(&mut first).unwrap();
        let even = Request::decode(&first).number.is_multiple_of(2);
        if !even {
            OTHER_DONE.wait();
        }
        let answered = Cell::new(0);
        answering(stream, |frame| {
            answered.set(answered.get() + 1);
            if even && answered.get() == ALL / 2 {
                OTHER_DONE.wait();
            }
            [frame]
        });
    };
    let measured = with(serve, 2, &load).unwrap();
    assert_eq!((measured.requests.len(), measured.lost), (ALL, 0));
}
