//! The control socket of host lanes, for Ruby.

use crate::errors::io_error;
use crosslane_gvl as gvl;
use crosslane_process::control::{ControlSocket, Report, Request};
use magnus::{Error, IntoValue, Ruby, Value};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// `Crosslane::Native::Control`.
#[magnus::wrap(class = "Crosslane::Native::Control", free_immediately)]
pub(crate) struct Control(ControlSocket);

impl Control {
    /// Takes ownership of the descriptor.
    pub(crate) fn new(descriptor: i32) -> Self {
        // SAFETY: the caller gives the descriptor away.
        Self(ControlSocket::new(UnixStream::from(unsafe { OwnedFd::from_raw_fd(descriptor) })))
    }

    /// The next request: `[:load]`, `[:fork, lane, spin, memory, socket, log]`, `[:unfork, lane]`,
    /// or `[:refused, lane]` for a fork that was already refused. Returns nil when the engine has
    /// closed the socket.
    pub(crate) fn receive(&self) -> Result<Option<Value>, Error> {
        let ruby = Ruby::get().expect("with the GVL");
        let received = match self.0.receive() {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            received => received.map_err(io_error)?,
        };
        let Some((request, descriptors)) = received else { return Ok(None) };
        let message = match request {
            // Only a process can be a fork server.
            Request::Zygote { .. } => return Ok(None),
            Request::Load { .. } => gvl::made(|| (ruby.to_symbol("load"),).into_value_with(&ruby))?,
            Request::Fork { lane, spin_microseconds, .. } => {
                let Ok([memory, socket, log]) = <[OwnedFd; 3]>::try_from(descriptors) else {
                    self.unforked(lane, "the process has too few descriptors left".into())?;
                    return Ok(Some(gvl::made(|| (ruby.to_symbol("refused"), lane).into_value_with(&ruby))?));
                };
                let [memory, socket, log] = [memory, socket, log].map(OwnedFd::into_raw_fd);
                gvl::made(|| {
                    (ruby.to_symbol("fork"), lane, spin_microseconds, memory, socket, log)
                        .into_value_with(&ruby)
                })?
            }
            Request::Unfork { lane } => {
                gvl::made(|| (ruby.to_symbol("unfork"), lane).into_value_with(&ruby))?
            }
        };
        Ok(Some(message))
    }

    fn send(&self, report: &Report) -> Result<(), Error> {
        self.0.send(report).map_err(io_error)
    }

    /// Reports an empty list of functions: the engine knows the program's functions already.
    pub(crate) fn loaded(&self, runtime: String) -> Result<(), Error> {
        let functions = serde_json::Value::Array(Vec::new());
        self.send(&Report::Loaded { functions, runtime, files: None, reloads: false, sandboxed: false })
    }

    pub(crate) fn forked(&self, lane: u64) -> Result<(), Error> {
        self.send(&Report::Forked { lane })
    }

    pub(crate) fn unforked(&self, lane: u64, message: String) -> Result<(), Error> {
        self.send(&Report::Unforked { lane, message })
    }

    pub(crate) fn exited(&self, lane: u64, code: Option<i32>, signal: Option<i32>) -> Result<(), Error> {
        self.send(&Report::Exited { lane, code, signal })
    }
}
