//! The guest's side of a process lane, for guests of any language.

use crate::{EXTERNAL, INLINE, external, identity, is_ready};
use crosslane::batch::{self, Column, Encode, FAILURE, Header, Plan, RESULT};
use crosslane::stats::now;
use crosslane::{DataType, Failure, Leniency, Verdict};
use crosslane_ring::{Alarm, Ends, MappedRing, Parked, ProgressWord, Spin};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How often a waiting guest looks whether its engine lives. (The kernel kills it too, if its
/// zygote ends.)
const LOOK: Duration = Duration::from_secs(1);

/// A guest's end of its lane.
#[derive(Debug)]
pub struct GuestLane {
    ends: Ends,
    socket: OwnedFd,
    spin: Spin,
    /// The current call's message, if it is none of the ring's.
    external: Option<external::MappedFile>,
}

/// A call to be answered. Its arguments are in [`GuestLane::columns`].
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The request's header.
    pub header: Header,
    /// When the guest took it.
    taken: u64,
}

impl Call {
    /// The same call, for an answer with another number of rows (a table function's).
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.header.rows = rows as u32;
        self
    }

    fn reply(&self, kind: u32) -> Header {
        Header {
            kind,
            function: self.header.function,
            sequence: self.header.sequence,
            rows: self.header.rows,
            taken: self.taken,
            done: now(),
            row: u32::MAX,
            ..Header::default()
        }
    }
}

/// How a wait for a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Next {
    /// With a call.
    Call(Call),
    /// The engine has closed the lane.
    Closed,
    /// It was stopped.
    Stopped,
}

/// What happened to the rows of a call beside their results.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mishaps {
    /// Rows that became NULL because of `on_error = null`.
    pub errors: u32,
    /// Calls that were tried again.
    pub retries: u32,
}

