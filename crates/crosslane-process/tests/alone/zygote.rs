//! Zygotes that lie, garble, stall or die. A zygote is this program, which the tests start again as a
//! guest.

use crate::{beside, soon};
use crosslane::lane::Lane as _;
use crosslane::pool::{Pool, PoolOptions, Stop, Zygote as _};
use crosslane::{Error, Settings};
use crosslane_process::control::{ControlSocket, Request};
use crosslane_process::{Origin, Program, Source, Zygote, ZygoteOptions};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred};
use std::ffi::OsString;
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LOADED: &str = r#"{"op": "loaded", "functions": [], "runtime": "Test 1"}"#;

/// This variable is set if this program is a guest.
const GUEST: &str = "CROSSLANE_TEST_GUEST";

/// Starts a zygote that behaves in this way.
fn start(behaviour: &str) -> Result<Zygote, Error> {
    start_with(behaviour, Stop::default())
}

fn start_with(behaviour: impl Into<PathBuf>, stop: Stop) -> Result<Zygote, Error> {
    let program = std::env::current_exe().unwrap().display().to_string();
    let arguments = ["zygote::guest", "--exact", "--nocapture"].map(String::from);
    let program = ["env".to_owned(), format!("{GUEST}=1"), program];
    let origin = Origin::Process(Program {
        command: [&program[..], &arguments[..]].concat(),
        environment: Vec::new(),
        advice: "a test's",
    });
    let source = Source::File { path: behaviour.into() };
    let options = ZygoteOptions {
        load_timeout: Duration::from_secs(30),
        ring_size: 4096,
        spin: Duration::ZERO,
        ..ZygoteOptions::new(origin, source, &Settings::default())
    };
    Zygote::start(options, stop).map(|(zygote, _)| zygote)
}

/// A process that does not belong to the engine, in its own process group.
struct Stranger(Child);

