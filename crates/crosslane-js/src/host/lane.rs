//! A lane: a thread with an isolate. The lane answers the calls of one ring buffer.

use super::watch::{PendingCall, Watched, lock};
use crate::guest::{Answer, Guest, MEMORY, News, Step};
use crate::host::waker::Waker;
use crate::isolate::{Host, Reason};
use crate::library::{Function, Library};
use crosslane::lane::COUNT;
use crosslane::{DataType, Entry, Failure, Instances};
use crosslane_process::guest::{Call, Emitted, GuestLane, Next, RowCounts};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the end of an unfinished generator may take, and how long a tear-down may take, in
/// seconds. The engine ends the lane after two seconds.
const CLOSING: f64 = 1.0;

/// The most rows of a scan's batch, and of its first batch.
const MOST_ROWS: usize = 2048;
const FIRST: usize = 8;

/// The time that a batch of a scan should take.
const LONG: Duration = Duration::from_millis(10);

/// Writes the output of a lane's `console` to the log. Tells the engine when V8 cannot go on.
struct Console {
    log: Arc<File>,
    watched: Arc<Watched>,
}

impl Host for Console {
    fn print(&self, _: bool, text: &str) {
        // If no process reads the log, only its lines are lost.
        let _ = (&*self.log).write_all(text.as_bytes());
    }

    fn confirm(&self, reason: Reason) -> bool {
        // The row may have ended while the watch compared times.
        let watched = &self.watched;
        reason != Reason::Timeout || watched.late.load(Relaxed) == watched.progress.word().load(Relaxed)
    }

    fn fatal(&self, reason: Reason, what: &str) {
        self.watched.fail_pending_call(reason, what);
    }
}

/// A lane that is ready to serve.
pub(crate) struct Lane {
    lane: GuestLane,
    library: Arc<Library>,
    guest: Guest,
    log: Arc<File>,
    waker: Arc<Waker>,
    pub(crate) watched: Arc<Watched>,
    types: Types,
}

/// The argument types of calls of functions that take any type. The keys are the function's index
/// and the text of the types.
#[derive(Default)]
struct Types(HashMap<usize, Instances<Box<str>, Vec<DataType>>>);

impl Types {
    fn get(&mut self, index: usize, text: &str, function: &Function) -> Result<&[DataType], String> {
        let known = self.0.entry(index).or_default().get_or_make(text, || function.for_types(text))?;
        Ok(known)
    }
}

impl Lane {
    /// Boots the isolate of a lane. The lane uses these descriptors.
    pub(crate) fn boot(
        library: &Arc<Library>,
        memory: OwnedFd,
        socket: OwnedFd,
        log: OwnedFd,
        spin: Duration,
        waker: Arc<Waker>,
    ) -> io::Result<Self> {
        // SAFETY: an engine sent the descriptors for this lane, and only this code opens it.
        let lane = unsafe { GuestLane::open(memory, socket, spin) }?;
        let log = Arc::new(File::from(log));
        let watched = Arc::new(Watched::new(lane.progress().clone()));
        let guest = boot(library, &log, &watched)?;
        let (library, types) = (Arc::clone(library), Types::default());
        Ok(Self { lane, library, guest, log, waker, watched, types })
    }

    /// Answers calls until the engine closes the lane.
    pub(crate) fn serve(mut self) -> io::Result<()> {
        loop {
            let call = match self.lane.next_call_or(|| false)? {
                Next::Call(call) => call,
                // The engine cancelled a call that has already ended.
                Next::Cancelled => continue,
                Next::Closed | Next::Stopped => return Ok(()),
            };
            if self.watched.closed.load(Relaxed) || !self.serve_one(call)? {
                return Ok(());
            }
            if self.guest.is_spent() {
                // The lane ends. So the engine learns that the states are lost.
                if self.guest.has_states() {
                    return Ok(());
                }
                // The heap may still be full, and the process may have no memory for two isolates.
                // So the old isolate is freed first.
                drop(self.guest);
                self.guest = boot(&self.library, &self.log, &self.watched)?;
            }
        }
    }

