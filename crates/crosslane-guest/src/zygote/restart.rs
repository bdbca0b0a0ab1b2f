//! The restart of a zygote whose library has started threads: the same program, with nothing
//! loaded.

use super::control::CONTROL;
use super::guest::Guest;
use super::log::say;
use crosslane::TypeNames;
use crosslane_process::Source;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The word on the command line of a restarted zygote. The descriptor of its [`Restart`] follows.
pub(crate) const RESTARTED: &str = "anew";

/// The state that a restarted zygote needs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Restart {
    pub(crate) source: Source,
    pub(crate) types: TypeNames,
    /// The descriptor of the serialised functions.
    pub(crate) pickles: Option<i32>,
    /// The identity of what was loaded ([`super::load::identity`]).
    pub(crate) loaded: String,
}

/// Reads the state that the zygote has left in a file in memory before its restart.
pub(crate) fn read_restart(descriptor: &str) -> io::Result<Restart> {
    let descriptor = descriptor.parse().map_err(io::Error::other)?;
    // SAFETY: the process that became this one left the descriptor open for it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    serde_json::from_reader(io::BufReader::new(file)).map_err(io::Error::other)
}

/// Becomes a zygote that has loaded nothing, and whose lanes load the library. All that was loaded
/// here is gone. Returns only if that is not possible.
pub(crate) fn restart(
    guest: &mut impl Guest,
    source: Source,
    types: TypeNames,
    pickles: Option<&OwnedFd>,
    loaded: String,
    environment: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
) {
    guest.flush();
    let words = guest.command();
    let Some((program, arguments)) = words.split_first() else { return };
    let state = Restart { source, types, pickles: pickles.map(AsRawFd::as_raw_fd), loaded };
    // The types of a database may be longer than an argument of a program can be.
    let file = match memory_file(&state) {
        Ok(file) => file,
        Err(error) => return say(format_args!("the zygote cannot start itself anew: {error}")),
    };
    // SAFETY: the descriptor is the control socket, which stays open.
    let control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
    let inherit = |flags: FdFlags| {
        for descriptor in [Some(control), pickles.map(AsFd::as_fd), Some(file.as_fd())].into_iter().flatten()
        {
            let _ = rustix::io::fcntl_setfd(descriptor, flags);
        }
    };
    inherit(FdFlags::empty());
    let mut command = Command::new(program);
    command.args(arguments).arg(RESTARTED).arg(file.as_raw_fd().to_string()).env_clear().envs(environment);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    say(format_args!("the zygote cannot start itself anew: {}", command.exec()));
    inherit(FdFlags::CLOEXEC);
}

/// A file in memory for the restarted zygote.
fn memory_file(state: &Restart) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("anew", rustix::fs::MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&file, state)?;
    file.rewind()?;
    Ok(file)
}
