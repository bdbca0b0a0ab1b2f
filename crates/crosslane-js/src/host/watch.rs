//! Watches each lane for time and memory ([`Watched::look`]). The main thread of the host runs this
//! code.
//!
//! V8 counts its heap and its array buffers, and this crate checks these counts at collections. V8
//! does not count the memory of its parsers, its compilers and ICU. Examples are `JSON.parse`,
//! `split`, `normalize`, and a regular expression of 10 MB. V8 also does not count a single large
//! string before the string is filled. Such work comes to no check, so the watch must find it. The
//! watch requests a sign that the call comes to checks. If there is no sign at the next look, the
//! watch counts pages. It counts the pages that the kernel gives to the lane's thread from then on. It
//! does not ask threads that give signs, because a question interrupts the thread. These pages belong to this call, and the work of other lanes does not change them. V8
//! counts the memory that it keeps without working on it.
//!
//! | the pages exceed | result |
//! |---|---|
//! | 1.5 times the function's limit (V8's own limit for such code) plus [`ROOM`] | the watch ends the call at its next check; without a check within [`LONGEST_EXCESS`], the process ends |
//! | the sum of the first row plus the function's limit | the process ends at once |
//!
//! The count includes pages that were freed. So the watch limits the count to the memory of the
//! process. Before the process ends, the watch tells the caller of this call the reason. The engine
//! makes the calls of other lanes again in another process.

use super::thread_memory::Thread;
use crate::isolate::{Handle, Reason};
use crosslane::Failure;
use crosslane::lane::{COUNT, WRITING};
use crosslane::stats::now;
use crosslane_process::guest::{Call, GuestLane};
use crosslane_process::limits::own_size;
use crosslane_ring::ProgressWord;
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long V8 may take to note the stack. After that, the watch ends the call without a stack.
const STACK_TIME: Duration = Duration::from_millis(100);

/// How long a call may run after it has used up its memory. Code that comes to no check may fill a
/// table for minutes. Only time in which the call's thread runs counts, because the thread may wait
/// for a processor on a busy machine.
const LONGEST_EXCESS: Duration = Duration::from_millis(500);

/// The same limit in wall time, for a thread that does not run. Such a thread may wait for an event
/// that never comes.
const WAITING: Duration = Duration::from_secs(60);

/// How much memory a call may fill in addition. This is for garbage that V8 has not collected yet,
/// for compiled code, and for unwinding.
const ROOM: u64 = 64 << 20;

/// How long the last reply before the end of the process waits for room in the ring. The watch
/// never waits longer, because it serves all lanes.
const LONGEST_REPLY: Duration = Duration::from_secs(1);

/// The state that a lane and the watch share.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(super) progress: ProgressWord,
    pub(super) thread: Thread,
    /// The handle of the isolate at work. After a call has used up its memory, the lane boots a new
    /// isolate.
    pub(super) handle: Mutex<Option<Arc<Handle>>>,
    /// The progress at which a row took too long.
    pub(super) late: AtomicU64,
    /// How long a row may take, in nanoseconds. 0 if no call runs, or if the call has no limit.
    pub(super) limit: AtomicU64,
    /// How often the isolate has begun to work. A set-up and the call after it may be on the same
    /// row, and this number tells them apart.
    pub(super) works: AtomicU64,
    /// The memory limit of the call at work, or of the last one, in bytes.
    pub(super) memory: AtomicU64,
    pub(super) closed: AtomicBool,
    pub(crate) ended: AtomicBool,
    /// The call at work. A thread that takes it out has the right to answer the call.
    pub(super) pending_call: Mutex<Option<PendingCall>>,
}

/// The state of a lane at the watch's last look.
#[derive(Debug, Default)]
pub(crate) struct LastLook {
    pub(super) works: u64,
    pub(super) progress: (u32, u32),
    pub(super) attempt: Option<u64>,
    pub(super) since: u64,
    pub(super) stack_requested: bool,
    /// When the watch first saw that the call had used up its memory, and how long the call's
    /// thread had run by then.
    pub(super) excess_since: Option<(Instant, Duration)>,
    /// The pages of the lane's thread, in bytes, when the watch first missed a sign.
    pub(super) faulted_before: Option<u64>,
}

/// The call at work. The thread that takes it out of the mutex answers the call. This is the lane's
/// thread when the call is done, or a thread that ends the process right after the answer.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) lane: *mut GuestLane,
    pub(super) call: Call,
}