    /// Answers a call. Returns false if the engine no longer waits.
    fn serve_one(&mut self, call: Call) -> io::Result<bool> {
        match call.entry() {
            Some(Entry::SetUp) => return self.set_up(call),
            Some(Entry::TearDown) => return self.tear_down(call),
            _ => {}
        }
        let index = call.header.function as usize;
        let library = Arc::clone(&self.library);
        let Some(function) = library.functions.get(index) else {
            return Err(io::Error::other(format!("a call of function {index}")));
        };
        if self.guest.needs_set_up(index) {
            // The call's own time starts after the set-up.
            let time = library.time.as_secs_f64();
            match self.set_up_one(call, index, function, Some(time)) {
                Ok(()) => self.lane.progress().set(call.header.exchange as u32, COUNT),
                // The call has begun no row, so `retries` and `on_error` do not apply.
                Err(Some(failure)) => return self.answer_without_results(call, Some(failure)),
                Err(None) => return Ok(false),
            }
        }
        let entry = call.entry().and_then(|entry| Some((entry, function.takes(entry)?)));
        match entry {
            Some((Entry::Call, _)) => self.answer(call, function),
            Some((entry @ (Entry::Scan | Entry::Partitions | Entry::Map), types)) => {
                let wanted = self.scan(call, function, entry, &types);
                self.guest.detach();
                wanted
            }
            Some((entry, types)) => self.enter(call, function, entry, &types),
            None => self.answer_without_results(call, Some(call.refusal())),
        }
    }

    /// Answers a call that has no results. Returns true.
    fn answer_without_results(&mut self, call: Call, failure: Option<Failure>) -> io::Result<bool> {
        match failure {
            None => self.lane.succeed(call.with_rows(0), &(), RowCounts::default())?,
            Some(failure) => self.lane.fail(call, &failure, None)?,
        }
        Ok(true)
    }

    /// Sets up the functions that the call is for. The engine ends a set-up that takes too long.
    /// Returns false if the engine no longer waits.
    fn set_up(&mut self, call: Call) -> io::Result<bool> {
        let library = Arc::clone(&self.library);
        let mut first = None;
        for (index, function) in library.functions.iter().enumerate() {
            let is_meant = call.set_up_only().map_or(function.spec.workers.is_none(), |only| only == index);
            if !is_meant || !self.guest.needs_set_up(index) {
                continue;
            }
            match self.set_up_one(call, index, function, None) {
                Ok(()) => {}
                Err(Some(failure)) => first = first.or(Some(failure)),
                Err(None) => return Ok(false),
            }
            if self.guest.is_spent() {
                break;
            }
        }
        self.answer_without_results(call, first)
    }

    /// Sets up a function within `limit` seconds, as [`Guest::set_up`] does.
    fn set_up_one(
        &mut self,
        call: Call,
        index: usize,
        function: &Function,
        limit: Option<f64>,
    ) -> Result<(), Option<Failure>> {
        work(&self.watched, &self.waker, &raw mut self.lane, call, function, limit, || {
            self.guest.set_up(index)
        })
    }

