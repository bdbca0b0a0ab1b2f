//! The thread that listens to a zygote and its lanes: answers, deaths, and output.
//!
//! Only this thread reads the control socket and the lanes' log pipes. So the output of a guest
//! cannot fill a pipe and block the guest. And no thread waits for output that only the holder of a
//! lock would read.
//!
//! # Whose output it is
//! The error of a call that loses its lane shows the last output ([`Output`]). When a call begins
//! on an idle lane, its engine notes how much was printed until then ([`LaneRecord::printed`]).
//! This includes the bytes that the warden has read, and those that wait in the pipe. The error
//! only shows output after that point. Calls that follow one another on a lane before their replies
//! come belong to one statement. They share their output.

use super::bounds::Bounds;
use super::log;
use super::memory::{Looks, Seen};
use super::observed::{Bell, Observed};
use crate::control::{Answer, Answers, GLANCE, Silence};
use crosslane_ring::Slice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

/// The most unread answers. They are answers to forks that were given up.
pub(crate) const UNREAD: usize = 64;
/// The longest line that is kept in one piece.
const LINE: usize = 64 << 10;
/// How long the warden waits for the end of a line.
const PAUSE: Duration = Duration::from_millis(50);
/// How many bytes of a lane's pipe are read in one turn.
const PIECE: usize = 16 << 10;
/// How long a zygote may take to report how a lane ended.
const EXIT_REPORT: Duration = Duration::from_millis(500);
/// How many bytes of a lane's output are kept for the error about its end.
const TAIL: usize = 4096;
/// How many bytes of a lane's output are kept while its stack is written.
const STACK: usize = 64 << 10;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        status.signal().map_or_else(|| Ended::Code(status.code().unwrap_or(0)), Ended::Signal)
    }
}

/// The output of a lane.
#[derive(Debug, Default)]
struct Output {
    /// The pipe, as long as the warden reads it.
    log: Weak<OwnedFd>,
    /// How many bytes were read, without those of stacks.
    read: u64,
    /// The last of these bytes.
    tail: VecDeque<u8>,
    /// The output while the stack is written. It does not belong to the function.
    stack: Option<Vec<u8>>,
}

/// The warden's knowledge about a lane, shared with the lane.
#[derive(Debug)]
pub(crate) struct LaneRecord {
    pub(crate) id: u64,
    ended: Mutex<Option<Ended>>,
    end: Condvar,
    output: Mutex<Output>,
    /// The lane's worker, if the warden looks at it.
    pub(crate) observed: OnceLock<Observed>,
}

impl LaneRecord {
    /// The record of a lane that prints into this pipe.
    pub(crate) fn new(id: u64, log: Weak<OwnedFd>) -> Arc<Self> {
        Arc::new(Self {
            id,
            ended: Mutex::new(None),
            end: Condvar::new(),
            output: Mutex::new(Output { log, ..Output::default() }),
            observed: OnceLock::new(),
        })
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the zygote reports how the process ended. `None` if it does not report it soon.
    pub(crate) fn wait_for_end(&self) -> Option<Ended> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = self
            .end
            .wait_timeout_while(ended, EXIT_REPORT, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }

    /// How the process ended, if the zygote has reported it.
    pub(crate) fn ended(&self) -> Option<Ended> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_ended(&self, ended: Ended) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        self.end.notify_all();
    }

    /// How many bytes the lane has printed, including those that were not read yet.
    pub(crate) fn printed(&self) -> u64 {
        let output = self.output();
        let waiting = output.log.upgrade().and_then(|log| rustix::io::ioctl_fionread(log).ok());
        output.read + waiting.unwrap_or(0)
    }

    /// The last part of the lane's output after the first `after` bytes, as far as it was read.
    pub(crate) fn tail(&self, after: u64) -> String {
        let mut output = self.output();
        let count = output.read.saturating_sub(after).min(output.tail.len() as u64) as usize;
        let tail = output.tail.make_contiguous();
        String::from_utf8_lossy(&tail[tail.len() - count..]).trim_end().to_owned()
    }

