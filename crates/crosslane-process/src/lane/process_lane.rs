//! The engine's side of a process lane.

use super::stack;
use crate::aligned::Aligned;
use crate::external::{self, EXTERNAL, INLINE};
use crate::identity::Process;
use crate::placement::{Placement, Side};
use crate::poll::is_ready;
use crate::warden::observed::Observed;
use crate::warden::{Ended, LaneRecord};
use crosslane::batch::{self, CANCEL, Encode, Header, LAST, Plan};
use crosslane::lane::{Lane, LaneError, Stuck, Waiter, plan_batch};
use crosslane::{Address, Borrowed, Exchanges};
use crosslane_ring::{Ends, MappedRing, RingError, Watch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{WaitId, WaitIdOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most exchanges in flight. It limits the number of descriptors in the socket.
const MOST_IN_FLIGHT: usize = 64;
/// The size of the frame that announces a large message.
const ANNOUNCEMENT: usize = 8;
/// How long a process may take to end after its sockets are closed.
const EXIT: Duration = Duration::from_secs(5);
/// How long the engine waits for the end of a process after it was killed.
const KILLED: Duration = Duration::from_secs(1);

/// Where the guest of a lane runs.
#[derive(Debug)]
pub(crate) enum Home {
    /// In a process of its own.
    Own,
    /// In a thread of its zygote's process, with the record of that process's output.
    Zygote(Arc<LaneRecord>),
    /// In a thread of the engine's own process.
    Here,
}

/// How the engine uses a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneOptions {
    /// How long a wait for a reply spins.
    pub(crate) spin: Duration,
    /// The most bytes of a batch, in each direction.
    pub(crate) largest: usize,
    /// What the engine does about calls that make no progress.
    pub(crate) stuck: Stuck,
}

/// A lane to a worker process, or to a thread of one. Dropping it kills the process and all
/// processes that it started, or ends the thread.
#[derive(Debug)]
pub struct ProcessLane {
    ends: Ends,
    socket: OwnedFd,
    process: Arc<Process>,
    record: Arc<LaneRecord>,
    home: Home,
    spin: Duration,
    /// `None` if the threads that use it work with many lanes at a time.
    placement: Option<Placement>,
    exchanges: Exchanges,
    /// The plan of the last batch sent. Its memory is reused.
    plan: Plan,
    reply: Aligned,
    /// Whether the last part of the reply is still in the ring, in the frame that was read.
    left: bool,
    /// The most bytes of a batch, in each direction.
    largest: usize,
    stuck: Stuck,
    /// How many bytes the lane had printed when the last call began on the idle lane. The second
    /// number is the same for its zygote's process, if the lane is a thread of that.
    printed: (u64, u64),
    engine: u32,
}

impl ProcessLane {
    pub(crate) fn new(
        ends: Ends,
        socket: OwnedFd,
        process: Arc<Process>,
        record: Arc<LaneRecord>,
        home: Home,
        options: LaneOptions,
    ) -> Self {
        let LaneOptions { spin, largest, stuck } = options;
        Self {
            ends,
            socket,
            process,
            record,
            home,
            spin,
            placement: Some(Placement::new(Side::Engine)),
            exchanges: Exchanges::default(),
            plan: Plan::default(),
            reply: Aligned::default(),
            left: false,
            largest,
            stuck,
            printed: (0, 0),
            engine: std::process::id(),
        }
    }

    /// Watches for replies, for a thread that waits for many lanes that others use.
    pub fn watch(&self) -> Watch<MappedRing> {
        self.ends.consumer.watch()
    }

    fn corrupt(error: RingError) -> LaneError {
        LaneError::Corrupt(error.to_string())
    }

    /// Takes the oldest reply from the ring. If `whole` is false, it may leave the last buffer in
    /// the ring. After [`LaneError::TooLarge`] the reply is gone.
    fn take(&mut self, whole: bool) -> Result<bool, LaneError> {
        let into = &mut self.reply;
        // Of a message that is thrown away, only the header is read.
        let unwanted = self.exchanges.is_cancelled();
        let first = unwanted.then_some(size_of::<Header>());
        let whole = whole || unwanted;
        let Some(frame) = self.ends.consumer.peek().map_err(Self::corrupt)? else { return Ok(false) };
        let taken = match frame.tag() {
            INLINE => match into.resize(first.map_or(frame.length(), |first| frame.length().min(first))) {
                Ok(bytes) => {
                    let first = if whole { bytes.len() } else { bytes.len().min(batch::HEAD) };
                    let (head, rest) = bytes.split_at_mut(first);
                    frame.copy(head);
                    if let Some(end) = batch::last_buffer(head, frame.length()).filter(|_| !whole) {
                        // The head ends before the first buffer.
                        let rest = rest.split_at_mut(end - first).0;
                        frame.copy_from(first, rest);
                        into.cut(end);
                        self.left = true;
                        return Ok(true);
                    }
                    frame.copy_from(first, rest);
                    Ok(())
                }
                Err(_) => Err(LaneError::no_memory(frame.length() as u64)),
            },
            EXTERNAL if frame.length() == size_of::<u64>() => {
                let mut length = [0; size_of::<u64>()];
                frame.copy(&mut length);
                let file = external::receive(self.socket.as_fd()).map_err(|error| {
                    LaneError::Corrupt(format!("a large reply without its file: {error}"))
                })?;
                external::read(file, u64::from_le_bytes(length), self.largest, first, into)
            }
            EXTERNAL => return Err(LaneError::Corrupt("a malformed announcement of a large reply".into())),
            tag => return Err(LaneError::Corrupt(format!("a frame with tag {tag}"))),
        };
        frame.release();
        taken.map(|()| true)
    }

    /// Takes the oldest message. Also `None` if the exchange of the message was cancelled.
    fn collect(&mut self, whole: bool) -> Result<Option<Header>, LaneError> {
        let before = self.exchanges.in_flight();
        let collected = self.collect_any(whole);
        let in_flight = self.exchanges.in_flight();
        if let Some(observed) = self.record.observed.get().filter(|_| in_flight < before) {
            observed.ends(in_flight);
        }
        collected
    }

    fn collect_any(&mut self, whole: bool) -> Result<Option<Header>, LaneError> {
        self.release();
        match self.take(whole) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error @ LaneError::TooLarge(_)) => {
                self.exchanges.unreadable();
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        let header = batch::header(self.reply.bytes());
        let header = header.map_err(|error| LaneError::Corrupt(error.to_string()))?;
        if !self.exchanges.received(&header)? {
            self.release();
            return Ok(None);
        }
        if let Some(placement) = &mut self.placement {
            placement.met(&self.ends.locations);
        }
        Ok(Some(header))
    }

    /// Declares that the threads that use this lane work with many lanes at a time. They do not
    /// move to its guest's processor, and the guest does not move to theirs. If other threads
    /// compute meanwhile, the guest gets the processor at once when a batch comes, for a tenth of a
    /// millisecond at a time.
    pub fn share(&mut self) {
        self.placement = None;
        self.ends.locations.tell_anywhere();
    }

    /// Kills the guest's process, and does not wait for its end. False for a lane that is a thread.
    /// Such a lane ends when it checks its socket.
    pub fn kill(&self) -> bool {
        let is_ours = matches!(self.home, Home::Own) && self.engine == std::process::id();
        if is_ours {
            self.process.kill();
        }
        is_ours
    }

    /// How the zygote's process ended, if this lane is a thread of it, or how the thread alone
    /// ended. Does not reap the process. A process with much memory closes its sockets long before
    /// its end.
    fn end_of_thread(&self, zygote: &LaneRecord) -> Option<Ended> {
        let begun = Instant::now();
        while begun.elapsed() < EXIT {
            let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
            let step = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            if rustix::event::poll(&mut fds, Some(&step)).is_ok_and(|ready| ready > 0) {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), options)
                else {
                    // The process is reaped already: another lane's end, or a boot, was faster.
                    return zygote.wait_for_end();
                };
                let signal = status.terminating_signal().map(Ended::Signal);
                return signal.or_else(|| status.exit_status().map(Ended::Code));
            }
            if let Some(ended) = self.record.ended() {
                return Some(ended);
            }
        }
        None
    }

    /// The end of the process in words, from the zygote's report and the log.
    fn why_it_ended(&mut self) -> String {
        let ended = match &self.home {
            Home::Own => self.record.wait_for_end(),
            Home::Zygote(zygote) => self.end_of_thread(zygote),
            Home::Here => return "the thread that ran it was ended".to_owned(),
        };
        let exceeded = self.record.observed.get().and_then(Observed::why_it_ended);
        let mut text = exceeded.unwrap_or_else(|| how_it_ended(ended));
        let mut tail = self.record.tail(self.printed.0);
        if let Home::Zygote(host) = &self.home {
            tail = [tail, host.tail(self.printed.1)].join("\n").trim().to_owned();
        }
        append_output(&mut text, &tail);
        text
    }
}

