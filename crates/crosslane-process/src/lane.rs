//! The engine's side of a process lane.

use crate::aligned::Aligned;
use crate::warden::{Ended, LaneRecord};
use crate::{EXTERNAL, INLINE, external};
use crosslane::batch::{self, CALL, Encode, Header, Plan};
use crosslane::lane::{Lane, LaneError, Patience};
use crosslane_ring::{Ends, Frame, RingError, Spin};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{WaitId, WaitIdOptions};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The largest frame: Arrow's 32-bit offsets cannot address more anyway.
const LARGEST: usize = 8 << 30;
/// Calls in flight beyond this wait for their replies first; it bounds the descriptors on the way.
const MOST_IN_FLIGHT: usize = 64;
/// How much longer a wait spins whose end is near.
const LONGER: u32 = 25;
/// How long a process may take to end whose sockets are closed already.
const LAST_BREATH: Duration = Duration::from_secs(5);
/// How long a lane's end may take to be explained by its zygote.
const OBITUARY: Duration = Duration::from_millis(500);

/// Where the guest of a lane runs.
#[derive(Debug)]
pub(crate) enum Home {
    /// In a process of its own.
    Own,
    /// In a thread of its zygote's process, with what that printed.
    Zygote(Arc<LaneRecord>),
    /// In a thread of the engine's own process.
    Here,
}

/// A lane into a worker process, or into a thread of one. Dropping it kills the process and all that it
/// started, or ends the thread.
#[derive(Debug)]
pub struct ProcessLane {
    ends: Ends,
    socket: OwnedFd,
    process: OwnedFd,
    pid: i32,
    record: Arc<LaneRecord>,
    home: Home,
    spin: Spin,
    sequence: u64,
    in_flight: usize,
    /// Replies that `submit` had to take to make space, oldest first.
    early: VecDeque<Aligned>,
    reply: Aligned,
    engine: u32,
}

impl ProcessLane {
    pub(crate) fn new(
        ends: Ends,
        socket: OwnedFd,
        process: OwnedFd,
        pid: i32,
        record: Arc<LaneRecord>,
        home: Home,
        spin: Duration,
    ) -> Self {
        Self {
            ends,
            socket,
            process,
            pid,
            record,
            home,
            spin: Spin(spin),
            sequence: 0,
            in_flight: 0,
            early: VecDeque::new(),
            reply: Aligned::default(),
            engine: std::process::id(),
        }
    }

    fn corrupt(error: RingError) -> LaneError {
        LaneError::Corrupt(error.to_string())
    }

    /// Takes the oldest reply from the ring into `into`.
    fn take(&mut self, into: &mut Aligned) -> Result<bool, LaneError> {
        let consumer = &mut self.ends.consumer;
        let Some(frame) = consumer.peek().map_err(Self::corrupt)? else { return Ok(false) };
        match frame.tag {
            INLINE => consumer.copy(&frame, into.resize(frame.length)),
            EXTERNAL => self.take_external(&frame, into)?,
            tag => return Err(LaneError::Corrupt(format!("a frame with tag {tag}"))),
        }
        self.ends.consumer.release(frame);
        Ok(true)
    }

    fn take_external(&mut self, frame: &Frame, into: &mut Aligned) -> Result<(), LaneError> {
        let mut length = [0; 8];
        if frame.length != length.len() {
            return Err(LaneError::Corrupt("a malformed announcement of a large frame".into()));
        }
        self.ends.consumer.copy(frame, &mut length);
        let length = u64::from_le_bytes(length) as usize;
        if length > LARGEST {
            return Err(LaneError::Corrupt(format!("a frame of {length} bytes")));
        }
        external::receive(self.socket.as_fd())
            .and_then(|fd| external::read(&fd, length, into))
            .map_err(|error| LaneError::Corrupt(format!("a large frame that cannot be read: {error}")))
    }

    /// Waits until the request ring has taken news, and collects replies meanwhile.
    fn make_space(&mut self, watch: &mut Watch) -> Result<(), LaneError> {
        let mut early = Aligned::default();
        if self.take(&mut early)? {
            self.early.push_back(early);
            return Ok(());
        }
        if watch.tick() {
            self.check()?;
        }
        // A full ring empties, or a reply comes: look at both in turn.
        self.ends.producer.wait(self.spin, Duration::from_millis(1));
        Ok(())
    }

    /// How the zygote ended whose thread this lane is, without reaping it, or how the thread alone did. A process
    /// with much memory closes its sockets long before its end.
    fn end_of_thread(&self) -> Option<Ended> {
        let begun = Instant::now();
        while begun.elapsed() < LAST_BREATH {
            let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
            let step = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            if rustix::event::poll(&mut fds, Some(&step)).is_ok_and(|ready| ready > 0) {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                let status = rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), options).ok()??;
                let signal = status.terminating_signal().map(Ended::Signal);
                return signal.or_else(|| status.exit_status().map(Ended::Code));
            }
            if let Some(ended) = self.record.wait_for_end(Duration::ZERO) {
                return Some(ended);
            }
        }
        None
    }

    /// What the zygote and the log say about the end of the process.
    fn obituary(&mut self) -> String {
        let ended = match &self.home {
            Home::Own => self.record.wait_for_end(OBITUARY),
            Home::Zygote(_) => self.end_of_thread(),
            Home::Here => return "the thread that ran it was ended".to_owned(),
        };
        let mut text = match ended {
            Some(Ended::Code(code)) => format!("its worker process ended with exit code {code}"),
            Some(Ended::Signal(libc::SIGKILL)) => {
                "its worker process was killed (SIGKILL), by someone or for lack of memory".to_owned()
            }
            Some(Ended::Signal(signal)) => format!("its worker process crashed with {}", signal_name(signal)),
            None => "its worker closed its connection to the engine".to_owned(),
        };
        let mut tail = self.record.tail();
        if let Home::Zygote(host) = &self.home {
            tail = [tail, host.tail()].join("\n").trim().to_owned();
        }
        if !tail.is_empty() {
            text.push_str("\n  the last it printed:\n");
            tail.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
            text.truncate(text.trim_end().len());
        }
        text
    }
}

