//! What a language does in its zygote.

use super::log::say;
use super::signals::readable;
use super::threads::other_threads;
use crate::declarations::Declared;
use crosslane::Failure;
use crosslane_process::{Files, Source};
use crosslane_sandbox::Runtime;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// A library that was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// Its functions: a list of the descriptions of `docs/protocol.md`, in the order of their
    /// indices.
    pub functions: serde_json::Value,
    /// The files that were run. `None` if the functions come from no file.
    pub files: Option<Files>,
}

impl Loaded {
    /// The functions of these files.
    pub fn new<Callee>(functions: &[Declared<Callee>], files: &[String]) -> Self {
        let specs: Vec<_> = functions.iter().map(|function| &function.spec).collect();
        let read: Vec<_> =
            files.iter().map(|file| (file.as_bytes(), fs::read(file).unwrap_or_default())).collect();
        let files = Files::of(read.iter().map(|(file, text)| (*file, &text[..])));
        Self { functions: serde_json::to_value(specs).unwrap_or_default(), files: Some(files) }
    }
}

/// A language whose libraries can be loaded, and forked.
pub trait Guest {
    /// The language's name for a fork.
    const FORK: &'static str = "fork";
    /// The signals that the zygote handles. A language that must hear of ended children itself
    /// leaves out SIGCHLD. Its own handler then writes to the bell.
    const SIGNALS: &'static [libc::c_int] = &[libc::SIGCHLD, libc::SIGINT];

    /// The language and its version, such as `Lua 5.4.4`.
    fn runtime(&self) -> String;

    /// Loads a library. The descriptor holds its serialised functions, if it has such.
    ///
    /// # Errors
    /// Why it cannot be loaded, as the engine's users should read it.
    fn load(&mut self, source: &Source, pickles: Option<&OwnedFd>) -> Result<Loaded, Failure>;

    /// The command of a zygote that loads the library in place of this one: a library may need another
    /// interpreter. None if this one loads it.
    ///
    /// # Errors
    /// Why the library cannot be loaded, as the engine's users should read it.
    fn elsewhere(&mut self, _source: &Source) -> Result<Option<Vec<OsString>>, Failure> {
        Ok(None)
    }

    /// What the language reads while functions run, in addition to the library's file and the sources
    /// beside it. The descriptor holds the library's serialised functions, if it has such.
    ///
    /// # Errors
    /// Why that is not known, as the engine's users should read it.
    fn reads(&mut self, pickles: Option<&OwnedFd>) -> Result<Runtime, Failure>;

    /// Makes the language tell the recorder of each variable of the environment that is read
    /// ([`crosslane_sandbox::recorder::note_variable`]).
    ///
    /// # Errors
    /// If the language has failed.
    fn note_variables(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Imports modules for the zygotes that this process will fork. Ignores those that it does not
    /// find.
    ///
    /// # Errors
    /// If the language has failed.
    fn import(&mut self, _modules: &[String]) -> io::Result<()> {
        Ok(())
    }

    /// Serves the calls of one lane until its engine closes it: [`crate::serve`], over the lane of
    /// these descriptors.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    fn serve(&mut self, memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<()>;

    /// Opens the language's own standard streams again if the file has closed them. Their
    /// descriptors are open.
    ///
    /// # Errors
    /// If the objects that the file has put in their place do not allow that.
    fn open_streams(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The names of the threads that the library has started. A fork does not have them.
    ///
    /// # Errors
    /// If the library does not allow to find out.
    fn lost_threads(&mut self) -> Result<Vec<String>, Failure> {
        Ok(other_threads())
    }

    /// The command that starts this zygote. More words follow, which go to [`crate::main`] or
    /// [`crate::live`].
    fn command(&self) -> Vec<OsString> {
        vec!["/proc/self/exe".into()]
    }

    /// Prepares for forks, once, what all lanes share. A byte in the bell ends a wait.
    ///
    /// # Errors
    /// If it cannot be done.
    fn settle(&mut self, _bell: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Waits until one of the descriptors can be read, or a signal has come. Returns which can be
    /// read. A language gives up its lock here, and runs delayed handlers of signals.
    ///
    /// # Errors
    /// The error that a handler of the library raised.
    fn wait(&mut self, fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
        readable(fds)
    }

    /// Forks. Returns 0 in the child.
    ///
    /// # Errors
    /// If the fork fails.
    fn fork(&mut self) -> io::Result<i32> {
        // SAFETY: the process has no other threads, or its lanes do not need them.
        match unsafe { libc::fork() } {
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(pid),
        }
    }

    /// Sets environment variables of a fork, before it is a lane.
    ///
    /// # Errors
    /// If the language does not allow that.
    fn set_environment(&mut self, variables: &BTreeMap<String, String>) -> io::Result<()> {
        // SAFETY: a fork has one thread.
        variables.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
        Ok(())
    }

    /// Makes a fork a lane. Its output goes to its own log already, and its library is loaded.
    ///
    /// # Errors
    /// If the library does not allow that.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Says in the log why a lane ends. Returns its exit code.
    fn explain(&mut self, error: io::Error) -> i32 {
        say(error);
        1
    }

    /// Flushes the standard streams.
    fn flush(&mut self) {
        let _ = io::stdout().flush();
        // SAFETY: a null pointer stands for all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
}
