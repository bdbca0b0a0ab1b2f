//! The zygote's control socket. It carries JSON messages with their length in front, and some
//! descriptors.

use crate::files::Files;
use crate::guest::sandboxed;
use crate::source::Source;
use crosslane::{Failure, FunctionSpec, Sandbox, TypeNames, shortened};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// The most bytes of a message from a zygote. A longer one is garbage.
const LONGEST: u32 = 64 << 20;
/// How many bytes of a message are read at once.
const PIECE: usize = 16 << 10;
/// How often a wait checks for other reasons to end.
pub(crate) const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The most descriptors that come with a message.
const DESCRIPTORS: usize = 3;

/// A request of the engine to a zygote.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    /// Load the library; the first message.
    Load {
        /// The functions to load.
        source: Source,
        /// How long the load may take. The engine ends a zygote that takes much longer.
        seconds: f64,
        /// The database's own types.
        #[serde(default, skip_serializing_if = "TypeNames::is_empty")]
        types: TypeNames,
        /// What the library may do. The guest enters this sandbox before it runs anything of the
        /// library, or refuses the load.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<Sandbox>,
    },
    /// Import modules, and fork a zygote that has them. Two descriptors come with the message: the
    /// new zygote's control socket, and its log. A zygote whose first request is this one is a fork
    /// server, and gets no other requests.
    Zygote {
        /// The names of the modules. The fork server ignores those that it does not find.
        modules: Vec<String>,
    },
    /// Make a lane from the three descriptors that come with the message: memory, socket, log.
    Fork {
        /// The lane's number.
        lane: u64,
        /// How long the guest spins for a call before it sleeps.
        spin_microseconds: u64,
        /// Environment variables of the lane.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        environment: BTreeMap<String, String>,
        /// The index of the only function that the lane calls. The lane enters the sandbox of that
        /// function.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        function: Option<u32>,
    },
    /// End the process of a lane that did not greet its engine. The engine does not know that
    /// process.
    Unfork {
        /// The lane's number.
        lane: u64,
    },
}

/// An answer or a report of a zygote. A zygote sends the functions as any JSON. The engine parses
/// them as function specifications.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Report<Functions = serde_json::Value> {
    /// The library is loaded.
    Loaded {
        /// The functions, as `docs/protocol.md` describes them.
        functions: Functions,
        /// The guest and its version.
        runtime: String,
        /// The files that were run, if the functions come from files.
        files: Option<Files>,
        /// Whether each lane loads the library itself, which takes as long as the first load.
        #[serde(default)]
        reloads: bool,
        /// Whether the guest has entered the sandbox of the request.
        #[serde(default)]
        sandboxed: bool,
    },
    /// The library cannot be loaded.
    Failed {
        /// The reason.
        failure: Failure,
    },
    /// A lane was made.
    Forked {
        /// Its number.
        lane: u64,
    },
    /// A lane was not made.
    Unforked {
        /// Its number.
        lane: u64,
        /// The reason.
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
    /// A Ctrl-C in the terminal reached the zygote.
    Interrupted {
        /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
        at: u64,
    },
}

/// A report as the engine parses it.
pub(crate) type Answer = Report<Vec<FunctionSpec>>;

/// The descriptor of the control socket in a zygote.
pub const CONTROL: RawFd = 3;

/// The zygote's end of the control socket.
#[derive(Debug)]
pub struct ControlSocket(UnixStream);

impl ControlSocket {
    /// Wraps the socket that a zygote is started with.
    pub fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Takes the socket that the engine gave this process, [`CONTROL`].
    ///
    /// # Errors
    /// If there is no such descriptor.
    ///
    /// # Safety
    /// Nothing else may own this descriptor.
    pub unsafe fn inherited() -> io::Result<Self> {
        // SAFETY: the call reads no memory. If the descriptor is not open, it fails.
        rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(CONTROL) }, FdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is open, and the caller guarantees the rest.
        Ok(Self(UnixStream::from(unsafe { OwnedFd::from_raw_fd(CONTROL) })))
    }

    /// Answers the engine's first request with the reason why this program loads no library.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn refuse(&self, why: &str) -> io::Result<()> {
        self.receive()?;
        let failure = Failure { class: "Error".into(), message: why.into(), ..Failure::default() };
        self.send(&Report::Failed { failure })
    }

    /// Another handle of the same socket. Each message is sent with one write, so several threads
    /// may send.
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

    /// The first message of a zygote that a fork server has made: the kernel tells the engine which
    /// process it is from.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn greet(&self) -> io::Result<()> {
        Ok(crate::identity::greet(self.as_fd(), false)?)
    }

    /// Sends a report.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn send(&self, report: &Report) -> io::Result<()> {
        let framed = match report {
            // The texts of a failure may be longer than a message may be.
            Report::Failed { failure } => framed(&Report::<()>::Failed { failure: sandboxed::told(failure) }),
            report => framed(report),
        };
        (&self.0).write_all(&framed?)
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

/// Sends a request. While the zygote does not read, `go_on` is asked now and then whether to
/// continue.
pub(crate) fn send(
    socket: &UnixStream,
    request: &Request,
    fds: &[BorrowedFd<'_>],
    go_on: impl Fn() -> bool,
) -> io::Result<()> {
    let message = framed(request)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let mut sent = 0;
    while sent < message.len() {
        let part = [IoSlice::new(&message[sent..])];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket.as_fd(), &part, &mut control, flags) {
            Ok(count) => {
                sent += count;
                control.clear();
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if go_on() => {
                let _ = rustix::event::poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&GLANCE));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The answers of a zygote, collected from the pieces in which they come. No thread waits for the
/// rest of an answer.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    bytes: Vec<u8>,
}

/// The reason why there are no more answers.
#[derive(Debug)]
pub(crate) enum Silence {
    /// The zygote closed its end.
    Ended,
    /// The zygote wrote bytes that are no answer.
    Garbled(String),
}

impl Answers {
    /// Reads once, without waiting.
    pub(crate) fn read(&mut self, socket: &UnixStream) -> Result<(), Silence> {
        let mut piece = [0; PIECE];
        match rustix::net::recv(socket, &mut piece[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Silence::Ended),
            Ok((count, _)) => {
                let room = self.bytes.try_reserve(count);
                room.map_err(|_| Silence::Garbled("there is no memory for it".into()))?;
                self.bytes.extend_from_slice(&piece[..count]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Silence::Ended),
        }
    }

    /// The next answer that is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Answer>, Silence> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        if length > LONGEST {
            let most = LONGEST >> 20;
            return Err(Silence::Garbled(format!("it has {length} bytes, and {most} MiB are the most")));
        }
        let Some(text) = rest.get(..length as usize) else { return Ok(None) };
        let answer =
            serde_json::from_slice(text).map_err(|error| Silence::Garbled(shortened(error.to_string())))?;
        // This does not use `drain`, which would keep the memory of a long answer.
        self.bytes = self.bytes.split_off(4 + length as usize);
        Ok(Some(answer))
    }
}
