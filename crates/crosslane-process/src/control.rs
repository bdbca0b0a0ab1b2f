//! The zygote's control socket: JSON messages behind their length, some with descriptors.

use crosslane::{Failure, FunctionSpec};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A message of a zygote longer than this is garbage.
const LONGEST: u32 = 64 << 20;

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Request<'a> {
    /// Load the library; the first message.
    Load { source: &'a crate::Source },
    /// Make a lane of the three descriptors that come with the message: memory, socket, log.
    Fork {
        lane: u64,
        /// How long the guest spins for a call before it sleeps.
        spin_microseconds: u64,
    },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Answer {
    Loaded {
        functions: Vec<FunctionSpec>,
        runtime: String,
    },
    Failed {
        failure: Failure,
    },
    Forked {
        lane: u64,
        pid: i32,
    },
    Unforked {
        lane: u64,
        message: String,
    },
    /// How a lane's process ended: an exit code, or the number of a signal.
    Exited {
        lane: u64,
        code: Option<i32>,
        signal: Option<i32>,
    },
    /// The terminal's Ctrl-C reached the zygote.
    Interrupted,
}

pub(crate) fn send(socket: &UnixStream, request: &Request<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(request)?;
    let mut message = (text.len() as u32).to_le_bytes().to_vec();
    message.extend_from_slice(&text);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let mut sent = 0;
    while sent < message.len() {
        let part = [IoSlice::new(&message[sent..])];
        sent += rustix::net::sendmsg(socket.as_fd(), &part, &mut control, SendFlags::NOSIGNAL)?;
        control.clear();
    }
    Ok(())
}

pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Answer> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut text = vec![0; length as usize];
    socket.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
