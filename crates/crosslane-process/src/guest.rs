//! The guest's side of a process lane, for guests of any language.

use crate::{EXTERNAL, INLINE, external};
use crosslane::batch::{self, Column, Encode, FAILURE, Header, Plan, RESULT, Trust};
use crosslane::stats::now;
use crosslane::{DataType, Failure};
use crosslane_ring::{Alarm, Control, Ends, Frame, Mapped, Parked, Region, Spin};
use rustix::event::{PollFd, PollFlags, Timespec};
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
    call: Option<(Frame, Option<external::Mapped>)>,
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

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl GuestLane {
    /// Opens a lane from the descriptors that the engine sent.
    ///
    /// # Errors
    /// If the memory is not a lane's.
    pub fn open(memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<Self> {
        let region = Region::open(memory).map_err(broken)?;
        Ok(Self { ends: region.guest(), socket, spin: Spin(spin), call: None })
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
        let frame = loop {
            if let Some(frame) = self.ends.consumer.peek().map_err(broken)? {
                break frame;
            }
            let parked = self.ends.consumer.wait_or(self.spin, LOOK, &stop);
            if stop() {
                return Ok(Next::Stopped);
            }
            if parked == Parked::TimedOut && self.engine_is_gone() {
                return Ok(Next::Closed);
            }
        };
        let taken = now();
        let external = match frame.tag {
            INLINE => None,
            EXTERNAL => {
                let mut length = [0; 8];
                self.ends.consumer.copy(&frame, &mut length);
                let fd = external::receive(self.socket.as_fd())?;
                Some(external::map(&fd, u64::from_le_bytes(length) as usize)?)
            }
            tag => return Err(broken(format!("a frame with tag {tag}"))),
        };
        self.call = Some((frame, external));
        let header = batch::header(self.bytes()).map_err(broken)?;
        self.ends.control.set_progress(header.sequence as u32, u32::MAX);
        Ok(Next::Call(Call { header, taken }))
    }

    /// A way to end the wait for the next call from another thread.
    pub fn alarm(&self) -> Alarm<Mapped> {
        self.ends.consumer.alarm()
    }

    fn engine_is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        !matches!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    fn bytes(&self) -> &[u8] {
        match &self.call {
            // SAFETY: a guest trusts its engine, which does not touch a published frame.
            Some((frame, None)) => unsafe { self.ends.consumer.bytes(frame) },
            Some((_, Some(external))) => external.bytes(),
            None => &[],
        }
    }

    /// The arguments of the current call, in place: valid until it is answered.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn columns<'a>(&'a self, types: impl Iterator<Item = &'a DataType>) -> io::Result<Vec<Column<'a>>> {
        batch::columns(self.bytes(), types, Trust::Values).map_err(broken)
    }

    /// The control page, to report progress on.
    pub fn control(&self) -> &Control {
        &self.ends.control
    }

    /// Waits until the results fit into the ring, for guests that give up a lock meanwhile. The arguments are
    /// gone then.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn wait_for_room(&mut self, size: usize) -> io::Result<()> {
        self.release();
        if size <= self.ends.producer.most() {
            let _unused = self.grant(size)?;
        }
        Ok(())
    }

    /// Answers the current call with its results.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn succeed(&mut self, call: Call, results: &dyn Encode, mishaps: Mishaps) -> io::Result<()> {
        let mut plan = Plan::default();
        results.plan(&mut plan);
        let reply = Header { errors: mishaps.errors, retries: mishaps.retries, ..call.reply(RESULT) };
        self.send(plan.size(), |frame| results.write(&mut plan.start(frame, reply)))
    }

    /// Answers the current call with an exception, for a row if one is to blame.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn fail(&mut self, call: Call, failure: &Failure, row: Option<usize>) -> io::Result<()> {
        let text = serde_json::to_vec(failure)?;
        let reply = Header { row: row.map_or(u32::MAX, |row| row as u32), ..call.reply(FAILURE) };
        let frame = batch::failure_frame(reply, &text);
        self.send(frame.len(), |bytes| bytes.copy_from_slice(&frame))
    }

    fn send(&mut self, size: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        self.release();
        if size <= self.ends.producer.most() {
            let grant = self.grant(size)?;
            write(self.ends.producer.bytes(&grant));
            self.ends.producer.commit(grant, size, INLINE);
        } else {
            let fd = external::create(size, write)?;
            external::send(self.socket.as_fd(), fd.as_fd())?;
            let grant = self.grant(8)?;
            self.ends.producer.fill(&grant, &(size as u64).to_le_bytes());
            self.ends.producer.commit(grant, 8, EXTERNAL);
        }
        Ok(())
    }

    /// Ends the use of the arguments: they are no longer needed, and the engine may wait for their space.
    fn release(&mut self) {
        if let Some((frame, _)) = self.call.take() {
            self.ends.consumer.release(frame);
        }
    }

    fn grant(&mut self, size: usize) -> io::Result<crosslane_ring::Grant> {
        loop {
            if let Some(grant) = self.ends.producer.reserve(size).map_err(broken)? {
                return Ok(grant);
            }
            if self.ends.producer.wait(self.spin, LOOK) == Parked::TimedOut && self.engine_is_gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}
