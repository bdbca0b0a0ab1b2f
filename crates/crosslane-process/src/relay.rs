//! The guest's side of a lane for who passes its messages on, and does not look at them.
//!
//! Two threads share it: one takes what the engine sends ([`Requests`]), the other gives it the answers ([`Replies`]).
//! Either may end the lane, and both find out.

use crate::lane::LAST_WORDS;
use crate::{EXTERNAL, INLINE, external, identity, is_ready};
use crosslane_ring::{Alarm, Consumer, Ends, MappedRing, Parked, Producer, ProgressWord, Spin};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendFlags, Shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How often a wait looks whether the engine lives.
const LOOK: Duration = Duration::from_millis(500);

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// What both threads use.
#[derive(Debug)]
pub struct Relay {
    socket: OwnedFd,
    ended: AtomicBool,
    alarm: Alarm<MappedRing>,
}

impl Relay {
    /// Opens a lane from the descriptors that the engine sent, and greets the engine.
    ///
    /// # Safety
    /// They must be those that an engine sent for one lane, and not have been opened before, in this process or
    /// another.
    ///
    /// # Errors
    /// If the memory is not a lane's, or the engine is gone.
    pub unsafe fn open(
        memory: OwnedFd,
        socket: OwnedFd,
        spin: Duration,
    ) -> io::Result<(Arc<Self>, Requests, Replies)> {
        // SAFETY: as the caller says.
        let Ends { producer, consumer, progress, .. } = unsafe { Ends::open(memory) }.map_err(broken)?;
        identity::greet(socket.as_fd(), false)?;
        let relay = Arc::new(Self { socket, ended: AtomicBool::new(false), alarm: consumer.alarm() });
        let spin = Spin(spin);
        let requests = Requests { relay: Arc::clone(&relay), consumer, spin };
        let replies = Replies { relay: Arc::clone(&relay), producer, progress, spin };
        Ok((relay, requests, replies))
    }

    /// Ends the lane; the engine's error says why.
    pub fn end(&self, why: &str) {
        if self.ended.swap(true, Relaxed) {
            return;
        }
        let end = (0..=why.len().min(LAST_WORDS)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.socket, &why.as_bytes()[..end], flags);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        self.alarm.sound();
    }

    /// Whether one of the sides has ended the lane.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed) || is_ready(&mut [PollFd::new(&self.socket, PollFlags::empty())])
    }
}

/// Becomes ready when the engine has ended the lane.
impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where the engine's messages come from.
#[derive(Debug)]
pub struct Requests {
    relay: Arc<Relay>,
    consumer: Consumer<MappedRing>,
    spin: Spin,
}

impl Requests {
    /// Waits for a message and gives it to `pass`. False when the lane has ended.
    ///
    /// # Errors
    /// If the engine broke the protocol; or that of `pass`.
    pub fn next(&mut self, pass: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<bool> {
        loop {
            if let Some(frame) = self.consumer.peek().map_err(broken)? {
                match frame.tag() {
                    // SAFETY: this side trusts its engine, which does not touch a published frame.
                    INLINE => pass(unsafe { self.consumer.bytes() })?,
                    EXTERNAL => {
                        let mut length = [0; 8];
                        frame.copy(&mut length);
                        let file = external::receive(self.relay.socket.as_fd())?;
                        pass(external::map(&file, u64::from_le_bytes(length))?.bytes())?;
                    }
                    tag => return Err(broken(format!("a frame with tag {tag}"))),
                }
                self.consumer.release();
                return Ok(true);
            }
            let stop = || self.relay.ended.load(Relaxed);
            let parked = self.consumer.wait_or(self.spin, LOOK, stop);
            if stop() || parked == Parked::TimedOut && self.relay.has_ended() {
                return Ok(false);
            }
        }
    }
}

/// Where the answers go.
#[derive(Debug)]
pub struct Replies {
    relay: Arc<Relay>,
    producer: Producer<MappedRing>,
    progress: ProgressWord,
    spin: Spin,
}

impl Replies {
    /// Where the engine looks how far a function is.
    pub fn progress(&self) -> &ProgressWord {
        &self.progress
    }

    /// Sends a message of so many bytes, which `write` writes. Waits for room. False when the lane has ended.
    ///
    /// # Errors
    /// If there is no memory for it, or the engine broke the protocol; or that of `write`: the lane is of no more use then.
    pub fn send(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let inline = length <= self.producer.most();
        let room = if inline { length } else { size_of::<u64>() };
        while self.producer.reserve(room).map_err(broken)?.is_none() {
            if self.producer.wait(self.spin, LOOK) == Parked::TimedOut && self.relay.has_ended() {
                return Ok(false);
            }
        }
        if inline {
            let Some(mut grant) = self.producer.reserve(length).map_err(broken)? else {
                return Err(broken("a ring that lost its room"));
            };
            write(grant.bytes())?;
            grant.commit(length, INLINE);
            return Ok(true);
        }
        let mut written = Ok(());
        let file = external::create(length, |bytes| written = write(bytes))?;
        written?;
        external::send(self.relay.socket.as_fd(), file.as_fd(), SendFlags::empty())?;
        match self.producer.push(&(length as u64).to_le_bytes(), EXTERNAL).map_err(broken)? {
            true => Ok(true),
            false => Err(broken("a ring that lost its room")),
        }
    }
}