    /// Keeps the output from now on, up to [`STACK`] bytes, until [`LaneRecord::end_stack`].
    pub(crate) fn begin_stack(&self) {
        self.output().stack = Some(Vec::new());
    }

    /// How many bytes were kept.
    pub(crate) fn stack_bytes(&self) -> usize {
        self.output().stack.as_ref().map_or(0, Vec::len)
    }

    /// Returns the kept output, and stops keeping it.
    pub(crate) fn end_stack(&self) -> String {
        let kept = self.output().stack.take();
        String::from_utf8_lossy(&kept.unwrap_or_default()).into_owned()
    }

    /// Reads a piece of the output.
    fn read(&self, log: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        // The lock ensures that no byte counts both as read and as waiting in the pipe.
        let mut output = self.output();
        let count = rustix::io::read(log, &mut *buffer)?;
        output.add(&buffer[..count]);
        Ok(count)
    }
}

impl Output {
    fn add(&mut self, bytes: &[u8]) {
        if let Some(stack) = &mut self.stack {
            let room = STACK.saturating_sub(stack.len());
            stack.extend(&bytes[..bytes.len().min(room)]);
            return;
        }
        self.read += bytes.len() as u64;
        self.tail.extend(bytes);
        let excess = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..excess);
    }
}

struct Watched {
    record: Arc<LaneRecord>,
    log: Option<Arc<OwnedFd>>,
    /// A line whose end has not been read yet. It is kept so that the output of others does not
    /// split it.
    line: Vec<u8>,
    /// When `line` was last added to.
    added: Instant,
    /// The warden's knowledge about the lane's memory.
    seen: Seen,
}

impl Watched {
    fn new(record: Arc<LaneRecord>, log: Arc<OwnedFd>) -> Self {
        Self { record, log: Some(log), line: Vec::new(), added: Instant::now(), seen: Seen::default() }
    }

