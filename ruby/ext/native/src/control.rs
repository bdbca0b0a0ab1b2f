//! The zygote's control socket, as Ruby sees it.

use crate::serve::io_error;
use crosslane::Failure;
use crosslane_process::Source;
use crosslane_process::control::{ControlSocket, Report, Request};
use magnus::{Error, IntoValue, Ruby, Value};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// `Crosslane::Native::Control`.
#[magnus::wrap(class = "Crosslane::Native::Control", free_immediately)]
pub(crate) struct Control(ControlSocket);

impl Control {
    /// Takes the descriptor.
    pub(crate) fn new(descriptor: i32) -> Self {
        // SAFETY: the caller gives the descriptor away.
        Self(ControlSocket::new(UnixStream::from(unsafe { OwnedFd::from_raw_fd(descriptor) })))
    }

    /// The next request: `[:load, kind, path or name, seconds]`, or `[:fork, lane, spin, memory, socket, log]`;
    /// nil when the engine has closed the socket.
    pub(crate) fn receive(&self) -> Result<Option<Value>, Error> {
        let ruby = Ruby::get().expect("with the GVL");
        let received = match self.0.receive() {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            received => received.map_err(io_error)?,
        };
        let Some((request, descriptors)) = received else { return Ok(None) };
        let message = match request {
            Request::Load { source, seconds } => {
                let (kind, name) = match source {
                    Source::File { path } => ("file", path.display().to_string()),
                    Source::Thread { name } => ("thread", name),
                    Source::Pickle { name, .. } => ("pickle", name),
                };
                (ruby.to_symbol("load"), kind, name, seconds).into_value_with(&ruby)
            }
            Request::Fork { lane, spin_microseconds } => {
                let Ok([memory, socket, log]) = <[OwnedFd; 3]>::try_from(descriptors) else {
                    return Err(crate::argument_error("a fork without its descriptors"));
                };
                let [memory, socket, log] = [memory, socket, log].map(OwnedFd::into_raw_fd);
                (ruby.to_symbol("fork"), lane, spin_microseconds, memory, socket, log).into_value_with(&ruby)
            }
        };
        Ok(Some(message))
    }

    fn send(&self, report: &Report<'_>) -> Result<(), Error> {
        self.0.send(report).map_err(io_error)
    }

    /// `functions` is JSON.
    pub(crate) fn loaded(&self, functions: String, runtime: String) -> Result<(), Error> {
        let functions = serde_json::from_str(&functions).map_err(crate::argument_error)?;
        self.send(&Report::Loaded { functions, runtime })
    }

    pub(crate) fn failed(&self, class: String, message: String, traceback: String) -> Result<(), Error> {
        let failure = Failure { class, message, traceback, ..Failure::default() };
        self.send(&Report::Failed { failure: &failure })
    }

    pub(crate) fn forked(&self, lane: u64, pid: i32) -> Result<(), Error> {
        self.send(&Report::Forked { lane, pid })
    }

    pub(crate) fn unforked(&self, lane: u64, message: String) -> Result<(), Error> {
        self.send(&Report::Unforked { lane, message })
    }

    pub(crate) fn exited(&self, lane: u64, code: Option<i32>, signal: Option<i32>) -> Result<(), Error> {
        self.send(&Report::Exited { lane, code, signal })
    }

    pub(crate) fn interrupted(&self) -> Result<(), Error> {
        self.send(&Report::Interrupted)
    }
}