impl Mishaps {
    /// What becomes of `rows` whose call failed, after `tries` more than the first; it counts.
    ///
    /// # Errors
    /// With `error`, if there is no further try and the rows do not become NULL.
    #[inline]
    pub fn judge<E>(
        &mut self,
        leniency: Leniency,
        error: E,
        tries: &mut u32,
        rows: usize,
    ) -> Result<Verdict, E> {
        let verdict = leniency.judge(error, *tries)?;
        match verdict {
            Verdict::Again(_) => {
                *tries += 1;
                self.retries += 1;
            }
            Verdict::Null => self.errors += rows as u32,
        }
        Ok(verdict)
    }
}

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl GuestLane {
    /// Opens a lane from the descriptors that the engine sent, and greets the engine: the process that calls this is
    /// the lane's.
    ///
    /// # Safety
    /// They must be those that an engine sent for one lane, and not have been opened before, in this process or
    /// another.
    ///
    /// # Errors
    /// If the memory is not a lane's, or the engine is gone.
    pub unsafe fn open(memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<Self> {
        // SAFETY: as the caller says.
        let ends = unsafe { Ends::open(memory) }.map_err(broken)?;
        identity::greet(socket.as_fd())?;
        Ok(Self { ends, socket, spin: Spin(spin), external: None })
    }

    /// Waits for the next call; `None` when the engine has closed the lane.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn next_call(&mut self) -> io::Result<Option<Call>> {
        match self.next_call_or(|| false)? {
            Next::Call(call) => Ok(Some(call)),
            Next::Closed | Next::Stopped => Ok(None),
        }
    }

    /// Waits for the next call, or until `stop` says so; who makes it say so must then sound [`GuestLane::alarm`], or
    /// interrupt the thread with a signal.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn next_call_or(&mut self, stop: impl Fn() -> bool) -> io::Result<Next> {
        let taken = loop {
            if let Some(frame) = self.ends.consumer.peek().map_err(broken)? {
                let taken = now();
                self.external = match frame.tag() {
                    INLINE => None,
                    EXTERNAL => {
                        let mut length = [0; 8];
                        frame.copy(&mut length);
                        let file = external::receive(self.socket.as_fd())?;
                        Some(external::map(&file, u64::from_le_bytes(length))?)
                    }
                    tag => return Err(broken(format!("a frame with tag {tag}"))),
                };
                break taken;
            }
            let parked = self.ends.consumer.wait_or(self.spin, LOOK, &stop);
            if stop() {
                return Ok(Next::Stopped);
            }
            if parked == Parked::TimedOut && self.engine_is_gone() {
                return Ok(Next::Closed);
            }
        };
        let header = batch::header(self.bytes()).map_err(broken)?;
        self.ends.progress.set(header.sequence as u32, u32::MAX);
        Ok(Next::Call(Call { header, taken }))
    }

    /// A way to end the wait for the next call from another thread.
    pub fn alarm(&self) -> Alarm<MappedRing> {
        self.ends.consumer.alarm()
    }

    fn engine_is_gone(&self) -> bool {
        is_ready(&mut [PollFd::new(&self.socket, PollFlags::empty())])
    }

    fn bytes(&self) -> &[u8] {
        match &self.external {
            // SAFETY: a guest trusts its engine, which does not touch a published frame.
            None => unsafe { self.ends.consumer.bytes() },
            Some(external) => external.bytes(),
        }
    }

    /// The arguments of the current call, in place: valid until it is answered.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn columns<'a>(&'a self, types: impl Iterator<Item = &'a DataType>) -> io::Result<Vec<Column<'a>>> {
        batch::columns(self.bytes(), types).map_err(broken)
    }

    /// The types of the arguments of the current call, if its function takes any: for [`crosslane::Signature::for_types`].
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn types(&self, call: &Call) -> io::Result<Option<&str>> {
        if call.header.types == 0 {
            return Ok(None);
        }
        batch::types(self.bytes()).map_err(broken)
    }

    /// Where progress is reported.
    pub fn progress(&self) -> &ProgressWord {
        &self.ends.progress
    }

    /// Waits until the results fit into the ring, for guests that give up a lock meanwhile. The arguments are
    /// gone then.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn wait_for_room(&mut self, size: usize) -> io::Result<()> {
        self.release();
        if size <= self.ends.producer.most() {
            self.make_room(size)?;
        }
        Ok(())
    }

    /// Answers the current call with its results, or with a failure if there is no memory for them.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn succeed(&mut self, call: Call, results: &dyn Encode, mishaps: Mishaps) -> io::Result<()> {
        match self.offer(call, results, mishaps)? {
            Ok(()) => Ok(()),
            Err(failure) => self.fail(call, &failure, None),
        }
    }

    /// As [`GuestLane::succeed`], but where there is no memory the failure is given to the caller, and the call is
    /// still to be answered.
    ///
    /// # Errors
    /// As [`GuestLane::succeed`].
    pub fn offer(
        &mut self,
        call: Call,
        results: &dyn Encode,
        mishaps: Mishaps,
    ) -> io::Result<Result<(), Failure>> {
        let mut plan = Plan::default();
        results.plan(&mut plan);
        let reply = Header { errors: mishaps.errors, retries: mishaps.retries, ..call.reply(RESULT) };
        let size = plan.size();
        let write = |frame: &mut [u8]| results.write(&mut plan.start(frame, reply));
        if size <= self.ends.producer.most() {
            return self.send(size, write).map(Ok);
        }
        match external::create(size, write) {
            Ok(file) => self.send_file(size, &file).map(Ok),
            Err(error) => {
                let message = format!("there is no memory for results of {size} bytes: {error}");
                Ok(Err(Failure { class: "NoMemory".into(), message, ..Failure::default() }))
            }
        }
    }

    /// Answers the current call with an exception, for a row if one is to blame. Long texts are cut.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn fail(&mut self, call: Call, failure: &Failure, row: Option<usize>) -> io::Result<()> {
        let text = serde_json::to_vec(&failure.bounded())?;
        let reply = Header { row: row.map_or(u32::MAX, |row| row as u32), ..call.reply(FAILURE) };
        let frame = batch::failure_frame(reply, &text);
        if frame.len() <= self.ends.producer.most() {
            return self.send(frame.len(), |bytes| bytes.copy_from_slice(&frame));
        }
        let file = external::create(frame.len(), |bytes| bytes.copy_from_slice(&frame))?;
        self.send_file(frame.len(), &file)
    }

    fn send(&mut self, size: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        self.release();
        self.make_room(size)?;
        let Some(mut grant) = self.ends.producer.reserve(size).map_err(broken)? else {
            return Err(broken("a ring that lost its room"));
        };
        write(grant.bytes());
        grant.commit(size, INLINE);
        Ok(())
    }

    fn send_file(&mut self, size: usize, file: &OwnedFd) -> io::Result<()> {
        self.release();
        let announcement = (size as u64).to_le_bytes();
        self.make_room(announcement.len())?;
        external::send(self.socket.as_fd(), file.as_fd(), SendFlags::empty())?;
        match self.ends.producer.push(&announcement, EXTERNAL).map_err(broken)? {
            true => Ok(()),
            false => Err(broken("a ring that lost its room")),
        }
    }

    /// Ends the use of the arguments: they are no longer needed, and the engine may wait for their space.
    fn release(&mut self) {
        self.external = None;
        self.ends.consumer.release();
    }

    /// Waits until the reply ring has room for a frame of so many bytes.
    fn make_room(&mut self, size: usize) -> io::Result<()> {
        while self.ends.producer.reserve(size).map_err(broken)?.is_none() {
            if self.ends.producer.wait(self.spin, LOOK) == Parked::TimedOut && self.engine_is_gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    }
}
