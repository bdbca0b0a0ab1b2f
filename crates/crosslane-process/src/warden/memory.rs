//! Ends a worker that takes more memory than its function may, in cases where no allocation fails.
//!
//! # Who enforces a `memory_limit`
//! During a call, the guest sets the kernel's limit on its private memory ([`crate::limits`]). An
//! allocation beyond the limit fails, and the guest raises its MemoryError. That limit does not
//! count memfds, shared mappings, files on tmpfs, or the memory of other processes. So the engine's
//! [warden](crate::warden) measures all of these while a call runs. It ends a worker with all
//! processes below it. JavaScript's guest counts for itself.
//!
//! # Protocol
//! A lane increments [`Watched::work`] when its worker begins or ends an exchange. An odd number
//! says that the worker is at work. All exchanges of an aggregate count as one, from the first
//! exchange to the one that forgets the states. The reason is that one limit applies to all states.
//!
//! When the warden sees a number for the first time, it notes the worker's memory. It skips this if
//! the memory is known from the worker's start. Later it measures the growth since then. It looks
//! every [`LOOK`], or less often if a look takes long. It sleeps when no number has changed. A lane
//! that begins an exchange while the warden sleeps rings the warden's bell. No call waits for a
//! look. A library without limits causes no looks.

use super::usage::{Base, Tree};
use crate::external;
use crate::identity::Process;
use crosslane::{Address, Entry, Error, Function};
use rustix::net::SendFlags;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The count of a lane when its first exchange has begun.
const FIRST: u64 = 1;
/// How often the warden looks at the memory of workers.
const LOOK: Duration = Duration::from_millis(10);
/// The warden uses at most `1 / PART` of the time for looks.
const PART: u32 = 20;
/// The limit may be exceeded by `1 / SLACK` of it. The kernel limits the worker's own memory, which
/// may come close to the limit.
const SLACK: u64 = 16;

/// Wakes the warden of a zygote.
#[derive(Debug)]
pub(crate) struct Bell {
    socket: UnixStream,
    /// Whether the warden looks at workers already.
    looks: AtomicBool,
}

