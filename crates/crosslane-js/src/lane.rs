//! A lane: a thread with an isolate, which answers the calls of one ring.

use crate::guest::{Answer, Guest};
use crate::isolate::{Handle, Host, Reason};
use crate::library::Library;
use crosslane::stats::now;
use crosslane::{DataType, Failure};
use crosslane_process::guest::{Call, GuestLane};
use crosslane_ring::Control;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long V8 gets to note where it is before it is stopped wherever that is.
const NOTE: Duration = Duration::from_millis(100);

/// What the host's watch knows of a lane.
#[derive(Debug)]
pub(crate) struct Watched {
    control: Control,
    /// Of the isolate at work; a lane whose memory was used up gets a fresh one.
    handle: Mutex<Arc<Handle>>,
    /// How long a row may take, in nanoseconds, while a call runs that has a limit; else 0.
    limit: AtomicU64,
    closed: AtomicBool,
    pub(crate) ended: AtomicBool,
}

/// What the watch saw of a lane when it last looked.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    progress: (u32, u32),
    since: u64,
    noting: bool,
}

impl Watched {
    fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends a row that takes too long.
    pub(crate) fn look(&self, seen: &mut Seen) {
        let (now, limit, progress) = (now(), self.limit.load(Relaxed), self.control.progress());
        if limit == 0 || progress != seen.progress {
            *seen = Seen { progress, since: now, noting: false };
            return;
        }
        let late = if seen.noting { NOTE.as_nanos() as u64 } else { limit };
        if now.saturating_sub(seen.since) >= late {
            self.handle().end(Reason::Timeout, !seen.noting);
            // After this it is either over, or V8 does not come to a check.
            *seen = Seen { progress, since: now, noting: !seen.noting };
        }
    }

    /// Ends the lane, whatever it does.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
        self.handle().end(Reason::Closed, false);
    }
}

/// Where a lane's `console` goes, and its last words.
struct Console {
    log: Arc<File>,
}

impl Host for Console {
    fn print(&mut self, _: bool, text: &str) {
        // A log that nobody reads loses lines, and nothing else.
        let _ = (&*self.log).write_all(text.as_bytes());
    }

    fn fatal(&mut self, what: &str) {
        LAST_WORDS.with_borrow_mut(|words| {
            if let Some(words) = words {
                words(what);
            }
        });
        let _ = writeln!(&*self.log, "crosslane: V8 gave up: {what}");
    }
}

type LastWords = Box<dyn FnMut(&str)>;

thread_local! {
    /// Answers the call at work when V8 is about to end the process.
    static LAST_WORDS: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

/// A lane that is ready to serve.
pub(crate) struct Lane {
    lane: GuestLane,
    library: Arc<Library>,
    guest: Guest,
    log: Arc<File>,
    pub(crate) watched: Arc<Watched>,
}

impl Lane {
    /// Boots an isolate for a lane of these descriptors.
    pub(crate) fn boot(
        library: &Arc<Library>,
        memory: OwnedFd,
        socket: OwnedFd,
        log: OwnedFd,
        spin: Duration,
    ) -> io::Result<Self> {
        let lane = GuestLane::open(memory, socket, spin)?;
        let log = Arc::new(File::from(log));
        let guest = Guest::boot(library, Box::new(Console { log: Arc::clone(&log) }));
        let watched = Arc::new(Watched {
            control: lane.control().clone(),
            handle: Mutex::new(Arc::clone(guest.handle())),
            limit: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        Ok(Self { lane, library: Arc::clone(library), guest, log, watched })
    }

    /// Answers calls until the engine closes the lane.
    pub(crate) fn serve(mut self) -> io::Result<()> {
        while let Some(call) = self.lane.next_call()? {
            if self.watched.closed.load(Relaxed) {
                break;
            }
            if !self.answer(call)? {
                break;
            }
            if self.guest.is_spent() {
                self.replace_guest();
            }
        }
        LAST_WORDS.set(None);
        Ok(())
    }

    /// A fresh isolate, for one whose heap may be full of what a call left behind.
    fn replace_guest(&mut self) {
        let console = Console { log: Arc::clone(&self.log) };
        self.guest = Guest::boot(&self.library, Box::new(console));
        *self.watched.handle.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(self.guest.handle());
    }

    /// False if the engine no longer waits.
    fn answer(&mut self, call: Call) -> io::Result<bool> {
        let index = call.header.function as usize;
        let library = Arc::clone(&self.library);
        let Some(function) = library.functions.get(index) else {
            return Err(io::Error::other(format!("a call of function {index}")));
        };
        self.leave_last_words(call);
        let limit = function.timeout.map_or(0, |seconds| (seconds * 1e9) as u64);
        let control = self.lane.control().clone();
        let columns = self.lane.columns(function.parameters.iter().map(|data_type| -> &DataType { data_type }))?;
        self.watched.limit.store(limit, Relaxed);
        let answer = self.guest.answer(index, &columns, call.header.rows as usize, control.word());
        self.watched.limit.store(0, Relaxed);
        drop(columns);
        match answer {
            Answer::Done(results, mishaps) => self.lane.succeed(call, &results, mishaps)?,
            Answer::Failed(failure, row) => self.lane.fail(call, &failure, row)?,
            Answer::Closed => return Ok(false),
        }
        Ok(true)
    }

    /// If V8 has to end the process during this call, the call's caller is told why; the other lanes'
    /// callers try again elsewhere.
    fn leave_last_words(&mut self, call: Call) {
        let lane: *mut GuestLane = &mut self.lane;
        let control = self.lane.control().clone();
        LAST_WORDS.set(Some(Box::new(move |what| {
            let row = control.progress().1;
            let failure = Failure {
                class: "RangeError".into(),
                message: format!(
                    "V8 had to give up: {what}. The option memory_limit ends such calls earlier, and only them"
                ),
                traceback: String::new(),
            };
            // SAFETY: the words are spoken on the lane's own thread, during the call, while `serve` holds the
            // lane; whatever borrows it below on the stack is never returned to, because the process ends.
            let _ = unsafe { &mut *lane }.fail(call, &failure, (row != u32::MAX).then_some(row as usize));
        })));
    }
}
