//! The example `echo`, as a program.
#![cfg(not(loom))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn the_example_answers_and_ends_with_its_input() {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples/echo");
    for priority in ["priority=true", "priority=false"] {
        let mut server = Command::new(&example)
            .args(["workers=2", "dispatchers=2", priority])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", example.display()));
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A heavy frame, and light ones behind it, in pieces that are no frames.
        let mut sent = Vec::new();
        for number in 0_u64..100 {
            let mut frame = [number as u8; 64];
            frame[..8].copy_from_slice(&number.to_le_bytes());
            frame[8..12].copy_from_slice(&(if number == 0 { 20_000_u32 } else { 0 }).to_le_bytes());
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
