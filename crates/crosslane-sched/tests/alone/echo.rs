//! The example `echo`, as a program.

use crate::alone;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The example, and the first line that it prints: its address.
fn start(options: &[&str]) -> (Child, String) {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples/echo");
    let mut server = Command::new(&example)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap();
    (server, address.into())
}

/// A light request.
fn frame(number: u64) -> [u8; 64] {
    let mut frame = [number as u8; 64];
    frame[..8].copy_from_slice(&number.to_le_bytes());
    frame[8..12].fill(0);
    frame
}

#[test]
fn the_example_answers_and_ends_with_its_input() {
    let _alone = alone();
    for priority in ["priority=true", "priority=false"] {
        let (mut server, address) = start(&["workers=2", "dispatchers=2", priority]);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The test sends a heavy frame and light frames behind it, in pieces that are no whole frames.
        let mut sent = Vec::new();
        for number in 0_u64..100 {
            let mut frame = frame(number);
            if number == 0 {
                frame[8..12].copy_from_slice(&20_000_u32.to_le_bytes());
            }
            sent.extend(frame);
        }
        for piece in sent.chunks(100) {
            stream.write_all(piece).unwrap();
        }
        let mut got = vec![0; sent.len()];
        stream.read_exact(&mut got).unwrap();
        let frames = |bytes: &[u8]| {
            let mut frames: Vec<_> = bytes.chunks(64).map(<[u8]>::to_vec).collect();
            frames.sort();
            frames
        };
        assert_eq!(frames(&got), frames(&sent));
        drop(server.stdin.take());
        assert!(server.wait().unwrap().success());
    }
}

/// There are more clients than descriptors. The server reports that once, and keeps no processor busy.
/// It goes on when it has descriptors again.
#[test]
fn the_example_outlives_a_lack_of_descriptors() {
    let _alone = alone();
    let (mut server, address) = start(&["workers=1"]);
    let pid = Pid::from_raw(server.id() as i32);
    let limit = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(pid, Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
    };
    limit(16);
    let mut clients: Vec<_> = (0..32)
        .map(|number| {
            let mut client = TcpStream::connect(&address).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            client.write_all(&frame(number)).unwrap();
            client
        })
        .collect();
    let mut errors = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "a connection was not accepted: Too many open files (os error 24)\n");
    // Meanwhile, the server still serves the first clients.
    let mut got = [0; 64];
    clients[0].read_exact(&mut got).unwrap();
    limit(1024);
    for (number, client) in clients.iter_mut().enumerate().skip(1) {
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, frame(number as u64));
    }
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    let mut more = String::new();
    errors.read_to_string(&mut more).unwrap();
    assert_eq!(more, "");
}