/// Counts waits, so that a long one looks for death now and then.
struct Watch(Instant);

impl Watch {
    fn tick(&mut self) -> bool {
        let late = self.0.elapsed() > Duration::from_millis(10);
        if late {
            self.0 = Instant::now();
        }
        late
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

impl Lane for ProcessLane {
    fn id(&self) -> u64 {
        self.record.id
    }

    fn process(&self) -> i32 {
        self.pid
    }

    fn submit(&mut self, function: u32, rows: usize, arguments: &dyn Encode) -> Result<u64, LaneError> {
        let mut plan = Plan::default();
        arguments.plan(&mut plan);
        if plan.is_too_large() {
            return Err(LaneError::TooLarge(format!("the arguments of {rows} row(s) exceed 2 GiB")));
        }
        let size = plan.size();
        let sequence = self.sequence + 1;
        let header = Header { kind: CALL, function, sequence, rows: rows as u32, ..Header::default() };
        if self.in_flight == 0 {
            self.record.begin_call();
        }
        let mut watch = Watch(Instant::now());
        while self.in_flight >= MOST_IN_FLIGHT + self.early.len() {
            self.make_space(&mut watch)?;
        }
        let write = |frame: &mut [u8]| arguments.write(&mut plan.start(frame, header));
        let (announced, tag) = if size <= self.ends.producer.most() {
            (size, INLINE)
        } else {
            let system =
                |error: rustix::io::Errno| LaneError::System(format!("a frame of {size} bytes: {error}"));
            let fd = external::create(size, write).map_err(system)?;
            external::send(self.socket.as_fd(), fd.as_fd()).map_err(|_| LaneError::Died(self.obituary()))?;
            (8, EXTERNAL)
        };
        let grant = loop {
            match self.ends.producer.reserve(announced).map_err(Self::corrupt)? {
                Some(grant) => break grant,
                None => self.make_space(&mut watch)?,
            }
        };
        let bytes = self.ends.producer.bytes(&grant);
        if tag == INLINE {
            write(bytes)
        } else {
            bytes.copy_from_slice(&(size as u64).to_le_bytes())
        }
        self.ends.producer.commit(grant, announced, tag);
        self.sequence = sequence;
        self.in_flight += 1;
        Ok(sequence)
    }

    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        let mut reply = std::mem::take(&mut self.reply);
        let taken = match self.early.pop_front() {
            Some(early) => {
                reply = early;
                Ok(true)
            }
            None => self.take(&mut reply),
        };
        self.reply = reply;
        if !taken? {
            return Ok(None);
        }
        if self.in_flight == 0 {
            return Err(LaneError::Corrupt("a reply to no call".into()));
        }
        self.in_flight -= 1;
        batch::header(self.reply.bytes()).map(Some).map_err(|error| LaneError::Corrupt(error.to_string()))
    }

    fn shares_its_process(&self) -> bool {
        matches!(self.home, Home::Zygote(_))
    }

    fn frame(&self) -> &[u8] {
        self.reply.bytes()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn progress(&self) -> (u32, u32) {
        self.ends.control.progress()
    }

    fn check(&mut self) -> Result<(), LaneError> {
        let mut fds =
            [PollFd::new(&self.process, PollFlags::IN), PollFd::new(&self.socket, PollFlags::empty())];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        match ready {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => Err(LaneError::Died(self.obituary())),
            Err(error) => Err(LaneError::System(error.to_string())),
        }
    }

    fn has_ended(&self) -> bool {
        self.record.has_ended()
    }

    fn wait_any(lanes: &mut [&mut Self], patience: Patience, timeout: Duration) {
        if lanes.iter().any(|lane| !lane.early.is_empty()) {
            return;
        }
        let Some(Spin(spin)) = lanes.first().map(|lane| lane.spin) else { return };
        let spin = match patience {
            Patience::Sleep => Spin(Duration::ZERO),
            Patience::Spin => Spin(spin),
            Patience::SpinLonger => Spin(spin * LONGER),
        };
        let mut consumers: Vec<_> = lanes.iter_mut().map(|lane| &mut lane.ends.consumer).collect();
        crosslane_ring::wait_any(&mut consumers, spin, timeout);
    }
}

impl Drop for ProcessLane {
    fn drop(&mut self) {
        if matches!(self.home, Home::Here) && self.engine == std::process::id() {
            // A fork of this process may hold a copy of the socket, so that closing it would tell nobody.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
        // A lane that is a thread ends when its socket does. A fork of the engine must not kill the lanes of
        // its parent; a test's lane has no process.
        if !matches!(self.home, Home::Own) || self.engine != std::process::id() || self.pid == 0 {
            return;
        }
        if rustix::event::poll(
            &mut [PollFd::new(&self.process, PollFlags::IN)],
            Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
        ) == Ok(0)
        {
            // The process lives, so its id and group are still its own. Its children first.
            // SAFETY: kill has no memory requirements.
            unsafe { libc::kill(-self.pid, libc::SIGKILL) };
            let _ = rustix::process::pidfd_send_signal(&self.process, rustix::process::Signal::KILL);
        }
    }
}
