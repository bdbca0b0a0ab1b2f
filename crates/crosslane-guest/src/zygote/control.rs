//! The socket over which the engine controls the zygote.

pub(crate) use crosslane_process::control::CONTROL;
use crosslane_process::control::ControlSocket;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

pub(crate) fn control_socket() -> io::Result<ControlSocket> {
    // SAFETY: the engine started this process with the socket as this descriptor, which nothing
    // else owns.
    unsafe { ControlSocket::inherited() }
}

/// Puts another socket in the place of the control socket.
pub(crate) fn replace_control_socket(socket: &OwnedFd, survives_exec: bool) -> io::Result<()> {
    let flags = if survives_exec { 0 } else { libc::O_CLOEXEC };
    // SAFETY: both numbers are open. The owner of `CONTROL` owns the new socket from here on.
    match unsafe { libc::dup3(socket.as_raw_fd(), CONTROL, flags) } {
        CONTROL => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
