//! The thread that listens to a zygote and its lanes: answers, deaths, and what they print.
//!
//! It alone reads the control socket and the lanes' log pipes, so that nothing a guest prints can
//! fill a pipe and stop it, and nothing waits for a line that only a lock's holder would read.

use crate::control::{self, Answer};
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// How much of what a lane printed is kept for the error that tells of its end.
const TAIL: usize = 4096;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

/// What the warden knows of a lane, shared with the lane.
#[derive(Debug)]
pub(crate) struct LaneRecord {
    pub(crate) id: u64,
    ended: Mutex<Option<Ended>>,
    end: Condvar,
    tail: Mutex<VecDeque<u8>>,
    /// Whether the tail holds anything.
    printed: AtomicBool,
}

impl LaneRecord {
    pub(crate) fn new(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            ended: Mutex::new(None),
            end: Condvar::new(),
            tail: Mutex::new(VecDeque::new()),
            printed: AtomicBool::new(false),
        })
    }

    /// How the process ended, if the zygote says so in time.
    pub(crate) fn wait_for_end(&self, patience: Duration) -> Option<Ended> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = self
            .end
            .wait_timeout_while(ended, patience, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }

    /// Whether the zygote has said that the process ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set_ended(&self, ended: Ended) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        self.end.notify_all();
    }

    /// The end of what the lane printed.
    pub(crate) fn tail(&self) -> String {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(tail.make_contiguous()).trim_end().to_owned()
    }

    /// Forgets what earlier calls printed.
    pub(crate) fn begin_call(&self) {
        if self.printed.swap(false, Relaxed) {
            self.tail.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    fn printed(&self, bytes: &[u8]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(bytes);
        self.printed.store(true, Relaxed);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

struct Watched {
    record: Arc<LaneRecord>,
    log: Option<OwnedFd>,
    ended: bool,
}

/// Lanes that the warden is to watch, with a byte on the bell for each.
pub(crate) type NewLane = (Arc<LaneRecord>, OwnedFd);

pub(crate) struct Warden {
    pub(crate) control: Arc<UnixStream>,
    pub(crate) answers: mpsc::Sender<Answer>,
    pub(crate) lanes: mpsc::Receiver<NewLane>,
    /// Readable when a new lane waits; at its end the warden stops.
    pub(crate) bell: UnixStream,
    /// What the zygote itself prints.
    pub(crate) log: OwnedFd,
    pub(crate) zygote: Arc<LaneRecord>,
    pub(crate) on_interrupt: Arc<dyn Fn() + Send + Sync>,
}

impl Warden {
    pub(crate) fn run(self) {
        let mut lanes = vec![Watched { record: self.zygote, log: Some(self.log), ended: true }];
        let mut control_open = true;
        loop {
            let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
            if control_open {
                fds.push(PollFd::new(&*self.control, PollFlags::IN));
            }
            fds.extend(
                lanes.iter().filter_map(|lane| lane.log.as_ref()).map(|log| PollFd::new(log, PollFlags::IN)),
            );
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let mut ready: VecDeque<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let bell = ready.pop_front() == Some(true);
            let news = control_open && ready.pop_front() == Some(true);
            for lane in lanes.iter_mut().filter(|lane| lane.log.is_some()) {
                if ready.pop_front() == Some(true) && !relay(lane) {
                    lane.log = None;
                }
            }
            // New lanes before news of their end.
            if bell {
                let mut byte = [0; 64];
                if matches!(rustix::io::read(&self.bell, &mut byte), Ok(0) | Err(_)) {
                    // What was printed last is still in the pipes.
                    lanes.iter().for_each(|lane| _ = relay(lane));
                    return;
                }
            }
            lanes.extend(self.lanes.try_iter().map(|(record, log)| Watched {
                record,
                log: Some(log),
                ended: false,
            }));
            if news {
                match control::receive(&self.control) {
                    Ok(Answer::Exited { lane, code, signal }) => {
                        if let Some(lane) = lanes.iter_mut().find(|watched| watched.record.id == lane) {
                            // Its last words, before anyone learns that there will be no more.
                            relay(lane);
                            lane.ended = true;
                            lane.record.set_ended(match (code, signal) {
                                (_, Some(signal)) => Ended::Signal(signal),
                                (code, None) => Ended::Code(code.unwrap_or(0)),
                            });
                        }
                    }
                    Ok(Answer::Interrupted) => (self.on_interrupt)(),
                    Ok(answer) => {
                        let _ = self.answers.send(answer);
                    }
                    Err(error) => {
                        control_open = false;
                        if error.kind() == std::io::ErrorKind::InvalidData {
                            let _ =
                                writeln!(std::io::stderr(), "crosslane: the zygote wrote garbage: {error}");
                        }
                        // Those who wait for an answer learn that there will be none.
                        let _ = self.answers.send(Answer::Failed { failure: crosslane::Failure::default() });
                    }
                }
            }
            lanes.retain(|lane| lane.log.is_some() || !lane.ended);
        }
    }
}

/// Passes on what is in a lane's pipe. False at its end.
fn relay(lane: &Watched) -> bool {
    let Some(log) = &lane.log else { return false };
    let mut buffer = [0; 16 << 10];
    loop {
        match rustix::io::read(log, &mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                lane.record.printed(&buffer[..count]);
                // A closed stderr loses the log, and nothing else.
                let _ = std::io::stderr().write_all(&buffer[..count]);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return error == rustix::io::Errno::AGAIN,
        }
    }
}