// SAFETY: the pointer is used once, by the thread that took the pending call out of the mutex. The
// lane's own thread uses the lane only if it took the call itself.
unsafe impl Send for PendingCall {}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Makes the state of a lane on the current thread.
    pub(super) fn new(progress: ProgressWord) -> Self {
        Self {
            progress,
            thread: Thread::current(),
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

    /// Notes that the isolate begins to work, within `limit` seconds and `memory` bytes.
    pub(super) fn begin(&self, pending_call: PendingCall, limit: Option<f64>, memory: u64) {
        *lock(&self.pending_call) = Some(pending_call);
        self.memory.store(memory, Relaxed);
        // The store of the limit publishes this number. So if the watch sees the limit, it sees
        // this number.
        self.works.fetch_add(1, Relaxed);
        self.limit.store(limit.map_or(0, |seconds| (seconds * 1e9) as u64), Release);
    }

    pub(super) fn end(&self, reason: Reason, stack: bool) {
        if let Some(handle) = &*lock(&self.handle) {
            handle.end(reason, stack);
        }
    }

    /// Ends a row that takes too much time, and the process of a call that takes too much memory.
    pub(crate) fn look(&self, last: &mut LastLook) {
        let handle = lock(&self.handle).clone();
        let too_much = handle.as_ref().is_some_and(|handle| self.look_at_pages(handle, last));
        let pending = handle.as_ref().and_then(|handle| handle.pending());
        let attempt = handle.as_ref().and_then(|handle| handle.attempt());
        if pending != Some(Reason::Memory) {
            last.excess_since = None;
        } else if too_much || self.is_excess_for_long(last) {
            if self.fail_pending_call(Reason::Memory, "a call used up its memory and could not be ended") {
                std::process::abort();
            }
            last.excess_since = None;
        }
        let word = self.progress.word().load(Relaxed);
        let (now, limit, progress) = (now(), self.limit.load(Acquire), self.progress.get());
        let works = self.works.load(Relaxed);
        let same = (works, progress, attempt) == (last.works, last.progress, last.attempt);
        if limit == 0 || attempt.is_none() || !same {
            (last.works, last.progress, last.attempt) = (works, progress, attempt);
            (last.since, last.stack_requested) = (now, false);
            return;
        }
        let late = if last.stack_requested { STACK_TIME.as_nanos() as u64 } else { limit };
        if now.saturating_sub(last.since) >= late {
            self.late.store(word, Relaxed);
            self.end(Reason::Timeout, !last.stack_requested);
            // The row now ends, or V8 comes to no check.
            (last.since, last.stack_requested) = (now, !last.stack_requested);
        }
    }

    /// Returns whether a call that used up its memory has not ended in time.
    pub(super) fn is_excess_for_long(&self, last: &mut LastLook) -> bool {
        let worked = self.thread.cpu_time();
        let (since, before) = *last.excess_since.get_or_insert_with(|| (Instant::now(), worked));
        worked.saturating_sub(before) > LONGEST_EXCESS || since.elapsed() > WAITING
    }

    /// Ends a call that fills too much memory and comes to no check. Returns whether the process
    /// must end at once.
    pub(super) fn look_at_pages(&self, handle: &Handle, last: &mut LastLook) -> bool {
        match handle.sign() {
            Some(false) => {}
            Some(true) | None => {
                last.faulted_before = None;
                return false;
            }
        }
        let Some(faulted) = self.thread.faulted_bytes() else { return false };
        let before = *last.faulted_before.get_or_insert(faulted);
        let filled = faulted.saturating_sub(before);
        let limit = self.memory.load(Relaxed);
        let most = limit.saturating_add(limit / 2).saturating_add(ROOM);
        if filled <= most {
            return false;
        }
        let filled = filled.min(own_size().unwrap_or(0));
        if filled > most {
            handle.end(Reason::Memory, true);
        }
        filled > most.saturating_add(limit)
    }

    /// Returns whether a call is at work. If not, the lane waits, boots or ends.
    pub(crate) fn is_at_work(&self) -> bool {
        lock(&self.pending_call).is_some()
    }

    /// Ends the lane and its call.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
        self.end(Reason::Closed, false);
    }

    /// Tells the caller of the call at work why the process ends. The process must end after this.
    /// Returns false if there is no call.
    pub(super) fn fail_pending_call(&self, reason: Reason, what: &str) -> bool {
        let Some(PendingCall { lane, call }) = lock(&self.pending_call).take() else { return false };
        let row = self.progress.get().1;
        let mut message = format!("its process had to be ended: {what}");
        if reason == Reason::Memory {
            message += ". A lower memory_limit ends such calls earlier";
        }
        let failure = Failure { class: "RangeError".into(), message, ended: true, ..Failure::default() };
        // SAFETY: this thread took the pending call, and the lane lives as long as a call is at
        // work in it. The lane's thread is in V8, and does not use the lane again.
        let lane = unsafe { &mut *lane };
        let row = (row & COUNT == 0).then_some((row & !WRITING) as usize);
        let end = Instant::now() + LONGEST_REPLY;
        // If the reply is not sent, the engine sees that the process has ended.
        let _ = lane.fail_after(call, &failure, row, |lane, size| {
            let has_room = lane.wait_for_room_or(size, || Instant::now() >= end)?;
            has_room.then_some(()).ok_or(io::Error::from(io::ErrorKind::TimedOut))
        });
        true
    }
}
