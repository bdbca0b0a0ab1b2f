//! The zygote's control socket: JSON messages behind their length, some with descriptors.

use crate::Source;
use crosslane::{Failure, FunctionSpec};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A message of a zygote longer than this is garbage.
const LONGEST: u32 = 64 << 20;
/// Descriptors that come with a message.
const DESCRIPTORS: usize = 3;

/// What the engine asks a zygote.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    /// Load the library; the first message.
    Load {
        /// What to load.
        source: Source,
        /// How long it may take. The engine ends a zygote that takes much longer.
        seconds: f64,
    },
    /// Make a lane of the three descriptors that come with the message: memory, socket, log.
    Fork {
        /// The lane's number.
        lane: u64,
        /// How long the guest spins for a call before it sleeps.
        spin_microseconds: u64,
    },
}

/// What a zygote answers, or reports.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Answer {
    Loaded { functions: Vec<FunctionSpec>, runtime: String },
    Failed { failure: Failure },
    Forked { lane: u64, pid: i32 },
    Unforked { lane: u64, message: String },
    Exited { lane: u64, code: Option<i32>, signal: Option<i32> },
    Interrupted,
}

/// The same, as a zygote sends it.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Report<'a> {
    /// The library is loaded.
    Loaded {
        /// The functions, as `docs/protocol.md` describes them.
        functions: serde_json::Value,
        /// The guest and its version.
        runtime: String,
    },
    /// The library cannot be loaded.
    Failed {
        /// Why.
        failure: &'a Failure,
    },
    /// A lane was made.
    Forked {
        /// Its number.
        lane: u64,
        /// Its process; the zygote's own for lanes that are its threads.
        pid: i32,
    },
    /// A lane was not made.
    Unforked {
        /// Its number.
        lane: u64,
        /// Why.
        message: String,
    },
    /// How a lane ended: an exit code, or the number of a signal.
    Exited {
        /// Its number.
        lane: u64,
        /// The exit code.
        code: Option<i32>,
        /// The signal.
        signal: Option<i32>,
    },
    /// The terminal's Ctrl-C reached the zygote.
    Interrupted,
}

/// The zygote's end of the control socket.
#[derive(Debug)]
pub struct ControlSocket(UnixStream);

impl ControlSocket {
    /// The socket that a zygote is started with.
    pub fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Another handle of the same socket. Each message is sent with one write, so that several threads may
    /// send.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// The next request and its descriptors; `None` when the engine has closed the socket.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn receive(&self) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
        let mut fds = Vec::new();
        let mut length = [0; 4];
        if !self.fill(&mut length, &mut fds)? {
            return Ok(None);
        }
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        if !self.fill(&mut text, &mut fds)? {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&text)?, fds)))
    }

    fn fill(&self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
        let mut done = 0;
        while done < buffer.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut part = [IoSliceMut::new(&mut buffer[done..])];
            match rustix::net::recvmsg(&self.0, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) if message.bytes == 0 => return Ok(false),
                Ok(message) => done += message.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
        }
        Ok(true)
    }

    /// Sends a report.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn send(&self, report: &Report<'_>) -> io::Result<()> {
        (&self.0).write_all(&framed(report)?)
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn framed(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(message)?;
    let mut framed = (text.len() as u32).to_le_bytes().to_vec();
    framed.extend_from_slice(&text);
    Ok(framed)
}

pub(crate) fn send(socket: &UnixStream, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let message = framed(request)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
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
