//! The socket over which the engine controls the zygote.

use crosslane_process::control::ControlSocket;
use rustix::io::FdFlags;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Its descriptor.
pub(crate) const CONTROL: RawFd = 3;

pub(crate) fn control_socket() -> io::Result<ControlSocket> {
    // SAFETY: the engine started this process with the socket as this descriptor, which nothing
    // else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(CONTROL) };
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(ControlSocket::new(UnixStream::from(socket)))
}