    /// Tears down all functions within [`CLOSING`], the last function first. Failures go to the
    /// log, because no query reads them. Returns false if the engine no longer waits.
    fn tear_down(&mut self, call: Call) -> io::Result<bool> {
        let library = Arc::clone(&self.library);
        let until = Instant::now() + Duration::from_secs_f64(CLOSING);
        let mut first = None;
        for (index, function) in library.functions.iter().enumerate().rev() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // The progress of each function is different, so the watch measures each function
            // alone.
            self.lane.progress().set(call.header.exchange as u32, COUNT | index as u32);
            let left = Some(left.as_secs_f64());
            let ended = work(&self.watched, &self.waker, &raw mut self.lane, call, function, left, || {
                self.guest.tear_down(index)
            });
            match ended {
                Ok(()) => {}
                Err(Some(failure)) => {
                    // If no process reads the log, only its lines are lost.
                    let _ = (&*self.log).write_all(format!("{failure}\n").as_bytes());
                    first = first.or(Some(failure));
                }
                Err(None) => return Ok(false),
            }
        }
        self.answer_without_results(call, first)
    }

    /// Runs an entry of an aggregate. Returns false if the engine no longer waits.
    fn enter(
        &mut self,
        call: Call,
        function: &Function,
        entry: Entry,
        types: &[DataType],
    ) -> io::Result<bool> {
        let progress = self.lane.progress().clone();
        let (index, rows) = (call.header.function as usize, call.header.rows as usize);
        let lane = &raw mut self.lane;
        let columns = self.lane.columns(types.iter())?;
        let answer = work(&self.watched, &self.waker, lane, call, function, function.spec.timeout, || {
            self.guest.enter(index, entry, &columns, rows, progress.word())
        });
        drop(columns);
        send_answer(&mut self.lane, call, answer)
    }

    /// Sends the batches of a scan. It ends after the last batch, or when the engine cancels the
    /// scan. Returns false if the engine no longer waits.
    fn scan(
        &mut self,
        call: Call,
        function: &Function,
        entry: Entry,
        types: &[DataType],
    ) -> io::Result<bool> {
        let progress = self.lane.progress().clone();
        let progress = progress.word();
        let lane = &raw mut self.lane;
        let columns = self.lane.columns(types.iter())?;
        let mut step = work(&self.watched, &self.waker, lane, call, function, function.spec.timeout, || {
            self.guest.open(call.header.function as usize, entry, &columns, progress)
        });
        drop(columns);
        // The engine needs all rows of a stream's batch, so its batches do not start small.
        let mut most = if entry == Entry::Map { MOST_ROWS } else { FIRST };
        let mut took = Duration::ZERO;
        let mut failure: Option<(Failure, usize)> = None;
        let mut cancelled = false;
        loop {
            match step {
                Step::Done | Step::Interrupted => {}
                Step::Rows { results, rows, errors, last } => {
                    let row_counts = RowCounts { errors, ..RowCounts::default() };
                    if last && failure.is_none() {
                        self.lane.succeed(call.with_rows(rows), &results, row_counts)?;
                        return Ok(true);
                    }
                    if rows > 0 {
                        let closed = || self.watched.closed.load(Relaxed);
                        match self.lane.emit_with(&call, rows, &results, row_counts, closed)? {
                            Emitted::Sent => most = next_most(most, rows, took),
                            Emitted::Cancelled => cancelled = true,
                            Emitted::Stopped => return Ok(false),
                            Emitted::Failed(no_memory) => failure = Some((no_memory, row_at(progress))),
                        }
                    }
                }
                Step::Failed(why) if failure.is_none() => {
                    failure = Some((why, row_at(progress)));
                    step = work(
                        &self.watched,
                        &self.waker,
                        &raw mut self.lane,
                        call,
                        function,
                        Some(CLOSING),
                        || self.guest.rest(),
                    );
                    continue;
                }
                Step::Failed(_) => {}
                Step::Closed => return Ok(false),
            }
            cancelled = cancelled || self.lane.has_message() && self.lane.is_cancelled(&call)?;
            if cancelled || failure.is_some() {
                break;
            }
            let lane = &raw mut self.lane;
            let begun = Instant::now();
            let (word, seen) = self.lane.news();
            step = work(&self.watched, &self.waker, lane, call, function, function.spec.timeout, || {
                self.guest.rows(most, progress, News(word, seen))
            });
            took = begun.elapsed();
        }
        if !self.guest.is_spent() {
            let limit = function.spec.timeout.map_or(CLOSING, |timeout| timeout.min(CLOSING));
            let closed =
                work(&self.watched, &self.waker, &raw mut self.lane, call, function, Some(limit), || {
                    self.guest.close(progress)
                });
            // A `finally` block may throw here. This ignores the error.
            if matches!(closed, Step::Closed) {
                return Ok(false);
            }
        }
        match failure {
            Some((failure, row)) => self.lane.fail(call, &failure, Some(row))?,
            None => self.lane.succeed(call.with_rows(0), &(), RowCounts::default())?,
        }
        Ok(true)
    }

    /// Calls a function with a batch. Returns false if the engine no longer waits.
    fn answer(&mut self, call: Call, function: &Function) -> io::Result<bool> {
        let index = call.header.function as usize;
        let types = match self.lane.types(&call)? {
            None => None,
            Some(types) => match self.types.get(index, types, function) {
                Ok(known) => Some(known),
                Err(message) => {
                    let failure = Failure { class: "Error".into(), message, ..Failure::default() };
                    return self.answer_without_results(call, Some(failure));
                }
            },
        };
        let progress = self.lane.progress().clone();
        let lane = &raw mut self.lane;
        let columns = self.lane.columns(types.unwrap_or(&function.parameters).iter())?;
        let answer = work(&self.watched, &self.waker, lane, call, function, function.spec.timeout, || {
            self.guest.answer(index, &columns, call.header.rows as usize, progress.word())
        });
        drop(columns);
        send_answer(&mut self.lane, call, answer)
    }
}

/// Sends an answer. Returns false if the engine no longer waits.
fn send_answer(lane: &mut GuestLane, call: Call, answer: Answer<'_>) -> io::Result<bool> {
    match answer {
        Answer::Done(results, row_counts) => lane.succeed(call, &results, row_counts)?,
        Answer::Nothing(row_counts) => lane.succeed(call.with_rows(0), &(), row_counts)?,
        Answer::Failed(failure, row) => lane.fail(call, &failure, row)?,
        Answer::Closed => return Ok(false),
    }
    Ok(true)
}

