//! The guest's side of a process lane, for guests in any language.

use super::call::{Call, Emitted, Next, Room, RowCounts};
use super::sandboxed;
use crate::external::{self, EXTERNAL, INLINE};
use crate::identity;
use crate::placement::{Placement, Side};
use crate::poll::is_ready;
use crosslane::batch::{self, BATCH, CANCEL, Column, Encode, FAILURE, Header, LAST, Plan};
use crosslane::stats::now;
use crosslane::{DataType, Entry, Failure};
use crosslane_ring::{Alarm, Ends, MappedRing, Parked, ProgressWord, Slice, Spin};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How often a waiting guest checks whether its engine lives. (The kernel also kills the guest if
/// its zygote ends.)
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// A call that takes longer than this is a long one. Other calls do not wait behind it if they need
/// not.
pub const LONG: Duration = Duration::from_millis(1);

/// The size of the frame that announces a message outside of the ring.
pub(super) const ANNOUNCEMENT: usize = size_of::<u64>();

/// Whether this process writes its stack when it gets SIGQUIT.
static TELLS_STACK: AtomicBool = AtomicBool::new(false);

/// Declares that this process writes its stack to its stderr when it gets SIGQUIT, and goes on. Its
/// next lane must be its only one. The engine sends SIGQUIT to learn about a call that makes no
/// progress.
pub fn tells_stack() {
    TELLS_STACK.store(true, Relaxed);
}

/// A guest's end of its lane.
#[derive(Debug)]
pub struct GuestLane {
    pub(super) ends: Ends,
    pub(super) socket: OwnedFd,
    pub(super) spin: Spin,
    /// The time slice of the guest's thread. It is short in two cases: during waits for an engine
    /// whose threads work with many lanes ([`crate::ProcessLane::share`]), and during calls that
    /// are not known to be long. Otherwise other threads with short slices would wait until such a
    /// call ends.
    pub(super) slice: Slice,
    /// For such an engine: the functions whose last call was long.
    pub(super) long: HashSet<u32>,
    pub(super) placement: Placement,
    /// Whether the oldest message of the request ring belongs to the current call. While results
    /// wait for space, the guest may read the message behind it. That message must not be released
    /// together with it.
    pub(super) held: bool,
    /// The current call's message, if it is outside of the ring.
    pub(super) external: Option<external::MappedFile>,
    /// How many batches of the current exchange were taken after the first one, and how many of
    /// these were reported to the engine.
    pub(super) taken: u32,
    pub(super) told: u32,
    /// The number of the last exchange that this guest has ended.
    pub(super) ended: u64,
    /// The number of the last exchange that the engine has cancelled.
    pub(super) cancelled: u64,
    /// When the guest last began or stopped to wait for its engine.
    pub(super) mark: u64,
    /// How long the guest waited before it began its current work.
    pub(super) waited: u64,
}

fn no_memory(size: usize, error: &rustix::io::Errno) -> Failure {
    let message = format!("there is no memory for results of {size} bytes: {error}");
    Failure { class: "NoMemory".into(), message, ..Failure::default() }
}

pub(super) fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl GuestLane {
    /// Opens a lane from the descriptors that the engine sent, and greets the engine. The calling
    /// process becomes the process of the lane.
    ///
    /// # Safety
    /// They must be the descriptors that an engine sent for one lane. They must not have been
    /// opened before, in this process or another.
    ///
    /// # Errors
    /// If the memory is not a lane's, or the engine is gone.
    pub unsafe fn open(memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<Self> {
        // SAFETY: as the caller says.
        let ends = unsafe { Ends::open(memory) }.map_err(broken)?;
        identity::greet(socket.as_fd(), TELLS_STACK.load(Relaxed))?;
        sandboxed::receive(socket.as_fd())?;
        Ok(Self {
            ends,
            socket,
            spin: Spin(spin),
            slice: Slice::new(true),
            long: HashSet::new(),
            placement: Placement::new(Side::Guest),
            held: false,
            external: None,
            taken: 0,
            told: 0,
            ended: 0,
            cancelled: 0,
            mark: now(),
            waited: 0,
        })
    }

    /// Waits for the next call. `None` when the engine has closed the lane. Exchanges for other
    /// entries of functions are refused.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn next_call(&mut self) -> io::Result<Option<Call>> {
        loop {
            match self.next_call_or(|| false)? {
                Next::Call(call) if call.entry() == Some(Entry::Call) => return Ok(Some(call)),
                Next::Call(call) => self.fail(call, &call.refusal(), None)?,
                _ => return Ok(None),
            }
        }
    }

    /// Waits for the first batch of the next exchange, or until `stop` returns true. The thread
    /// that changes the result of `stop` must then sound [`GuestLane::alarm`], or interrupt the
    /// waiting thread with a signal.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn next_call_or(&mut self, stop: impl Fn() -> bool) -> io::Result<Next> {
        loop {
            let is_shared = self.ends.locations.is_other_anywhere();
            if is_shared {
                self.slice.shorten();
            }
            let next = self.next_message(&stop)?;
            let Next::Call(call) = next else { return Ok(next) };
            if is_shared && self.long.contains(&call.header.function) {
                self.slice.restore();
            }
            if call.header.exchange > self.cancelled {
                (self.taken, self.told) = (0, 0);
                self.ends.progress.begin(call.header.exchange as u32);
                return Ok(next);
            }
            // This exchange was cancelled together with the one before. The engine takes the
            // answer, and throws it away.
            self.succeed(call.with_rows(0), &(), RowCounts::default())?;
        }
    }

    /// Waits for the next batch of an exchange after that of `call`, which was not the last. The
    /// batch of `call` is gone then. The engine only sends a limited number of batches ahead. So
    /// the guest first reports the batches that it has taken, unless its results have reported
    /// them.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn more(&mut self, call: &Call, stop: impl Fn() -> bool) -> io::Result<Next> {
        if call.is_last() {
            return Err(broken("a guest that wants more than the last batch"));
        }
        // A cancel that was read while results were sent is no longer in the ring.
        if self.is_cancelled(call)? {
            return Ok(Next::Cancelled);
        }
        if self.told < self.taken {
            match self.emit(call, 0, &(), &stop)? {
                Emitted::Sent => {}
                Emitted::Cancelled => return Ok(Next::Cancelled),
                Emitted::Stopped => return Ok(Next::Stopped),
                Emitted::Failed(failure) => return Err(broken(failure.message)),
            }
        }
        self.release();
        let next = self.next_message(&stop)?;
        if let Next::Call(call) = next {
            if call.header.exchange != self.ended + 1 {
                return Err(broken("a batch of another exchange"));
            }
            self.taken += 1;
        }
        Ok(next)
    }

    /// Waits for a message of an exchange that this guest has not ended.
    fn next_message(&mut self, stop: &impl Fn() -> bool) -> io::Result<Next> {
        loop {
            let Some(next) = self.any_message(stop)? else { continue };
            return Ok(next);
        }
    }

    /// Waits for a message; `None` for one of an exchange that this guest has ended.
    pub(super) fn any_message(&mut self, stop: &impl Fn() -> bool) -> io::Result<Option<Next>> {
        let taken = loop {
            if let Some(frame) = self.ends.consumer.peek().map_err(broken)? {
                let taken = now();
                self.held = true;
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
            let parked = self.ends.consumer.wait_or(self.spin, LOOK, stop);
            if stop() {
                return Ok(Some(Next::Stopped));
            }
            if parked == Parked::TimedOut && self.engine_is_gone() {
                return Ok(Some(Next::Closed));
            }
        };
        let header = batch::header(self.bytes()).map_err(broken)?;
        if header.exchange <= self.ended {
            self.release();
            return Ok(None);
        }
        self.waited = taken.saturating_sub(self.mark);
        self.mark = taken;
        match header.kind {
            BATCH => {
                self.placement.met(&self.ends.locations);
                Ok(Some(Next::Call(Call { header })))
            }
            CANCEL => {
                self.release();
                self.cancelled = header.exchange;
                Ok(Some(Next::Cancelled))
            }
            kind => Err(broken(format!("a message of kind {kind}"))),
        }
    }

    /// The header of the next message to the engine. The work for that message ends now, except for
    /// its writing.
    fn reply(&mut self, call: &Call, kind: u16, flags: u16) -> Header {
        let done = now();
        let worked = done.saturating_sub(self.mark);
        self.mark = done;
        let Header { function, exchange, rows, entry, .. } = call.header;
        if self.ends.locations.is_other_anywhere() {
            if u128::from(worked) > LONG.as_nanos() {
                self.long.insert(function);
            } else {
                self.long.remove(&function);
            }
        }
        let waited = self.waited;
        if flags & LAST != 0 {
            self.ended = exchange;
        }
        Header {
            kind,
            flags,
            function,
            exchange,
            rows,
            entry,
            waited,
            worked,
            row: if kind == BATCH && self.taken > 0 { self.taken } else { u32::MAX },
            ..Header::default()
        }
    }

    /// A handle with which another thread ends the wait for the next call.
    pub fn alarm(&self) -> Alarm<MappedRing> {
        self.ends.consumer.alarm()
    }

    pub(super) fn engine_is_gone(&self) -> bool {
        is_ready(&mut [PollFd::new(&self.socket, PollFlags::empty())])
    }

    fn bytes(&self) -> &[u8] {
        match &self.external {
            // SAFETY: a guest trusts its engine, which does not touch a published frame.
            None => unsafe { self.ends.consumer.bytes() },
            Some(external) => external.bytes(),
        }
    }

    /// The arguments of the current call, in place. They are valid until the call is answered.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn columns<'a>(&'a self, types: impl Iterator<Item = &'a DataType>) -> io::Result<Vec<Column<'a>>> {
        batch::columns(self.bytes(), types).map_err(broken)
    }

    /// The message of the current call, which contains the columns, for guests that keep it.
    pub fn message(&self) -> &[u8] {
        self.bytes()
    }

    /// The types of the arguments of the current call, if its function accepts any types. They are
    /// for [`crosslane::Signature::for_types`].
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn types(&self, call: &Call) -> io::Result<Option<&str>> {
        if call.header.types == 0 {
            return Ok(None);
        }
        batch::types(self.bytes()).map_err(broken)
    }

    /// The most bytes of an answer that fits into the lane's own memory.
    pub fn most(&self) -> usize {
        self.ends.producer.most()
    }

    /// The word in which the guest reports progress.
    pub fn progress(&self) -> &ProgressWord {
        &self.ends.progress
    }

    /// Answers the current call with its results, or with a failure if there is no memory for them.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn succeed(&mut self, call: Call, results: &dyn Encode, row_counts: RowCounts) -> io::Result<()> {
        self.succeed_after(call, results, row_counts, Self::wait_for_room)
    }

    /// As [`GuestLane::succeed`], for guests that give up a lock while they wait. `wait` does what
    /// [`GuestLane::wait_for_room`] does.
    ///
    /// # Errors
    /// As [`GuestLane::succeed`], or the error of `wait`. In that case the call is not answered,
    /// and the lane cannot be used any more.
    pub fn succeed_after<E: From<io::Error>>(
        &mut self,
        call: Call,
        results: &dyn Encode,
        row_counts: RowCounts,
        mut wait: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.offer_after(call, results, row_counts, &mut wait)? {
            Ok(()) => Ok(()),
            Err(failure) => self.fail_after(call, &failure, None, wait),
        }
    }

    /// As [`GuestLane::succeed`], but if there is no memory, the caller gets the failure. The call
    /// then still has to be answered.
    ///
    /// # Errors
    /// As [`GuestLane::succeed`].
    pub fn offer(
        &mut self,
        call: Call,
        results: &dyn Encode,
        row_counts: RowCounts,
    ) -> io::Result<Result<(), Failure>> {
        self.offer_after(call, results, row_counts, Self::wait_for_room)
    }

    fn offer_after<E: From<io::Error>>(
        &mut self,
        call: Call,
        results: &dyn Encode,
        row_counts: RowCounts,
        wait: impl FnOnce(&mut Self, usize) -> Result<(), E>,
    ) -> Result<Result<(), Failure>, E> {
        let mut plan = Plan::default();
        results.plan(&mut plan);
        let mut reply = self.reply(&call, BATCH, LAST);
        (reply.errors, reply.retries) = (row_counts.errors, row_counts.retries);
        if row_counts.by_columns > 0 {
            reply.row = row_counts.by_columns;
        }
        let size = plan.size();
        wait(self, size)?;
        let write = |frame: &mut [u8]| results.write(&mut plan.start(frame, reply));
        if size <= self.ends.producer.most() {
            return Ok(Ok(self.send(size, write)?));
        }
        match external::create(size, write) {
            Ok(file) => Ok(Ok(self.send_file(size, &file)?)),
            Err(error) => Ok(Err(no_memory(size, &error))),
        }
    }

    /// Sends a batch of `rows` results that is not the last one of its exchange. Waits for space,
    /// or until `stop` returns true, as [`GuestLane::next_call_or`] does. The arguments are gone
    /// then.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn emit(
        &mut self,
        call: &Call,
        rows: usize,
        results: &dyn Encode,
        stop: impl Fn() -> bool,
    ) -> io::Result<Emitted> {
        self.emit_with(call, rows, results, RowCounts::default(), stop)
    }

    /// As [`GuestLane::emit`], and reports the errors and retries of these rows.
    ///
    /// # Errors
    /// As [`GuestLane::emit`].
    pub fn emit_with(
        &mut self,
        call: &Call,
        rows: usize,
        results: &dyn Encode,
        row_counts: RowCounts,
        stop: impl Fn() -> bool,
    ) -> io::Result<Emitted> {
        self.release();
        let mut plan = Plan::default();
        results.plan(&mut plan);
        let begun = self.mark;
        let reply = self.reply(&call.with_rows(rows), BATCH, 0);
        let reply = Header { errors: row_counts.errors, retries: row_counts.retries, ..reply };
        let size = plan.size();
        let write = |frame: &mut [u8]| results.write(&mut plan.start(frame, reply));
        let inline = size <= self.ends.producer.most();
        // Only one large batch is sent at a time, because the ring's space does not limit large
        // batches.
        if let Some(ended) = self.room_or_end(call, if inline { Room::Of(size) } else { Room::All }, &stop)? {
            // The next try counts the work until now.
            self.mark = begun;
            return Ok(ended);
        }
        if inline {
            self.send(size, write)?;
        } else {
            match external::create(size, write) {
                Ok(file) => self.send_file(size, &file)?,
                Err(error) => return Ok(Emitted::Failed(no_memory(size, &error))),
            }
        }
        self.resume();
        Ok(Emitted::Sent)
    }

    /// Whether the engine has cancelled the exchange, by a look at the ring. The arguments are gone
    /// then.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn is_cancelled(&mut self, call: &Call) -> io::Result<bool> {
        self.release();
        // The next messages may have been sent before the cancel.
        let mut header = Header::default();
        let head = bytemuck::bytes_of_mut(&mut header);
        while let Some(length) = self.ends.consumer.ahead(head).map_err(broken)? {
            let header: &Header = bytemuck::from_bytes(head);
            if length == head.len() && header.kind == CANCEL {
                self.cancelled = self.cancelled.max(header.exchange);
            }
        }
        self.drop_cancels()?;
        Ok(self.cancelled >= call.header.exchange)
    }

    /// Removes the cancels at the beginning of the ring, which were read already, so that they take
    /// no space.
    pub(super) fn drop_cancels(&mut self) -> io::Result<()> {
        while let Some(frame) = self.ends.consumer.peek().map_err(broken)? {
            let mut header = Header::default();
            let bytes = bytemuck::bytes_of_mut(&mut header);
            if frame.length() != bytes.len() {
                break;
            }
            frame.copy(bytes);
            if header.kind != CANCEL || header.exchange > self.cancelled {
                break;
            }
            frame.release();
        }
        Ok(())
    }

    /// Whether [`GuestLane::is_cancelled`] may find a message. This is so cheap that a guest can
    /// ask for each row.
    #[inline]
    pub fn has_message(&self) -> bool {
        self.ends.consumer.has_more()
    }

    /// The word that [`GuestLane::has_message`] reads, and its value while there is no message. The
    /// arguments are gone then.
    pub fn news(&mut self) -> (&AtomicU64, u64) {
        self.release();
        self.ends.consumer.news()
    }

    /// Answers the current call with an exception, and with its row if one row caused it. Long
    /// texts are cut.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    pub fn fail(&mut self, call: Call, failure: &Failure, row: Option<usize>) -> io::Result<()> {
        self.fail_after(call, failure, row, Self::wait_for_room)
    }

    /// As [`GuestLane::fail`], with a `wait` as for [`GuestLane::succeed_after`].
    ///
    /// # Errors
    /// As [`GuestLane::succeed_after`].
    pub fn fail_after<E: From<io::Error>>(
        &mut self,
        call: Call,
        failure: &Failure,
        row: Option<usize>,
        wait: impl FnOnce(&mut Self, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let text = serde_json::to_vec(&sandboxed::told(failure)).map_err(io::Error::from)?;
        let reply =
            Header { row: row.map_or(u32::MAX, |row| row as u32), ..self.reply(&call, FAILURE, LAST) };
        let frame = batch::failure_frame(reply, &text);
        wait(self, frame.len())?;
        let write = |bytes: &mut [u8]| bytes.copy_from_slice(&frame);
        if frame.len() <= self.ends.producer.most() {
            return Ok(self.send(frame.len(), write)?);
        }
        let file = external::create(frame.len(), write).map_err(io::Error::from)?;
        Ok(self.send_file(frame.len(), &file)?)
    }

    /// Sends a message that fits into the ring now.
    pub(super) fn send(&mut self, size: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let Some(mut grant) = self.ends.producer.reserve(size).map_err(broken)? else {
            return Err(broken("a ring that lost its room"));
        };
        write(grant.bytes());
        grant.commit(size, INLINE);
        self.told = self.taken;
        Ok(())
    }

    /// As [`GuestLane::send`], for a message outside of the ring.
    fn send_file(&mut self, size: usize, file: &OwnedFd) -> io::Result<()> {
        let announcement: [u8; ANNOUNCEMENT] = (size as u64).to_le_bytes();
        external::send(self.socket.as_fd(), file.as_fd(), SendFlags::empty())?;
        self.told = self.taken;
        match self.ends.producer.push(&announcement, EXTERNAL).map_err(broken)? {
            true => Ok(()),
            false => Err(broken("a ring that lost its room")),
        }
    }

    /// Ends the use of the arguments. They are no longer needed, and the engine may wait for their
    /// space.
    pub(super) fn release(&mut self) {
        self.external = None;
        if std::mem::take(&mut self.held) {
            self.ends.consumer.release();
        }
    }
}