impl Stranger {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").stdout(Stdio::null()).process_group(0).spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The guest that the tests start. It does nothing if it runs as a test.
#[test]
fn guest() {
    if std::env::var_os(GUEST).is_none() {
        return;
    }
    // SAFETY: the engine starts this program with this descriptor as its socket.
    let socket = unsafe { UnixStream::from_raw_fd(3) };
    let control = ControlSocket::new(socket.try_clone().unwrap());
    let say = |text: &str| {
        let framed = [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        (&socket).write_all(&framed).unwrap();
    };
    let Some((Request::Load { source: Source::File { path }, .. }, _)) = control.receive().unwrap() else {
        return;
    };
    let path = path.display().to_string();
    let (behaviour, detail) = path.split_once(' ').unwrap_or((&path, ""));
    match behaviour {
        "closes" => socket.shutdown(Shutdown::Both).unwrap(),
        "garbles" => say(detail),
        "boasts" => (&socket).write_all(&u32::MAX.to_le_bytes()).unwrap(),
        "chats" => (0..1_000_000).for_each(|lane| say(&format!(r#"{{"op": "forked", "lane": {lane}}}"#))),
        "shouts" => {
            for _ in 0..4 {
                // No reader can empty this pipe, because these threads write whenever there is room.
                std::thread::spawn(
                    || while rustix::io::write(rustix::stdio::stdout(), &[0; 4096]).is_ok() {},
                );
            }
            std::thread::sleep(Duration::from_millis(300));
            say(LOADED);
        }
        _ => say(LOADED),
    }
    if !["names", "forges", "hesitates", "hosts", "shouts", "silent", "stalls"].contains(&behaviour) {
        std::thread::sleep(Duration::from_secs(1000));
    }
    while let Some((request, descriptors)) = control.receive().unwrap() {
        let lane = match request {
            Request::Fork { lane, .. } => lane,
            Request::Unfork { lane } if behaviour == "silent" => {
                return std::fs::write(detail, lane.to_string()).unwrap();
            }
            Request::Unfork { .. } | Request::Load { .. } | Request::Zygote { .. } => continue,
        };
        match behaviour {
            "stalls" => std::thread::sleep(Duration::from_secs(1000)),
            // The zygote keeps the other end open, as a running lane does.
            "silent" => {
                std::mem::forget(descriptors[1].try_clone().unwrap());
                std::fs::write(detail, "forked").unwrap();
            }
            "hosts" | "shouts" => greet(&descriptors[1]),
            "hesitates" => {
                greet(&descriptors[1]);
                let text = format!(r#"{{"op": "forked", "lane": {lane}, "pid": 1}}"#);
                let framed = [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
                (&socket).write_all(&framed[..10]).unwrap();
                // These bytes do not fit into a pipe, so the write returns only after the engine has
                // read some.
                std::io::stdout().write_all(&[0; 1 << 20]).unwrap();
                (&socket).write_all(&framed[10..]).unwrap();
                continue;
            }
            _ => {}
        }
        if behaviour == "forges" {
            forge(&descriptors[1], detail.parse().unwrap());
        }
        let pid = if detail.is_empty() || behaviour == "silent" { "1" } else { detail };
        say(&format!(r#"{{"op": "forked", "lane": {lane}, "pid": {pid}}}"#));
    }
}

/// Greets the engine, so that this process is the lane's process.
fn greet(socket: &OwnedFd) {
    rustix::net::send(socket, b"h", SendFlags::NOSIGNAL).unwrap();
}

/// Greets the engine in the name of another process. The system allows this to its administrator.
fn forge(socket: &OwnedFd, pid: i32) {
    let credentials = UCred {
        pid: rustix::process::Pid::from_raw(pid).unwrap(),
        uid: rustix::process::getuid(),
        gid: rustix::process::getgid(),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmCredentials(credentials));
    let greeting = [rustix::io::IoSlice::new(b"h")];
    let _ = rustix::net::sendmsg(socket.as_fd(), &greeting, &mut control, SendFlags::NOSIGNAL);
}

#[test]
fn a_process_that_a_message_names_is_not_ended() {
    let _beside = beside();
    for behaviour in ["names", "forges"] {
        let mut stranger = Stranger::new();
        let mut zygote = start(&format!("{behaviour} {}", stranger.0.id())).unwrap();
        let booted = zygote.boot().map(drop);
        drop(zygote);
        // A killed process is seen as ended only a moment later.
        std::thread::sleep(Duration::from_millis(100));
        assert!(stranger.lives(), "{behaviour}: a process that is none of the engine's was killed");
        let error = booted.unwrap_err().to_string();
        assert!(error.starts_with("cannot start a worker: "), "{error}");
    }
}

#[test]
fn a_load_ends_when_its_zygote_closes_the_socket_and_lives_on() {
    let _beside = beside();
    let error = soon(|| start("closes").unwrap_err().to_string());
    assert!(error.contains("ended before it had loaded closes"), "{error}");
}

#[test]
fn a_file_whose_path_is_no_text_is_refused() {
    let _beside = beside();
    let path = OsString::from_vec(b"stalls\xff".to_vec());
    let error = soon(|| start_with(path, Stop::default()).unwrap_err().to_string());
    assert!(error.contains("its path is not UTF-8"), "{error}");
}

#[test]
fn a_load_ends_when_its_answer_cannot_be_read() {
    let _beside = beside();
    let garbled = [
        (r#"garbles {"op": "loaded", "functions": [{"timeout": Infinity}], "runtime": ""}"#, "line 1 column"),
        (
            r#"garbles {"op": "loaded", "functions": [{"retries": 1.5}], "runtime": ""}"#,
            "floating point `1.5`",
        ),
        ("garbles nothing of the kind", "what it answered cannot be read"),
        ("boasts", "it has 4294967295 bytes, and 64 MiB are the most"),
        ("chats", "answered out of turn"),
    ];
    for (behaviour, why) in garbled {
        let error = soon(move || start(behaviour).unwrap_err().to_string());
        assert!(error.contains(why), "{behaviour}: {error}");
        assert!(!error.contains("Answer"), "{error}");
    }
}

#[test]
fn the_log_is_read_while_an_answer_is_incomplete() {
    let _beside = beside();
    soon(|| start("hesitates").unwrap().boot().map(drop)).unwrap();
}

#[test]
fn a_pool_that_is_dropped_waits_for_no_boot() {
    let _beside = beside();
    soon(|| {
        let options = PoolOptions { warm: 1, idle_timeout: Duration::from_secs(60) };
        let (pool, ()) = Pool::start(options, |stop| Ok((start_with("stalls", stop)?, ()))).unwrap();
        let leaves_at_once = || true;
        let lane = pool.check_out(leaves_at_once).unwrap();
        assert!(lane.is_none(), "there is a lane that was never booted");
    });
}

#[test]
fn a_lane_that_does_not_greet_is_ended_by_its_zygote() {
    let _beside = beside();
    let told = std::env::temp_dir().join(format!("crosslane-unforked-{}", std::process::id()));
    let behaviour = format!("silent {}", told.display());
    let path = told.clone();
    soon(move || {
        let options = PoolOptions { warm: 1, idle_timeout: Duration::from_secs(60) };
        let (pool, ()) = Pool::start(options, move |stop| Ok((start_with(&*behaviour, stop)?, ()))).unwrap();
        while !path.exists() {
            std::thread::yield_now();
        }
        drop(pool);
    });
    let lane = std::fs::read_to_string(&told).unwrap();
    std::fs::remove_file(&told).unwrap();
    assert_eq!(lane, "1");
}

#[test]
fn a_lane_reports_the_end_of_a_host_that_another_boot_has_reaped() {
    let _beside = beside();
    let error = soon(|| {
        let mut zygote = start("hosts").unwrap();
        let mut lane = zygote.boot().unwrap();
        let host = rustix::process::Pid::from_raw(lane.process()).unwrap();
        rustix::process::kill_process(host, rustix::process::Signal::KILL).unwrap();
        // If the next boot found the process alive, it would ask it for a lane in vain.
        while lane.lives() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let other = zygote.boot().unwrap();
        assert_ne!(other.process(), lane.process());
        lane.check().unwrap_err().to_string()
    });
    assert!(error.contains("SIGKILL"), "{error}");
}