/// Runs the isolate for a call, within `limit` seconds. The watch may answer the call only while
/// the isolate runs. So a lane that cannot read its call ends without an answer.
fn work<T>(
    watched: &Watched,
    waker: &Waker,
    lane: *mut GuestLane,
    call: Call,
    function: &Function,
    limit: Option<f64>,
    run: impl FnOnce() -> T,
) -> T {
    watched.begin(PendingCall { lane, call }, limit, function.spec.memory_limit.unwrap_or(MEMORY as u64));
    // The watch does not sleep while there is a pending call.
    waker.begin_call();
    let done = run();
    end(watched);
    done
}

/// Notes that the isolate has ended its work.
fn end(watched: &Watched) {
    watched.limit.store(0, Relaxed);
    if lock(&watched.pending_call).take().is_none() {
        // The watch has answered the call. It now ends the process.
        loop {
            std::thread::park();
        }
    }
}

/// Reads the row of a scan from its progress.
fn row_at(progress: &AtomicU64) -> usize {
    progress.load(Relaxed) as u32 as usize
}

/// Returns how many rows the next batch of a scan may have, after a batch of `rows` rows took this time and
/// `most` were allowed. The first batches are small, and batches of slow rows are small. So a query that needs
/// few rows does not wait for many rows.
fn next_most(most: usize, rows: usize, took: Duration) -> usize {
    let in_time = LONG.as_secs_f64() / took.as_secs_f64().max(1e-9) * rows as f64;
    (in_time as usize).min(2 * most).clamp(1, MOST_ROWS)
}

fn boot(library: &Arc<Library>, log: &Arc<File>, watched: &Arc<Watched>) -> io::Result<Guest> {
    let console = Console { log: Arc::clone(log), watched: Arc::clone(watched) };
    let guest = Guest::boot(library, Box::new(console)).map_err(io::Error::other)?;
    *lock(&watched.handle) = Some(Arc::clone(guest.handle()));
    Ok(guest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::watch::LastLook;
    use crate::isolate::Handle;
    use crosslane::Address;
    use crosslane::batch::BATCH;
    use crosslane::lane::Lane as _;
    use crosslane_process::testing::{both_ends, fill};
    use std::ptr::NonNull;

    /// The watch serves all lanes, so it must not wait.
    #[test]
    fn the_end_of_a_process_does_not_wait_for_a_full_ring() {
        for is_full in [true, false] {
            let (mut engine, mut guest) = both_ends(4096);
            if is_full {
                fill(&mut engine, &mut guest);
            }
            let before = engine.in_flight();
            engine.submit(Address::call(0), 1, &()).unwrap().unwrap();
            let call = guest.next_call().unwrap().unwrap();
            let watched = Watched::new(guest.progress().clone());
            *lock(&watched.pending_call) = Some(PendingCall { lane: &raw mut guest, call });
            assert!(watched.fail_pending_call(Reason::Memory, "it is too large"));
            for _ in 0..before {
                assert_eq!(engine.try_collect().unwrap().unwrap().kind, BATCH);
            }
            let told = engine.try_collect().unwrap();
            assert_eq!(told.is_some(), !is_full, "{told:?}");
        }
    }

    /// A set-up and the call after it have the same progress: all rows. Between them, the progress
    /// changes too shortly for the watch to see it.
    #[test]
    fn the_time_of_a_set_up_does_not_count_for_the_call() {
        let (mut engine, mut guest) = both_ends(4096);
        engine.submit(Address::call(0), 1, &()).unwrap().unwrap();
        let call = guest.next_call().unwrap().unwrap();
        guest.progress().set(1, u32::MAX);
        let watched = Watched::new(guest.progress().clone());
        let handle = Handle::new(NonNull::dangling());
        handle.forget();
        *lock(&watched.handle) = Some(handle);
        let lane = &raw mut guest;
        let seconds = |seconds: u64| seconds * 1_000_000_000;
        let mut last = LastLook::default();
        for limit in [5, 1] {
            watched.begin(PendingCall { lane, call }, Some(limit as f64), 0);
            watched.look(&mut last);
            assert!(!last.stack_requested, "it has only begun");
            last.since -= seconds(limit) - seconds(1) / 2;
            watched.look(&mut last);
            assert!(!last.stack_requested, "it has half a second left");
            end(&watched);
        }
        watched.begin(PendingCall { lane, call }, Some(1.0), 0);
        watched.look(&mut last);
        last.since -= seconds(1);
        watched.look(&mut last);
        assert!(last.stack_requested);
    }
}
