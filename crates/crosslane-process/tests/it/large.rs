//! A guest sends a reply that is larger than the ring in a file. The tests check which files the engine
//! takes, which it refuses, and the cost of a refusal.

use crosslane::DataType;
use crosslane::lane::{Lane, LaneError};
use crosslane_process::testing::{announced_reply, valid_reply};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::sockopt;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LARGEST: usize = 1 << 30;
/// The limit for operations that must not wait at all.
const HANGS: Duration = Duration::from_secs(30);

fn seal(file: &OwnedFd, seals: SealFlags) {
    rustix::fs::fcntl_add_seals(file, seals).unwrap();
}

fn memory(length: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("reply", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, length).unwrap();
    file
}

/// A memfd that holds a valid reply of a BIGINT column.
fn reply() -> (u64, OwnedFd) {
    let bytes = valid_reply(&DataType::BigInt);
    let file = memory(bytes.len() as u64);
    rustix::io::pwrite(&file, &bytes, 0).unwrap();
    (bytes.len() as u64, file)
}

fn refusal(length: u64, file: OwnedFd) -> String {
    match announced_reply(length, file, LARGEST).1 {
        Err(LaneError::Corrupt(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sealed_file_is_taken() {
    for seals in [SealFlags::empty(), SealFlags::WRITE] {
        let (length, file) = reply();
        seal(&file, SealFlags::SHRINK | SealFlags::GROW | seals);
        let (lane, header) = announced_reply(length, file, LARGEST);
        assert_eq!(header.unwrap().unwrap().rows, 3);
        assert_eq!(lane.frame(), valid_reply(&DataType::BigInt));
    }
}

#[test]
fn a_file_that_could_change_its_size_is_refused() {
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE] {
        let (length, file) = reply();
        seal(&file, seals);
        assert!(refusal(length, file).contains("not sealed"), "{seals:?}");
    }
}

#[test]
fn a_file_of_another_length_is_refused() {
    let (length, file) = reply();
    seal(&file, SealFlags::SHRINK | SealFlags::GROW);
    assert!(refusal(length + 8, file).contains("bytes"));
}

/// An ordinary file may be on a file system that answers no read. A pipe has no length, and a socket has
/// no position.
#[test]
fn what_is_no_memory_file_is_refused_before_it_is_read() {
    let bytes = valid_reply(&DataType::BigInt);
    let mut file = tempfile();
    file.write_all(&bytes).unwrap();
    assert!(refusal(bytes.len() as u64, file.into()).contains("no memory file"));
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    assert!(refusal(0, pipe).contains("no memory file"));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(refusal(0, socket.into()).contains("no memory file"));
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    assert!(refusal(0, zeros.into()).contains("no memory file"));
}

fn tempfile() -> std::fs::File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("large-{}", std::process::id()));
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

/// Closing a connection with the option `linger` waits for its other side. The engine must not wait for
/// that.
#[test]
fn closing_a_descriptor_that_lingers_delays_no_engine() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // No process reads the sent bytes, so closing the socket waits for their arrival.
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65536]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    let (done, answer) = mpsc::channel();
    thread::spawn(move || done.send(refusal(0, stream.into())));
    assert!(answer.recv_timeout(HANGS).unwrap().contains("no memory file"));
}

/// A file with holes costs its sender nothing, but it costs its reader the full length.
#[test]
fn a_file_with_holes_is_refused() {
    let length = 8 << 30;
    let file = memory(length);
    seal(&file, SealFlags::SHRINK | SealFlags::GROW);
    let (_lane, reply) = announced_reply(length, file, usize::MAX);
    assert!(matches!(reply, Err(LaneError::Corrupt(text)) if text.contains("holes")));
}

#[test]
fn a_reply_beyond_the_setting_is_an_error_that_names_it_and_the_lane_goes_on() {
    let (length, file) = reply();
    seal(&file, SealFlags::SHRINK | SealFlags::GROW);
    let (mut lane, reply) = announced_reply(length, file, 128);
    let Err(LaneError::TooLarge(text)) = reply else { panic!("{reply:?}") };
    assert!(text.contains("largest_batch"), "{text}");
    assert_eq!(lane.in_flight(), 0);
    assert!(lane.try_collect().unwrap().is_none());
}
