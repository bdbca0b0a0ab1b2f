//! Ways out of the host for code that has broken out of V8: system calls of a thread of the host, once
//! its library is loaded. Each is refused, with a sandbox and without one. As a check of the tests, each
//! leads out of a process that has not restricted itself.
//!
//! The ways aim at the process of the test, which stands for the engine. No way does harm if it leads
//! out: signals are 0, and files are those of the test.

mod calls;
mod place;

use calls::{WAYS, Way};
use crosslane::Sandbox;
use crosslane_js::host::confine;
use crosslane_process::Source;
use place::Place;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::Command;

/// Set in the process that tries the ways. No other test runs there, and so not V8, which does not survive
/// a fork.
const TRIES: &str = "CROSSLANE_TEST_WAYS_OUT";

/// Of these, a container, the kernel or the user's rights may refuse each without a filter.
const MAY_BE_REFUSED: &[&str] = &[
    "open by openat2",
    "memory of the engine",
    "trace the engine",
    "read memory of the engine",
    "write memory of the engine",
    "compare with the engine",
    "descriptor of the engine",
    "handle of a file",
    "attributes of a file",
    "watch a mount",
    "namespace of users",
    "namespace of mounts",
    "enter a namespace",
    "another root",
    "mount",
    "mount by descriptors",
    "key",
    "find a key",
    "ring of the kernel",
    "program in the kernel",
    "counters of the processor",
    "faults of memory",
    "rules of Landlock",
    "clone by clone3",
    "messages of POSIX",
    "requests of the kernel",
    "signal to all",
    "log of the kernel",
];

/// How a process restricts itself before it tries the ways.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Host {
    Free,
    WithoutSandbox,
    InSandbox,
}

#[test]
fn no_way_leads_out_of_the_host() {
    if std::env::var_os(TRIES).is_some() {
        return try_all();
    }
    let mut again = Command::new(std::env::current_exe().expect("the test's own program"));
    again.args(["ways_out::no_way_leads_out_of_the_host", "--exact", "--nocapture"]).env(TRIES, "");
    assert!(again.status().expect("a process").success());
}

fn try_all() {
    let place = Place::new();
    assert!(WAYS.len() >= 80, "{}", WAYS.len());
    for host in [Host::WithoutSandbox, Host::InSandbox] {
        let outcomes = outcomes(host, WAYS, &place);
        for ((name, _), outcome) in WAYS.iter().zip(outcomes) {
            assert!([libc::EPERM, libc::ENOSYS].contains(&outcome), "{host:?}: {name}: {outcome}");
        }
    }
    for way in WAYS {
        // A way may end its process, or make another program of it.
        let outcomes = outcomes(Host::Free, &[*way], &place);
        assert!(outcomes == [0] || MAY_BE_REFUSED.contains(&way.0), "{}: {outcomes:?}", way.0);
    }
}

/// The error of each way in a process of its own. 0 if it leads out.
fn outcomes(host: Host, ways: &[Way], place: &Place) -> Vec<i32> {
    let (reading, writing) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: the child has one thread, and the process has started no other one that holds a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(reading);
        restrict(host, place);
        let out = std::fs::File::from(writing);
        for (_, way) in ways {
            tell(&out, std::thread::scope(|scope| scope.spawn(|| way(place)).join()).unwrap_or(Err(-1)));
        }
        // SAFETY: the process ends without the destructors of the test.
        unsafe { libc::_exit(0) }
    }
    drop(writing);
    let told = answers(reading);
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    // A program that a way has become says nothing.
    if told.is_empty() {
        vec![if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -2 }]
    } else {
        told
    }
}

fn restrict(host: Host, place: &Place) {
    let source = Source::File { path: place.library.clone() };
    let sandbox = (host == Host::InSandbox).then(Sandbox::default);
    if host == Host::Free {
        return;
    }
    let sandboxed = confine::before_load(sandbox, &source, None).expect("this machine can have a sandbox");
    assert_eq!(sandboxed, host == Host::InSandbox);
    confine::after_load(sandboxed).expect("this machine can have a sandbox");
}

fn tell(mut out: &std::fs::File, outcome: Result<(), i32>) {
    // The process that listens notices if this fails.
    let _ = writeln!(out, "{}", outcome.err().unwrap_or(0));
}

fn answers(reading: OwnedFd) -> Vec<i32> {
    let lines = BufReader::new(std::fs::File::from(reading)).lines();
    lines.map(|line| line.expect("a line").parse().expect("a number")).collect()
}
