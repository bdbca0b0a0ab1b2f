//! What ends a worker that takes more memory than its function may, where no allocation fails.
//!
//! # Who enforces a `memory_limit`
//! The guest sets the kernel's limit on its private memory for the time of a call ([`crate::limits`]): an allocation beyond
//! it fails, and the guest raises its MemoryError. That limit counts neither memfds, shared mappings and files on tmpfs,
//! nor what other processes have. So the engine's [warden](crate::warden) looks at all of it while a call runs, and ends a
//! worker with all below it. JavaScript's guest counts for itself.
//!
//! # Protocol
//! A lane counts in [`Watched::work`] when its worker begins or ends an exchange: an odd number says that it is at work.
//! All exchanges of an aggregate count as one, from the first to that which forgets states, because the limit is one for
//! all states. When the warden sees a number for the first time it notes what the worker has, unless that is known from the
//! worker's start; later it measures how much more that is. It looks every [`LOOK`], or less often if looking takes long, and sleeps when no number has changed.
//! A lane that begins while the warden sleeps rings its bell. No call waits for a look, and a library without limits has no
//! looks at all.

use super::usage::{Base, Tree};
use crate::identity::Process;
use crosslane::{Address, Entry, Function};
use rustix::net::SendFlags;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a lane has counted when its first exchange has begun.
const FIRST: u64 = 1;
/// How often the warden looks at what workers have.
const LOOK: Duration = Duration::from_millis(10);
/// It looks for at most one of so many parts of the time.
const PART: u32 = 20;
/// So large a part of the limit may be exceeded: what a worker takes for itself is the kernel's matter, and may come
/// close to the limit.
const SLACK: u64 = 16;

/// What wakes the warden of a zygote.
#[derive(Debug)]
pub(crate) struct Bell {
    socket: UnixStream,
    /// Whether the warden looks at workers anyway.
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

/// A worker whose memory is watched, as its lane and the warden know it.
#[derive(Debug)]
pub(crate) struct Watched {
    bell: Arc<Bell>,
    /// The limits of the library's functions, by their indices.
    limits: Arc<[Option<u64>]>,
    process: Arc<Process>,
    tree: Tree,
    /// What it had before its first exchange, until the warden takes it.
    first: Mutex<Option<Base>>,
    /// Odd while it is at work.
    work: AtomicU64,
    /// The limit of what it works on, in bytes; 0 if there is none.
    limit: AtomicU64,
    /// Whether it has states of an aggregate. Its lane alone asks.
    holds: AtomicBool,
    /// The limit for which it was ended; 0 if it was not.
    exceeded: AtomicU64,
}

/// The limits of functions, by their indices; `None` if there are none.
pub(crate) fn limits(functions: &[Arc<Function>]) -> Option<Arc<[Option<u64>]>> {
    let limits: Arc<[_]> = functions.iter().map(|function| function.spec.memory_limit).collect();
    limits.iter().any(Option::is_some).then_some(limits)
}

impl Watched {
    /// Watches a worker that has done nothing yet. `reaper` is the process that its zygote's engine has started; the memory
    /// of its lane has so many bytes.
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

    /// Says that the worker begins an exchange, with nothing else in flight.
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
        // From one odd number, of states that were never forgotten, to another, or from an even one.
        self.work.fetch_add(if is_at_work(self.work.load(Relaxed)) { 2 } else { 1 }, SeqCst);
        if limit.is_some() && !self.bell.looks.load(SeqCst) && !self.bell.looks.swap(true, SeqCst) {
            self.bell.ring();
        }
    }

    /// Says that the worker has ended an exchange; so many are in flight behind it.
    pub(crate) fn ends(&self, in_flight: usize) {
        if !self.holds.load(Relaxed) {
            self.work.fetch_add(if in_flight == 0 { 1 } else { 2 }, Relaxed);
        }
    }

    /// Why the worker was ended, if the warden has ended it.
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
        // Those that are not in its group are found before its end, and end after it: it may wait for them.
        let below =
            self.tree.below().into_iter().filter_map(|pid| Process::below(pid, self.process.pid).ok());
        let below: Vec<_> = below.collect();
        self.process.kill();
        below.iter().for_each(Process::kill);
    }
}

/// Whether a worker is at work, by what its lane counts.
fn is_at_work(work: u64) -> bool {
    work & 1 == 1
}

/// What the warden knows of a worker that it watches.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    work: u64,
    /// What it had when the work was seen first.
    base: Option<Base>,
}

impl Seen {
    /// Looks at the worker. Whether it is at work with a limit, or was since the last look.
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
                // It may have ended the work meanwhile.
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
    /// How long the warden may sleep; `None` if nothing is to be looked at.
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
            // A lane that begins from now on rings. One that has begun since it was looked at has not.
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
