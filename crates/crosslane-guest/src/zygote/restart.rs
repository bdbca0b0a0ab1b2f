//! A zygote that becomes another program: the same one with nothing loaded, if its library has started
//! threads, or the one that its library needs.

use super::control::CONTROL;
use super::guest::Guest;
use super::log::say;
use crosslane::{Sandbox, TypeNames};
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

/// The word on the command line of a zygote that has taken the place of another one before the load.
/// The descriptor of its [`Restart`] follows.
pub(crate) const INSTEAD: &str = "instead";

/// The state that a restarted zygote needs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Restart {
    pub(crate) source: Source,
    pub(crate) types: TypeNames,
    /// The descriptor of the serialised functions.
    pub(crate) pickles: Option<i32>,
    /// The identity of what was loaded ([`super::load::identity`]). Empty before the load.
    pub(crate) loaded: String,
    /// What the library may do. A program that takes the place of another one before the load enters
    /// this sandbox. A restarted one is in it already.
    pub(crate) sandbox: Option<Sandbox>,
}

impl Restart {
    /// The functions that were serialised.
    ///
    /// # Errors
    /// If they are not there.
    pub(crate) fn take_pickles(&mut self) -> io::Result<Option<OwnedFd>> {
        // SAFETY: the process that became this one left the descriptor open for it.
        let pickles = self.pickles.take().map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        if let Some(pickles) = &pickles {
            rustix::io::fcntl_setfd(pickles, FdFlags::CLOEXEC)?;
        }
        Ok(pickles)
    }
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
    state: Restart,
    pickles: Option<&OwnedFd>,
    environment: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
) {
    let change = |command: &mut Command| {
        command.env_clear().envs(environment);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
    };
    let words = guest.command();
    let why = become_program(guest, &words, RESTARTED, state, pickles, change);
    say(format_args!("the zygote cannot start itself anew: {why}"));
}

/// Becomes a program that is a zygote, and tells it `word` and the state. Returns only if that is not
/// possible, with the reason.
pub(crate) fn become_program(
    guest: &mut impl Guest,
    words: &[OsString],
    word: &str,
    mut state: Restart,
    pickles: Option<&OwnedFd>,
    change: impl FnOnce(&mut Command),
) -> io::Error {
    guest.flush();
    let Some((program, arguments)) = words.split_first() else { return io::ErrorKind::NotFound.into() };
    state.pickles = pickles.map(AsRawFd::as_raw_fd);
    // The types of a database may be longer than an argument of a program can be.
    let file = match memory_file(&state) {
        Ok(file) => file,
        Err(error) => return error,
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
    command.args(arguments).arg(word).arg(file.as_raw_fd().to_string());
    change(&mut command);
    let error = command.exec();
    inherit(FdFlags::CLOEXEC);
    error
}

/// A file in memory for the restarted zygote.
fn memory_file(state: &Restart) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("anew", rustix::fs::MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&file, state)?;
    file.rewind()?;
    Ok(file)
}