    /// Passes on a piece of the pipe's content. False at its end. It takes only one piece, so that
    /// a lane that prints without end does not keep the warden from the others.
    fn relay(&mut self) -> bool {
        let Some(log) = &self.log else { return false };
        let mut buffer = [0; PIECE];
        match self.record.read(log, &mut buffer) {
            Ok(0) => {
                self.pass_on();
                false
            }
            Ok(count) => {
                let piece = &buffer[..count];
                let lines = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                self.line.extend_from_slice(&piece[..lines]);
                if lines > 0 {
                    self.pass_on();
                }
                self.line.extend_from_slice(&piece[lines..]);
                self.added = Instant::now();
                if self.line.len() > LINE {
                    self.pass_on();
                }
                true
            }
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Passes on all bytes that are in the pipe now. The lane has ended, but a process that it has
    /// left may print for ever.
    fn drain(&mut self) {
        let waiting = self.log.as_ref().and_then(|log| rustix::io::ioctl_fionread(log).ok());
        for _ in 0..waiting.map_or(0, |waiting| (waiting as usize).div_ceil(PIECE)) {
            self.relay();
        }
        self.pass_on();
    }

    /// The lane's worker and the warden's knowledge about its memory, if the warden looks at it.
    fn observed(&mut self) -> Option<(&Observed, &mut Seen)> {
        self.record.observed.get().map(|observed| (observed, &mut self.seen))
    }

    fn pass_on(&mut self) {
        log::pass_on(&self.line);
        self.line.clear();
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// A lane that the warden has to watch. A byte on the bell announces each.
pub(crate) type NewLane = (Arc<LaneRecord>, Arc<OwnedFd>);

pub(crate) struct Warden {
    pub(crate) control: Arc<UnixStream>,
    pub(crate) answers: mpsc::SyncSender<Result<Answer, Silence>>,
    pub(crate) lanes: mpsc::Receiver<NewLane>,
    /// Readable when a new lane waits, or when a lane begins an exchange that the warden must see. At
    /// its end the warden stops.
    pub(crate) bell: UnixStream,
    /// The other end of the bell.
    pub(crate) rung: Arc<Bell>,
    /// The output of the zygote itself.
    pub(crate) log: Option<Arc<OwnedFd>>,
    pub(crate) zygote: Arc<LaneRecord>,
    /// `None` if the zygote is a thread of this process.
    pub(crate) bounds: Option<Bounds>,
    pub(crate) on_interrupt: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Warden {
    pub(crate) fn run(mut self) {
        let mut lanes = Vec::new();
        lanes.extend(self.log.take().map(|log| Watched::new(Arc::clone(&self.zygote), log)));
        let mut answers = Answers::default();
        let mut control_open = true;
        let mut looks = Looks::default();
        // Code in a sandbox may start thousands of threads. This one must not wait until all of them have run.
        let slice = Slice::new(self.bounds.as_ref().is_some_and(Bounds::is_of_sandbox));
        slice.shorten();
        loop {
            let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
            if control_open {
                fds.push(PollFd::new(&*self.control, PollFlags::IN));
            }
            fds.extend(
                lanes.iter().filter_map(|lane| lane.log.as_ref()).map(|log| PollFd::new(log, PollFlags::IN)),
            );
            let unfinished = lanes.iter().any(|lane| !lane.line.is_empty());
            let sleep = [looks.sleep(), self.bounds.as_ref().and_then(Bounds::sleep)];
            let sleep = sleep.into_iter().flatten().map(timespec).chain(unfinished.then_some(GLANCE)).min();
            match rustix::event::poll(&mut fds, sleep.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let mut ready: VecDeque<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let bell = ready.pop_front() == Some(true);
            let news = control_open && ready.pop_front() == Some(true);
            for lane in lanes.iter_mut().filter(|lane| lane.log.is_some()) {
                if ready.pop_front() == Some(true) && !lane.relay() {
                    lane.log = None;
                }
            }
            for lane in lanes.iter_mut().filter(|lane| !lane.line.is_empty() && lane.added.elapsed() > PAUSE)
            {
                lane.pass_on();
            }
            // New lanes come before reports of their end.
            if bell {
                let mut byte = [0; 64];
                if matches!(rustix::io::read(&self.bell, &mut byte), Ok(0) | Err(_)) {
                    // The last output is still in the pipes.
                    lanes.iter_mut().for_each(Watched::drain);
                    log::flush();
                    return;
                }
            }
            let mut observed: Vec<_> = lanes.iter_mut().filter_map(Watched::observed).collect();
            looks.look(&self.rung, &mut observed);
            if let Some(bounds) = &mut self.bounds {
                bounds.look(&self.rung, &observed.iter().map(|(observed, _)| *observed).collect::<Vec<_>>());
            }
            lanes.extend(self.lanes.try_iter().map(|(record, log)| Watched::new(record, log)));
            if news {
                let mut read = answers.read(&self.control);
                while read.is_ok() {
                    match answers.next() {
                        Ok(Some(answer)) => read = self.heed(answer, &mut lanes),
                        Ok(None) => break,
                        Err(silence) => read = Err(silence),
                    }
                }
                if let Err(silence) = read {
                    control_open = false;
                    lanes.iter_mut().for_each(Watched::drain);
                    // Threads that wait for an answer learn that none will come.
                    let _ = self.answers.try_send(Err(silence));
                }
            }
            // Lanes whose log is closed are removed, unless a thread may still ask how they ended.
            lanes.retain(|lane| lane.log.is_some() || Arc::strong_count(&lane.record) > 1);
        }
    }

    /// Handles an answer.
    fn heed(&self, answer: Answer, lanes: &mut [Watched]) -> Result<(), Silence> {
        match answer {
            Answer::Exited { lane, code, signal } => {
                if let Some(lane) = lanes.iter_mut().find(|watched| watched.record.id == lane) {
                    // The last output is read before any thread learns of the lane's end.
                    lane.drain();
                    lane.record.set_ended(match (code, signal) {
                        (_, Some(signal)) => Ended::Signal(signal),
                        (code, None) => Ended::Code(code.unwrap_or(0)),
                    });
                }
            }
            Answer::Interrupted { at } => (self.on_interrupt)(at),
            answer => {
                let sent = self.answers.try_send(Ok(answer));
                return sent.map_err(|_| Silence::Garbled("it answers what nobody asked".into()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> (Watched, OwnedFd) {
        let (log, theirs) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&log, true).unwrap();
        let log = Arc::new(log);
        (Watched::new(LaneRecord::new(1, Arc::downgrade(&log)), log), theirs)
    }

    #[test]
    fn a_lane_is_forgotten_that_was_never_made() {
        let pair = || UnixStream::pair().unwrap();
        let ((control, _zygote), (bell, ours)) = (pair(), pair());
        let rung = Arc::new(Bell::new(ours));
        let (answers, _answered) = mpsc::sync_channel(UNREAD);
        let (lanes, new) = mpsc::channel();
        let warden = Warden {
            control: Arc::new(control),
            answers,
            lanes: new,
            bell,
            rung: Arc::clone(&rung),
            log: None,
            zygote: LaneRecord::new(0, Weak::new()),
            bounds: None,
            on_interrupt: Arc::new(|_| {}),
        };
        let warden = std::thread::spawn(move || warden.run());
        let record = LaneRecord::new(1, Weak::new());
        let kept = Arc::downgrade(&record);
        // No process holds the other end of the log.
        lanes.send((record, Arc::new(rustix::pipe::pipe().unwrap().0))).unwrap();
        rung.ring();
        while kept.strong_count() > 0 {
            std::thread::yield_now();
        }
        rung.end();
        warden.join().unwrap();
    }

    #[test]
    fn a_turn_takes_a_piece_and_leaves_the_rest() {
        let (mut lane, theirs) = watched();
        rustix::io::write(&theirs, &[0; 3 * PIECE]).unwrap();
        for rest in [2, 1, 0] {
            assert!(lane.relay());
            let waiting = rustix::io::ioctl_fionread(lane.log.as_ref().unwrap()).unwrap();
            assert_eq!(waiting as usize, rest * PIECE);
        }
        drop(theirs);
        assert!(!lane.relay());
    }

    #[test]
    fn the_tail_of_a_call_has_no_earlier_output() {
        let (mut lane, theirs) = watched();
        let print = |text: &str| assert_eq!(rustix::io::write(&theirs, text.as_bytes()), Ok(text.len()));
        print("read before\n");
        lane.relay();
        print("waits in the pipe\n");
        let begun = lane.record.printed();
        print("of the call\n");
        lane.relay();
        assert_eq!(lane.record.tail(begun), "of the call");
        assert_eq!(lane.record.tail(0), "read before\nwaits in the pipe\nof the call");
        assert_eq!(lane.record.tail(lane.record.printed()), "");
        // A stack is not output of the function.
        lane.record.begin_stack();
        print("a frame\n");
        lane.relay();
        assert_eq!(
            (lane.record.end_stack().as_str(), lane.record.tail(begun).as_str()),
            ("a frame\n", "of the call")
        );
        print(&"x".repeat(2 * TAIL));
        lane.drain();
        assert_eq!(lane.record.tail(begun), "x".repeat(TAIL));
        assert_eq!(lane.record.tail(lane.record.printed() - 3), "xxx");
    }

    #[test]
    fn a_line_is_kept_until_its_end_comes_or_it_is_too_long() {
        let (mut lane, theirs) = watched();
        rustix::io::write(&theirs, b"one\ntwo").unwrap();
        lane.relay();
        assert_eq!(lane.line, b"two");
        rustix::io::write(&theirs, b" and\nthree").unwrap();
        lane.relay();
        assert_eq!(lane.line, b"three");
        for _ in 0..=LINE / PIECE {
            rustix::io::write(&theirs, &[b'.'; PIECE]).unwrap();
            lane.relay();
            assert!(lane.line.len() <= LINE);
        }
        lane.drain();
        assert_eq!(lane.line, b"");
    }
}