/// Describes how a worker process ended.
pub(crate) fn how_it_ended(ended: Option<Ended>) -> String {
    match ended {
        Some(Ended::Code(code)) => format!("its worker process ended with exit code {code}"),
        Some(Ended::Signal(libc::SIGKILL)) => {
            "its worker process was killed (SIGKILL), by someone or for lack of memory".to_owned()
        }
        Some(Ended::Signal(signal)) => format!("its worker process crashed with {}", signal_name(signal)),
        None => "its worker closed its connection to the engine".to_owned(),
    }
}

/// Adds the last output of a process to the description of its end.
pub(crate) fn append_output(text: &mut String, tail: &str) {
    if !tail.is_empty() {
        text.push_str("\n  the last it printed:\n");
        tail.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
        text.truncate(text.trim_end().len());
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV (segmentation fault)",
        libc::SIGABRT => "SIGABRT (abort)",
        libc::SIGBUS => "SIGBUS (bus error)",
        libc::SIGFPE => "SIGFPE (arithmetic error)",
        libc::SIGILL => "SIGILL (illegal instruction)",
        libc::SIGTERM => "SIGTERM (terminated)",
        libc::SIGXCPU => "SIGXCPU (CPU time limit)",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

impl ProcessLane {
    pub(crate) fn record(&self) -> Arc<LaneRecord> {
        Arc::clone(&self.record)
    }
}

impl Lane for ProcessLane {
    fn id(&self) -> u64 {
        self.record.id
    }

    fn process(&self) -> i32 {
        self.process.pid
    }

    fn most(&self) -> usize {
        self.ends.producer.most()
    }

    fn submit(
        &mut self,
        address: Address,
        rows: usize,
        arguments: &dyn Encode,
    ) -> Result<Option<u64>, LaneError> {
        let plan = &mut self.plan;
        let size = plan_batch(plan, arguments, rows, (self.largest, "the setting largest_batch"))?;
        let in_flight = self.exchanges.in_flight();
        if in_flight >= MOST_IN_FLIGHT {
            return Ok(None);
        }
        let Some(header) = self.exchanges.header(address, rows) else { return Ok(None) };
        let inline = size <= self.ends.producer.most();
        let (length, tag) = if inline { (size, INLINE) } else { (ANNOUNCEMENT, EXTERNAL) };
        let Some(mut grant) = self.ends.producer.reserve(length).map_err(Self::corrupt)? else {
            if in_flight == 0 {
                let what = "it keeps the arguments of calls that it has answered";
                return Err(LaneError::Corrupt(what.into()));
            }
            return Ok(None);
        };
        if in_flight == 0 {
            let host = if let Home::Zygote(host) = &self.home { host.printed() } else { 0 };
            self.printed = (self.record.printed(), host);
        }
        let write = |frame: &mut [u8]| arguments.write(&mut plan.start(frame, header));
        if inline {
            write(grant.bytes())
        } else {
            let file = external::create(size, write).map_err(|error| {
                LaneError::TooLarge(format!(
                    "there is no memory for the {size} bytes of the arguments of {rows} row(s): {error}"
                ))
            })?;
            match external::send(self.socket.as_fd(), file.as_fd(), SendFlags::DONTWAIT) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    let what = "it does not take the descriptors that it is sent";
                    return Err(LaneError::Corrupt(what.into()));
                }
                Err(_) => return Err(LaneError::Died(self.why_it_ended())),
            }
            grant.fill(&(size as u64).to_le_bytes());
        }
        // Nothing fails from here on, so that the work ends.
        if let (0, Some(observed)) = (in_flight, self.record.observed.get()) {
            observed.begins(address);
        }
        grant.commit(length, tag);
        Ok(Some(self.exchanges.sent(address)))
    }

    fn cancel(&mut self) -> Result<(), LaneError> {
        if self.engine != std::process::id() {
            // The memory is shared, so a fork would end an exchange that its parent waits for.
            return Err(LaneError::System("it is the lane of the process that this is a fork of".into()));
        }
        let exchange = self.exchanges.cancel();
        let header = Header { kind: CANCEL, flags: LAST, exchange, ..Header::default() };
        match self.ends.producer.push(bytemuck::bytes_of(&header), INLINE).map_err(Self::corrupt)? {
            true => Ok(()),
            false => Err(LaneError::System("its ring has no room for a cancellation".into())),
        }
    }

    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        self.collect(true)
    }

    fn try_collect_head(&mut self) -> Result<Option<Header>, LaneError> {
        self.collect(false)
    }

    fn borrowed(&self) -> Option<Borrowed<'_>> {
        let frame = self.ends.consumer.shared().filter(|_| self.left)?;
        let read = self.reply.bytes().len();
        // SAFETY: the frame is mapped as long as the lane lives, and is released only after this
        // borrow. The bytes that were read are no more than the whole frame.
        Some(unsafe { Borrowed::new(frame.cast::<u8>().as_ptr().add(read), frame.len() - read) })
    }

    fn copy_rest(&mut self) {
        if !std::mem::take(&mut self.left) {
            return;
        }
        if let Ok(Some(frame)) = self.ends.consumer.peek() {
            let start = self.reply.bytes().len();
            frame.copy_from(start, self.reply.append(frame.length() - start));
            frame.release();
        }
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.left) {
            self.ends.consumer.release();
        }
    }

    fn shares_its_process(&self) -> bool {
        matches!(self.home, Home::Zygote(_))
    }

    fn frame(&self) -> &[u8] {
        self.reply.bytes()
    }

    fn in_flight(&self) -> usize {
        self.exchanges.in_flight()
    }

    fn is_cancelled(&self) -> bool {
        self.exchanges.is_cancelled()
    }

    fn progress(&self) -> (u32, u32) {
        self.ends.progress.get()
    }

    fn rests_until(&self) -> u64 {
        self.ends.progress.rests_until()
    }

    fn check(&mut self) -> Result<(), LaneError> {
        if self.lives() { Ok(()) } else { Err(LaneError::Died(self.why_it_ended())) }
    }

    fn halt(&mut self) -> bool {
        if !self.kill() {
            return false;
        }
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let limit = Timespec { tv_sec: KILLED.as_secs() as i64, tv_nsec: 0 };
        let ended = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit)));
        ended.is_ok_and(|ready| ready > 0)
    }

    fn lives(&self) -> bool {
        let mut fds =
            [PollFd::new(&self.process, PollFlags::IN), PollFd::new(&self.socket, PollFlags::empty())];
        !is_ready(&mut fds)
    }

    fn stuck(&self) -> Stuck {
        self.stuck
    }

    fn stack(&mut self) -> String {
        if matches!(self.home, Home::Own) { stack::of(&self.process, &self.record) } else { String::new() }
    }

    fn has_ended(&self) -> bool {
        self.record.ended().is_some()
    }

    fn has_news(&self) -> bool {
        self.ends.consumer.has_news()
    }

    fn waiter(&self) -> Waiter<'_> {
        self.ends.consumer.waiter()
    }

    fn spin(&self) -> Duration {
        self.spin
    }
}

impl Drop for ProcessLane {
    fn drop(&mut self) {
        // A fork of the engine must not end the lanes of its parent.
        if self.engine != std::process::id() {
            return;
        }
        if matches!(self.home, Home::Own) {
            self.process.kill();
        } else {
            // A lane that is a thread ends when its socket does. A fork of this process may hold a
            // copy of the socket, so a close would not end it.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}
