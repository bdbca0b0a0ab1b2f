//! A worker at which its warden looks: whether it is at work, its limits, and why the warden has ended it.

use super::usage::{Base, Tree};
use crate::identity::Process;
use crosslane::{Address, Entry, Sandbox};
use rustix::net::SendFlags;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Wakes the warden of a zygote.
#[derive(Debug)]
pub(crate) struct Bell {
    socket: UnixStream,
    /// Whether the warden looks at workers already.
    pub(super) looks: AtomicBool,
    /// Whether the warden looks seldom at what is bounded ([`super::bounds`]).
    pub(super) rests: AtomicBool,
}

impl Bell {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, looks: AtomicBool::new(false), rests: AtomicBool::new(false) }
    }

    /// Wakes the warden.
    pub(crate) fn ring(&self) {
        let _ = rustix::net::send(&self.socket, b"l", SendFlags::NOSIGNAL);
    }

    /// Wakes the warden, if it rests. Work has begun.
    pub(crate) fn work_begins(&self) {
        if self.rests.load(SeqCst) && self.rests.swap(false, SeqCst) {
            self.ring();
        }
    }

    /// Ends the warden.
    pub(crate) fn end(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// The memory of a worker. Its lane and the warden share this.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The limits of the library's functions, by their indices.
    limits: Arc<[Option<u64>]>,
    pub(super) tree: Tree,
    /// The worker's memory before its first exchange, until the warden takes it.
    first: Mutex<Option<Base>>,
    /// The limit of the current exchange, in bytes; 0 if there is none.
    pub(super) limit: AtomicU64,
}

/// A worker at which its warden looks. Its lane and the warden share this.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) process: Arc<Process>,
    bell: Arc<Bell>,
    /// Its memory, if a function of its library has a limit.
    pub(crate) memory: Option<Memory>,
    /// Whether it is in a sandbox, and so is bounded ([`super::bounds`]).
    pub(crate) is_bounded: bool,
    /// Whether its sandbox allows programs.
    pub(crate) may_run: bool,
    /// Odd while the worker is at work.
    work: AtomicU64,
    /// Whether the worker has states of an aggregate. Only its lane reads this.
    holds: AtomicBool,
    /// Why the warden has ended the worker.
    ended: OnceLock<String>,
}

impl Observed {
    /// A worker that has done nothing yet.
    pub(crate) fn new(
        process: Arc<Process>,
        bell: Arc<Bell>,
        memory: Option<Memory>,
        sandbox: Option<&Sandbox>,
    ) -> Self {
        Self {
            process,
            bell,
            memory,
            is_bounded: sandbox.is_some(),
            may_run: sandbox.is_some_and(|sandbox| !sandbox.run.is_empty()),
            work: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            ended: OnceLock::new(),
        }
    }

    /// Notes that the worker begins an exchange, with nothing else in flight. All exchanges of an
    /// aggregate are one work, from the first exchange to the one that forgets the states.
    pub(crate) fn begins(&self, address: Address) {
        let is_state = matches!(
            address.entry,
            Entry::Update | Entry::Combine | Entry::Finish | Entry::Save | Entry::Load | Entry::Forget
        );
        let holds = is_state && address.entry != Entry::Forget;
        let held = self.holds.load(Relaxed);
        self.holds.store(holds, Relaxed);
        if held && is_state {
            return;
        }
        if let Some(memory) = &self.memory {
            memory.begins(address);
        }
        // The number goes from an even one to an odd one. Or it goes from an odd one, of states
        // that were never forgotten, to the next odd one.
        self.work.fetch_add(if is_at_work(self.work.load(Relaxed)) { 2 } else { 1 }, SeqCst);
        self.bell.work_begins();
        if let Some(memory) = &self.memory {
            memory.wake(&self.bell);
        }
    }

    /// Notes that the worker has ended an exchange. `in_flight` exchanges are in flight behind it.
    pub(crate) fn ends(&self, in_flight: usize) {
        if !self.holds.load(Relaxed) {
            self.work.fetch_add(if in_flight == 0 { 1 } else { 2 }, Relaxed);
        }
    }

    /// A number that changes with each work. It is odd while the worker is at work.
    pub(super) fn work(&self) -> u64 {
        self.work.load(SeqCst)
    }

    /// The reason for the worker's end, if the warden has ended it.
    pub(crate) fn why_it_ended(&self) -> Option<String> {
        let why = self.ended.get()?;
        Some(format!("{why}; its worker process was ended, with all that it had started"))
    }

    /// Notes why the worker ends.
    pub(super) fn note_end(&self, why: &str) {
        let _ = self.ended.set(why.to_owned());
    }

    /// Ends the worker and the processes below it.
    pub(super) fn end(&self, why: &str, below: &[i32]) {
        self.note_end(why);
        // Processes outside of the worker's group are found before its end, and end after it,
        // because the worker may wait for them.
        let below = below.iter().filter_map(|pid| Process::below(*pid, self.process.pid).ok());
        let below: Vec<_> = below.collect();
        self.process.kill();
        below.iter().for_each(Process::kill);
    }
}

impl Memory {
    /// The memory of a worker that has done nothing yet. `reaper` is the process that the engine has
    /// started for the zygote. `lane` is the size of the lane's memory in bytes.
    pub(crate) fn new(limits: Arc<[Option<u64>]>, pid: i32, reaper: i32, lane: u64) -> Self {
        let tree = Tree::new(pid, reaper, lane);
        let first = Mutex::new(tree.base());
        Self { limits, tree, first, limit: AtomicU64::new(0) }
    }

    /// Notes the limit of new work, before the work counts.
    fn begins(&self, address: Address) {
        let limit = match address.entry {
            Entry::SetUp | Entry::TearDown | Entry::Forget => None,
            _ => self.limits.get(address.function as usize).copied().flatten(),
        };
        self.limit.store(limit.unwrap_or(0), Relaxed);
    }

    /// Wakes the warden, if it does not look, and the work that has begun has a limit.
    fn wake(&self, bell: &Bell) {
        let has_limit = self.limit.load(Relaxed) > 0;
        if has_limit && !bell.looks.load(SeqCst) && !bell.looks.swap(true, SeqCst) {
            bell.ring();
        }
    }

    /// The memory before the first exchange, once.
    pub(super) fn take_first(&self) -> Option<Base> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a worker is at work, by the count of its lane.
pub(super) fn is_at_work(work: u64) -> bool {
    work & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_begins_wakes_a_warden_that_rests_once() {
        let (ours, warden) = UnixStream::pair().unwrap();
        warden.set_nonblocking(true).unwrap();
        let bell = Arc::new(Bell::new(ours));
        let process = Arc::new(Process::open(std::process::id() as i32).unwrap());
        let worker = Observed::new(process, Arc::clone(&bell), None, None);
        let rung = || rustix::io::read(&warden, &mut [0; 8]).ok();
        let work = || {
            worker.begins(Address::call(0));
            worker.ends(0);
        };
        work();
        assert_eq!(rung(), None);
        bell.rests.store(true, SeqCst);
        work();
        work();
        assert_eq!(rung(), Some(1));
        assert!(!bell.rests.load(SeqCst));
    }
}
