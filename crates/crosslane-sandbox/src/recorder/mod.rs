//! Records what a library touches, for a first draft of what its sandbox allows (`crosslane sandbox
//! run`). It forbids nothing, and protects from nothing.
//!
//! # Protocol
//! 1. The program that the engine is in sets the variable [`VARIABLE`] to an [`Order`]. So no statement of
//!    SQL can ask for a recording.
//! 2. Before it loads the library, its process sends the engine what its language reads, as JSON in
//!    memory, and then the descriptor of its filter. From then on the kernel hands calls that open or
//!    change files, run programs or connect, to the engine, and those that no sandbox allows.
//! 3. A thread of the engine runs [`Recorder::serve`]. It copies paths and addresses out of the caller's
//!    memory, notes what a sandbox would not allow by itself, and lets the kernel run the call. Another
//!    thread of the caller may change its memory in between, so that the kernel does something else.
//! 4. The notes are lines of JSON in a file: `{"kind": K, "what": W, "network": N}`. K is `read`, `write`,
//!    `run` (W is a path without links), `host` (`api.example.com:443`), `name` (of a host that was asked
//!    for), `variable`, `fork` (a worker has made a process), or `never` (no sandbox allows it; W says what it
//!    is). N, if true: a sandbox with a network allows it. A last line of the kind `full` says that there was
//!    more.
//!
//! # Names of hosts
//! The engine answers questions for names, as the [`crate::broker`] does. So `/etc/hosts` and services
//! that resolve names cannot be opened.
//!
//! # Variables
//! The kernel does not see which variables of the environment are read. Guests see it, and call
//! [`note_variable`], which opens a file that cannot exist.

mod files;
mod notes;
mod serve;

pub use serve::Recorder;

use crate::broker::listener::{listen, probe};
use crate::{Runtime, calls, scope};
use rustix::fs::MemfdFlags;
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The variable of the engine's environment that has the order, as JSON.
pub const VARIABLE: &str = "CROSSLANE_RECORD";
/// What the path begins with that a guest opens to note a variable. The rest is the variable's name.
const VARIABLES: &str = "/dev/null/crosslane/variables/";

/// An order to record a library.
#[derive(Debug, Deserialize)]
pub struct Order {
    /// The library's file.
    pub file: PathBuf,
    /// The file that gets the notes.
    pub notes: PathBuf,
}

impl Order {
    /// The order that this process has, if it has one.
    #[must_use]
    pub fn given() -> Option<Self> {
        serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()
    }
}

/// Tells the recorder that a variable is read. Without a recorder, this does nothing.
pub fn note_variable(name: &OsStr) {
    let mut path = OsString::from(VARIABLES);
    path.push(name);
    let _ = File::open(path);
}

/// Makes the kernel hand the calls of this process to the engine.
pub(crate) fn enter(runtime: &Runtime, hand_over: impl Fn(OwnedFd) -> io::Result<()>) -> Result<(), String> {
    // As for all files without a sandbox. Before Linux 6.12 this is not possible.
    let _ = scope::keep_to_own_processes();
    let sent = memory_file(runtime).and_then(|file| hand_over(file.into()));
    let filter = calls::handing_over(calls::telling())?;
    let listener = sent.and_then(|()| listen(&filter, libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV));
    let handed = listener.and_then(hand_over);
    handed.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "this container watches system calls itself, so that Crosslane cannot record them: run \
                              the command outside of it (EBUSY)"
                .to_owned()
        }
        _ => format!("seccomp: {error}"),
    })?;
    probe()
}

/// A file in memory with what the language reads.
fn memory_file(runtime: &Runtime) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("runtime", MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&file, runtime)?;
    file.rewind()?;
    Ok(file)
}
