//! How the host's main thread watches a lane ([`Watched::look`]), for time and for memory.
//!
//! V8 counts its heap and its array buffers, and checks them itself. It counts nothing of what its parsers, its
//! compilers and ICU take besides (`JSON.parse`, `split`, `normalize`, a regular expression of 10 MB), nor a
//! single large string before it is filled. Such work comes to no check, so the watch finds it by that: it asks the call for a
//! sign, and if there is none at the next look, counts the pages that the kernel has given to the lane's thread since it asked.
//! They are this call's, whatever the other lanes do. What V8 keeps without working on it, it counts.
//!
//! | the pages exceed | what follows |
//! |---|---|
//! | 1.5 times the function's limit, as V8's own limit for such code, and [`ROOM`] | the call is to end at its next check; if there is none within [`LONGEST_EXCESS`], the process ends |
//! | that and the limit once more | the process ends at once |
//!
//! Pages that were given back count, too; so what counts is at most what the process holds. Before the process ends, the
//! caller of this call is told why. Calls of other lanes are made again elsewhere.

use super::thread_memory;
use crate::isolate::{Handle, Reason};
use crosslane::Failure;
use crosslane::lane::{COUNT, WRITING};
use crosslane::stats::now;
use crosslane_process::guest::{Call, GuestLane};
use crosslane_ring::ProgressWord;
use rustix::process::Pid;
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long V8 gets to note where it is before it is stopped wherever that is.
const NOTE: Duration = Duration::from_millis(100);

/// For how long a call may go on after it used up its memory. Where V8 does not come to a check, it may fill a table for
/// minutes. This is time in which its thread runs: where the machine has more to do than it can, a call that comes to a
/// check at once has to wait for a processor.
const LONGEST_EXCESS: Duration = Duration::from_millis(500);

/// The same for a thread that does not run: it may wait for something that never happens.
const WAITING: Duration = Duration::from_secs(60);

/// What a call may fill beside: garbage that V8 has not collected yet, compiled code, room to unwind in.
const ROOM: u64 = 64 << 20;

/// How long the end of a process waits for an engine that is slow to take its replies. The host's watch waits for nothing
/// longer: it is there for all lanes.
const LONGEST_REPLY: Duration = Duration::from_secs(1);

/// What the host's watch knows of a lane.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(super) progress: ProgressWord,
    pub(super) thread: Pid,
    /// Of the isolate at work; a lane whose memory was used up gets a fresh one.
    pub(super) handle: Mutex<Option<Arc<Handle>>>,
    /// The progress at which a row was found to be late.
    pub(super) late: AtomicU64,
    /// How long a row may take, in nanoseconds, while a call runs that has a limit; else 0.
    pub(super) limit: AtomicU64,
    /// How often the isolate has begun to work. A set-up and the call that it is for may be on the same row.
    pub(super) works: AtomicU64,
    /// How much memory the call at work, or the last one, may use, in bytes.
    pub(super) memory: AtomicU64,
    pub(super) closed: AtomicBool,
    pub(crate) ended: AtomicBool,
    /// The right to answer the call at work.
    pub(super) pending_call: Mutex<Option<PendingCall>>,
}

/// What the watch saw of a lane when it last looked.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(super) works: u64,
    pub(super) progress: (u32, u32),
    pub(super) attempt: Option<u64>,
    pub(super) since: u64,
    pub(super) noting: bool,
    /// When the call at work had used up its memory, and for how long its thread had run then.
    pub(super) excess_since: Option<(Instant, Duration)>,
    /// What the lane's thread had been given when the call at work was asked for a sign.
    pub(super) given: Option<u64>,
}

/// Whoever takes this answers the call: the lane when it is done, or someone else whose next act is to
/// end the process.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) lane: *mut GuestLane,
    pub(super) call: Call,
}

