//! What a language says of its zygote.

use super::log::say;
use super::signals::readable;
use super::threads::other_threads;
use crate::declarations::Declared;
use crosslane::Failure;
use crosslane_process::{Source, control};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// What a library says of itself.
#[derive(Debug)]
pub struct Loaded {
    /// Its functions: a list of what `docs/protocol.md` says of each, in the order of their indices.
    pub functions: serde_json::Value,
    /// What tells the text that was run from any other ([`control::text`]); `None` if it cannot change.
    pub text: Option<String>,
}

impl Loaded {
    /// The functions of files that were read.
    pub fn new<Callee>(functions: &[Declared<Callee>], files: &[String]) -> Self {
        let specs: Vec<_> = functions.iter().map(|function| &function.spec).collect();
        let read: Vec<_> =
            files.iter().map(|file| (file.as_bytes(), fs::read(file).unwrap_or_default())).collect();
        let text = control::text(read.iter().map(|(file, text)| (*file, &text[..])));
        Self { functions: serde_json::to_value(specs).unwrap_or_default(), text: Some(text) }
    }
}

/// A language whose libraries can be loaded, and forked.
pub trait Guest {
    /// What the language calls its fork.
    const FORK: &'static str = "fork";
    /// The signals that the zygote handles. If a language must hear of ended children itself, SIGCHLD is not one of them,
    /// and the language's own handler rings the bell.
    const SIGNALS: &'static [libc::c_int] = &[libc::SIGCHLD, libc::SIGINT];

    /// The language and its version, such as `Lua 5.4.4`.
    fn runtime(&self) -> String;

    /// Loads a library, whose serialised functions, if it has such, are in the descriptor.
    ///
    /// # Errors
    /// Why it cannot be loaded, as the engine's users should read it.
    fn load(&mut self, source: &Source, pickles: Option<&OwnedFd>) -> Result<Loaded, Failure>;

    /// Serves the calls of one lane until its engine closes it: [`crate::serve`], over the lane of these descriptors.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    fn serve(&mut self, memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<()>;

    /// Makes the language's own standard streams anew if the file has closed them. Their descriptors are open.
    ///
    /// # Errors
    /// If what the file has put in their place keeps it from that.
    fn open_streams(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The names of the threads that the library has started, and that a fork would miss.
    ///
    /// # Errors
    /// If the library keeps that from being found out.
    fn lost_threads(&mut self) -> Result<Vec<String>, Failure> {
        Ok(other_threads())
    }

    /// The words that start this zygote; more follow, and go to [`crate::main`] or [`crate::live`].
    fn command(&self) -> Vec<OsString> {
        vec!["/proc/self/exe".into()]
    }

    /// Prepares for forks, once: what all lanes share. A byte that is written to the bell ends a wait.
    ///
    /// # Errors
    /// If it cannot be done.
    fn settle(&mut self, _bell: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Waits until one of the descriptors can be read, or a signal has come, and says which can be. A language that
    /// has a lock gives it up here, and one that runs handlers of signals later runs them.
    ///
    /// # Errors
    /// What a handler of the library raised.
    fn wait(&mut self, fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
        readable(fds)
    }

    /// Forks: 0 in the child.
    ///
    /// # Errors
    /// If there is none.
    fn fork(&mut self) -> io::Result<i32> {
        // SAFETY: the process has no other threads, or those are of no use to its lanes.
        match unsafe { libc::fork() } {
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(pid),
        }
    }

    /// Makes a fork a lane of its own: what it prints goes to its own log now, and its library is loaded.
    ///
    /// # Errors
    /// If the library keeps it from that.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Says in the log why a lane ends, and which exit code it ends with.
    fn explain(&mut self, error: io::Error) -> i32 {
        say(error);
        1
    }

    /// Writes what streams still hold.
    fn flush(&mut self) {
        let _ = io::stdout().flush();
        // SAFETY: a null pointer stands for all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
}
