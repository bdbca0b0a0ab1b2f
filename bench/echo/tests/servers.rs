//! The servers, with frames that arrive in parts, and with clients that read no answers for a
//! while.

use crosslane_bench_echo::frame::{self, Request};
use crosslane_bench_echo::process::Server;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

const SERVERS: [&str; 3] = ["raw", "tokio", "tokio-spawn"];

fn start(name: &str) -> (Server, TcpStream) {
    let server = Server::start(&[env!("CARGO_BIN_EXE_crosslane-bench-echo").into(), name.into()]).unwrap();
    let stream = TcpStream::connect(server.address).unwrap();
    (server, stream)
}

fn numbers(received: &[u8]) -> Vec<u64> {
    frame::whole(received).iter().map(|frame| Request::decode(frame).number).collect()
}

#[test]
fn a_frame_in_parts_is_answered_when_it_is_whole() {
    for name in SERVERS {
        let (server, mut stream) = start(name);
        let frames = [1, 2, 3].map(|number| Request { number, spin: 0 }.encode());
        let (front, back) = frames.as_flattened().split_at(100);
        stream.write_all(front).unwrap();
        let mut answers = [[0; frame::SIZE]; 3];
        stream.read_exact(&mut answers[0]).unwrap();
        assert_eq!(answers[0], frames[0], "{name}");
        stream.write_all(back).unwrap();
        stream.read_exact(answers[1..].as_flattened_mut()).unwrap();
        // Tasks answer in any order.
        answers.sort_unstable();
        assert_eq!(answers, frames, "{name}");
        server.stop().unwrap();
    }
}

#[test]
fn answers_that_nobody_reads_for_a_while_come_later() {
    const COUNT: u64 = 300_000;
    for name in SERVERS {
        let (server, mut stream) = start(name);
        let frames: Vec<[u8; frame::SIZE]> =
            (0..COUNT).map(|number| Request { number, spin: 0 }.encode()).collect();
        let mut rest = frames.as_flattened();
        stream.set_nonblocking(true).unwrap();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{name}: {error}"),
            }
        }
        stream.set_nonblocking(false).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let mut received = vec![0; COUNT as usize * frame::SIZE];
        thread::scope(|scope| {
            scope.spawn(|| writer.write_all(rest).unwrap());
            stream.read_exact(&mut received).unwrap();
        });
        let mut numbers = numbers(&received);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..COUNT), "{name}");
        server.stop().unwrap();
    }
}

#[test]
fn a_server_ends_without_its_starter_and_outlives_its_clients() {
    for name in SERVERS {
        let (server, stream) = start(name);
        drop(stream);
        let mut stream = TcpStream::connect(server.address).unwrap();
        let request = Request { number: 9, spin: 1 }.encode();
        stream.write_all(&request).unwrap();
        let mut answer = [0; frame::SIZE];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, request, "{name}");
        server.stop().unwrap();
        assert_eq!(stream.read(&mut answer).unwrap_or(0), 0, "{name}");
    }
}

#[test]
fn what_is_no_server_is_refused() {
    let refused = |command: &[&str]| {
        let command: Vec<_> = command.iter().map(Into::into).collect();
        Server::start(&command).unwrap_err().to_string()
    };
    assert!(refused(&[]).starts_with("no server is named"));
    assert_eq!(refused(&["/no/such/server"]), "the server /no/such/server cannot be started");
    assert_eq!(
        refused(&["echo", "hello"]),
        r#"the server echo printed "hello\n", not "listening on 127.0.0.1:PORT""#
    );
}