// SAFETY: the pointer is used once, by whoever took the words out of their mutex; the lane's own thread uses
// the lane only if it took them itself.
unsafe impl Send for PendingCall {}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Of the thread that this is called on.
    pub(super) fn new(progress: ProgressWord) -> Self {
        Self {
            progress,
            thread: rustix::thread::gettid(),
            handle: Mutex::new(None),
            late: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            works: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            pending_call: Mutex::new(None),
        }
    }

    /// The isolate begins to work, within `limit` seconds and `memory` bytes.
    pub(super) fn begin(&self, pending_call: PendingCall, limit: Option<f64>, memory: u64) {
        *lock(&self.pending_call) = Some(pending_call);
        self.memory.store(memory, Relaxed);
        // Released with the limit, so that a watch that sees the limit sees that this is another work.
        self.works.fetch_add(1, Relaxed);
        self.limit.store(limit.map_or(0, |seconds| (seconds * 1e9) as u64), Release);
    }

    pub(super) fn end(&self, reason: Reason, stack: bool) {
        if let Some(handle) = &*lock(&self.handle) {
            handle.end(reason, stack);
        }
    }

    /// Ends a row that takes too long, and a process whose call takes too much.
    pub(crate) fn look(&self, seen: &mut Seen) {
        let handle = lock(&self.handle).clone();
        let too_much = handle.as_ref().is_some_and(|handle| self.look_at_pages(handle, seen));
        let pending = handle.as_ref().and_then(|handle| handle.pending());
        let attempt = handle.as_ref().and_then(|handle| handle.attempt());
        if pending != Some(Reason::Memory) {
            seen.excess_since = None;
        } else if too_much || self.is_excess_for_long(seen) {
            if self.fail_pending_call(Reason::Memory, "a call used up its memory and could not be ended") {
                std::process::abort();
            }
            seen.excess_since = None;
        }
        let word = self.progress.word().load(Relaxed);
        let (now, limit, progress) = (now(), self.limit.load(Acquire), self.progress.get());
        let works = self.works.load(Relaxed);
        let same = (works, progress, attempt) == (seen.works, seen.progress, seen.attempt);
        if limit == 0 || attempt.is_none() || !same {
            (seen.works, seen.progress, seen.attempt) = (works, progress, attempt);
            (seen.since, seen.noting) = (now, false);
            return;
        }
        let late = if seen.noting { NOTE.as_nanos() as u64 } else { limit };
        if now.saturating_sub(seen.since) >= late {
            self.late.store(word, Relaxed);
            self.end(Reason::Timeout, !seen.noting);
            // After this it is either over, or V8 does not come to a check.
            (seen.since, seen.noting) = (now, !seen.noting);
        }
    }

    /// Whether a call has not ended in the time that it has for that.
    pub(super) fn is_excess_for_long(&self, seen: &mut Seen) -> bool {
        let worked = thread_memory::worked_by(self.thread);
        let (since, before) = *seen.excess_since.get_or_insert_with(|| (Instant::now(), worked));
        worked.saturating_sub(before) > LONGEST_EXCESS || since.elapsed() > WAITING
    }

    /// Ends a call that fills more memory than it may and comes to no check. Whether it is too much to wait for that.
    pub(super) fn look_at_pages(&self, handle: &Handle, seen: &mut Seen) -> bool {
        match handle.sign() {
            Some(false) => {}
            Some(true) => {
                seen.given = Some(thread_memory::faulted_by(self.thread));
                return false;
            }
            None => {
                seen.given = None;
                return false;
            }
        }
        // V8 may have asked by itself.
        let Some(given) = seen.given else { return false };
        let filled = thread_memory::faulted_by(self.thread).saturating_sub(given);
        let limit = self.memory.load(Relaxed);
        let most = limit.saturating_add(limit / 2).saturating_add(ROOM);
        if filled <= most {
            return false;
        }
        let filled = filled.min(thread_memory::held());
        if filled > most {
            handle.end(Reason::Memory, true);
        }
        filled > most.saturating_add(limit)
    }

    /// Whether a call is at work, rather than the lane waiting, booting or going away.
    pub(crate) fn is_at_work(&self) -> bool {
        lock(&self.pending_call).is_some()
    }

    /// Ends the lane, whatever it does.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
        self.end(Reason::Closed, false);
    }

    /// Tells the caller of the call at work why the process ends, which must follow. False if there is none.
    pub(super) fn fail_pending_call(&self, reason: Reason, what: &str) -> bool {
        let Some(PendingCall { lane, call }) = lock(&self.pending_call).take() else { return false };
        let row = self.progress.get().1;
        let mut message = format!("its process had to be ended: {what}");
        if reason == Reason::Memory {
            message += ". A lower memory_limit ends such calls earlier";
        }
        let failure = Failure { class: "RangeError".into(), message, ended: true, ..Failure::default() };
        // SAFETY: the words are the right to answer, and the lane lives as long as a call is at work in it.
        // Its thread is in V8, and will not touch it again.
        let lane = unsafe { &mut *lane };
        let row = (row & COUNT == 0).then_some((row & !WRITING) as usize);
        let end = Instant::now() + LONGEST_REPLY;
        // An engine that is not told sees that the process has ended.
        let _ = lane.fail_after(call, &failure, row, |lane, size| {
            let has_room = lane.wait_for_room_or(size, || Instant::now() >= end)?;
            has_room.then_some(()).ok_or(io::Error::from(io::ErrorKind::TimedOut))
        });
        true
    }
}
