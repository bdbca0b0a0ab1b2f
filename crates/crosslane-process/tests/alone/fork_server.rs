//! Fork servers that fork, end, stall or lie. A fork server is this program, which the tests start again
//! as a guest.

use crate::{beside, soon};
use crosslane::pool::Stop;
use crosslane::{Error, Settings};
use crosslane_process::control::{ControlSocket, Report, Request};
use crosslane_process::{ForkServer, Origin, Program, Source, Zygote, ZygoteOptions};
use rustix::process::{Pid, Signal};
use std::fs;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Variables that are set if this program is a guest: its behaviour, and a file.
const GUEST: [&str; 2] = ["CROSSLANE_TEST_FORK_SERVER", "CROSSLANE_TEST_FORK_SERVER_FILE"];

/// A fork server that behaves in this way. Each of its processes adds its id to the file.
fn server(behaviour: &str, file: &Path) -> Arc<ForkServer> {
    let program = std::env::current_exe().unwrap().display().to_string();
    let told = [format!("{}={behaviour}", GUEST[0]), format!("{}={}", GUEST[1], file.display())];
    let arguments = ["fork_server::guest", "--exact", "--nocapture"].map(String::from);
    let command = [&["env".to_owned()][..], &told, &[program], &arguments].concat();
    ForkServer::new(Program { command, environment: Vec::new(), advice: "a test's" }).unwrap()
}

fn start(server: &Arc<ForkServer>, load_timeout: Duration) -> Result<Zygote, Error> {
    let origin = Origin::Fork { server: Arc::clone(server), modules: vec!["a".into()] };
    let source = Source::Pickle { name: "test".into(), pickles: Vec::new(), by_name: false };
    let options = ZygoteOptions {
        load_timeout,
        ring_size: 4096,
        spin: Duration::ZERO,
        ..ZygoteOptions::new(origin, source, &Settings::default())
    };
    Zygote::start(options, Stop::default()).map(|(zygote, _)| zygote)
}

/// The processes that the server has been so far.
fn servers(file: &Path) -> Vec<Pid> {
    let ids = fs::read_to_string(file).unwrap();
    ids.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
}

fn lives(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid).is_ok()
}

/// A path at which no file exists yet. Dropping it removes the file.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("crosslane-fork-server-{name}-{}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The guest that the tests start. It does nothing if it runs as a test.
#[test]
fn guest() {
    let [Ok(behaviour), Ok(file)] = GUEST.map(std::env::var) else { return };
    let mut file = fs::File::options().create(true).append(true).open(file).unwrap();
    writeln!(file, "{}", std::process::id()).unwrap();
    // SAFETY: the engine starts this program with this descriptor as its socket.
    let control = ControlSocket::new(unsafe { UnixStream::from_raw_fd(3) });
    while let Some((Request::Zygote { modules }, descriptors)) = control.receive().unwrap() {
        assert_eq!(modules, ["a"]);
        match &behaviour[..] {
            "ends" => {
                eprintln!("the reason");
                std::process::exit(3);
            }
            "stalls" => std::thread::sleep(Duration::from_secs(1000)),
            // The zygote must be a process below this one, and this process greets in its place.
            "lies" => greet(&descriptors[0]),
            _ => fork(descriptors.into_iter().next().unwrap()),
        }
    }
}

fn greet(socket: &OwnedFd) {
    ControlSocket::new(UnixStream::from(socket.try_clone().unwrap())).greet().unwrap();
}

/// Forks a zygote that loads anything.
fn fork(socket: OwnedFd) {
    // SAFETY: the fork needs no other thread of this process.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    let control = ControlSocket::new(UnixStream::from(socket));
    control.greet().unwrap();
    while let Ok(Some((Request::Load { .. }, _))) = control.receive() {
        let loaded = Report::Loaded {
            functions: serde_json::json!([]),
            runtime: "Test 1".into(),
            files: None,
            reloads: false,
            sandboxed: false,
        };
        control.send(&loaded).unwrap();
    }
    // SAFETY: this is a copy of the fork server. It must not clean up what belongs to the fork server.
    unsafe { libc::_exit(0) }
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn one_process_forks_all_zygotes_and_ends_with_them() {
    let _beside = beside();
    let file = Temporary::new("forks");
    let server = server("forks", &file.0);
    let first = start(&server, LONG).unwrap();
    let second = start(&server, LONG).unwrap();
    let [process] = servers(&file.0)[..] else { panic!("it was started more than once") };
    drop(server);
    assert!(lives(process), "a zygote still needs it");
    drop((first, second));
    assert!(!lives(process), "nobody needs it");
}

#[test]
fn a_fork_server_that_was_killed_is_started_again() {
    let _beside = beside();
    let file = Temporary::new("killed");
    let server = server("forks", &file.0);
    drop(start(&server, LONG).unwrap());
    rustix::process::kill_process(servers(&file.0)[0], Signal::KILL).unwrap();
    // The killed process may not have ended yet. Then the first start reports its end.
    if let Err(error) = start(&server, LONG) {
        let error = error.to_string();
        assert!(error.contains("ended before it had loaded test (signal: 9"), "{error}");
        drop(start(&server, LONG).unwrap());
    }
    assert_eq!(servers(&file.0).len(), 2);
}

#[test]
fn a_fork_server_that_makes_no_zygote_fails_the_load() {
    let _beside = beside();
    let cases = [
        ("ends", LONG, "ended before it had loaded test (exit status: 3); a test's\n"),
        ("ends", LONG, "the reason"),
        ("stalls", Duration::from_millis(300), "test was not loaded within 0.3 s"),
        ("lies", LONG, "the zygote: Operation not permitted"),
    ];
    for (behaviour, timeout, why) in cases {
        let file = Temporary::new(behaviour);
        let server = server(behaviour, &file.0);
        let error = soon(move || start(&server, timeout).unwrap_err().to_string());
        assert!(error.contains(why), "{behaviour}: {error}");
    }
}

#[test]
fn a_load_behind_one_that_stalls_ends_at_its_own_limit() {
    let _beside = beside();
    let file = Temporary::new("behind");
    let server = server("stalls", &file.0);
    let (other, path) = (Arc::clone(&server), file.0.clone());
    let first = std::thread::spawn(move || start(&other, LONG).unwrap_err().to_string());
    while fs::read_to_string(&path).unwrap_or_default().is_empty() {
        std::thread::yield_now();
    }
    let (behind, waited) = (Arc::clone(&server), Duration::from_millis(200));
    let error = soon(move || start(&behind, waited).unwrap_err().to_string());
    assert!(error.contains("test was not loaded within 0.2 s"), "{error}");
    // The first load still waits. It ends with its process.
    rustix::process::kill_process(servers(&path)[0], Signal::KILL).unwrap();
    let error = soon(move || first.join().unwrap());
    assert!(error.contains("ended before it had loaded test"), "{error}");
}