impl Bell {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, looks: AtomicBool::new(false) }
    }

    /// Wakes the warden.
    pub(crate) fn ring(&self) {
        let _ = rustix::net::send(&self.socket, b"l", SendFlags::NOSIGNAL);
    }

    /// Ends the warden.
    pub(crate) fn end(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// A worker whose memory is watched. Its lane and the warden share this.
#[derive(Debug)]
pub(crate) struct Watched {
    bell: Arc<Bell>,
    /// The limits of the library's functions, by their indices.
    limits: Arc<[Option<u64>]>,
    process: Arc<Process>,
    tree: Tree,
    /// The worker's memory before its first exchange, until the warden takes it.
    first: Mutex<Option<Base>>,
    /// Odd while the worker is at work.
    work: AtomicU64,
    /// The limit of the current exchange, in bytes; 0 if there is none.
    limit: AtomicU64,
    /// Whether the worker has states of an aggregate. Only its lane reads this.
    holds: AtomicBool,
    /// The limit that the worker exceeded before it was ended; 0 if it was not.
    exceeded: AtomicU64,
}

/// Gives a forked lane in a sandbox the kernel's counts of its memory, which it cannot open itself.
pub(crate) fn give_counts(socket: &OwnedFd, lane: &Process) -> Result<(), Error> {
    let counts = File::open(format!("/proc/{}/statm", lane.pid));
    let sent =
        counts.and_then(|counts| Ok(external::send(socket.as_fd(), counts.as_fd(), SendFlags::DONTWAIT)?));
    sent.map_err(|error| Error::Boot(format!("a worker ended before it was ready: {error}")))
}

/// The limits of functions, by their indices. `None` if no function has one.
pub(crate) fn limits(functions: &[Arc<Function>]) -> Option<Arc<[Option<u64>]>> {
    let limits: Arc<[_]> = functions.iter().map(|function| function.spec.memory_limit).collect();
    limits.iter().any(Option::is_some).then_some(limits)
}

impl Watched {
    /// Watches a worker that has done nothing yet. `reaper` is the process that the engine has
    /// started for the zygote. `lane` is the size of the lane's memory in bytes.
    pub(crate) fn new(
        bell: Arc<Bell>,
        limits: Arc<[Option<u64>]>,
        process: Arc<Process>,
        reaper: i32,
        lane: u64,
    ) -> Self {
        let tree = Tree::new(process.pid, reaper, lane);
        let first = Mutex::new(tree.base());
        Self {
            bell,
            limits,
            process,
            tree,
            first,
            work: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            exceeded: AtomicU64::new(0),
        }
    }

    /// Notes that the worker begins an exchange, with nothing else in flight.
    pub(crate) fn begins(&self, address: Address) {
        let is_state = |entry| {
            matches!(
                entry,
                Entry::Update | Entry::Combine | Entry::Finish | Entry::Save | Entry::Load | Entry::Forget
            )
        };
        if self.holds.load(Relaxed) && is_state(address.entry) {
            self.holds.store(address.entry != Entry::Forget, Relaxed);
            return;
        }
        self.holds.store(is_state(address.entry) && address.entry != Entry::Forget, Relaxed);
        let limit = match address.entry {
            Entry::SetUp | Entry::TearDown | Entry::Forget => None,
            _ => self.limits.get(address.function as usize).copied().flatten(),
        };
        self.limit.store(limit.unwrap_or(0), Relaxed);
        // The number goes from an even one to an odd one. Or it goes from an odd one, of states
        // that were never forgotten, to the next odd one.
        self.work.fetch_add(if is_at_work(self.work.load(Relaxed)) { 2 } else { 1 }, SeqCst);
        if limit.is_some() && !self.bell.looks.load(SeqCst) && !self.bell.looks.swap(true, SeqCst) {
            self.bell.ring();
        }
    }

    /// Notes that the worker has ended an exchange. `in_flight` exchanges are in flight behind it.
    pub(crate) fn ends(&self, in_flight: usize) {
        if !self.holds.load(Relaxed) {
            self.work.fetch_add(if in_flight == 0 { 1 } else { 2 }, Relaxed);
        }
    }

    /// The reason for the worker's end, if the warden has ended it.
    pub(crate) fn why_it_ended(&self) -> Option<String> {
        let limit = self.exceeded.load(Relaxed);
        (limit > 0).then(|| {
            format!(
                "more than {:.0} MB were used, the function's memory_limit; its worker process was ended, with all that it \
                 had started",
                limit as f64 / 1e6
            )
        })
    }

    fn take_first(&self) -> Option<Base> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the worker and all below it.
    fn end(&self, limit: u64) {
        self.exceeded.store(limit, Relaxed);
        // Processes outside of the worker's group are found before its end, and end after it,
        // because the worker may wait for them.
        let below =
            self.tree.below().into_iter().filter_map(|pid| Process::below(pid, self.process.pid).ok());
        let below: Vec<_> = below.collect();
        self.process.kill();
        below.iter().for_each(Process::kill);
    }
}

/// Whether a worker is at work, by the count of its lane.
fn is_at_work(work: u64) -> bool {
    work & 1 == 1
}

/// The warden's knowledge about a worker that it watches.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    work: u64,
    /// The worker's memory when the warden saw this count first.
    base: Option<Base>,
}

impl Seen {
    /// Looks at the worker. Returns whether it is at work with a limit, or was so since the last
    /// look.
    fn look(&mut self, watched: &Watched) -> bool {
        let work = watched.work.load(SeqCst);
        let limit = watched.limit.load(Relaxed);
        let is_new = work != self.work;
        if is_new {
            *self = Self { work, base: (work == FIRST).then(|| watched.take_first()).flatten() };
        }
        if !is_at_work(work) || limit == 0 || watched.process.has_ended() {
            return is_new;
        }
        match &mut self.base {
            None => self.base = watched.tree.base(),
            Some(base) => {
                let exceeds =
                    watched.tree.growth(base, limit).is_some_and(|growth| growth > limit + limit / SLACK);
                // The worker may have ended this exchange meanwhile.
                if exceeds && watched.work.load(SeqCst) == work {
                    watched.end(limit);
                }
            }
        }
        true
    }
}

/// When the warden looks next.
#[derive(Debug, Default)]
pub(crate) struct Looks(Option<Instant>);

impl Looks {
    /// How long the warden may sleep. `None` if there is nothing to look at.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        self.0.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Looks at the workers if it is time.
    pub(crate) fn look(&mut self, bell: &Bell, workers: &mut [(&Watched, &mut Seen)]) {
        let begun = Instant::now();
        match self.0 {
            None if !bell.looks.load(SeqCst) => return,
            Some(next) if begun < next => return,
            _ => {}
        }
        let mut look = || workers.iter_mut().fold(false, |busy, (watched, seen)| seen.look(watched) || busy);
        if !look() {
            // A lane that begins an exchange from now on rings. A lane that has begun one since its
            // look did not ring.
            bell.looks.store(false, SeqCst);
            if !look() {
                self.0 = None;
                return;
            }
            bell.looks.store(true, SeqCst);
        }
        let now = Instant::now();
        self.0 = Some(now + LOOK.max((now - begun) * PART));
    }
}
