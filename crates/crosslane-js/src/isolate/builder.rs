//! Makes a snapshot: the heap of a loaded library. Isolates boot from it.
//!
//! There are two steps, as in V8's own `WarmUpSnapshotDataBlob`. First a builder loads the library
//! and makes a snapshot of it. Then a second isolate boots from that snapshot, and calls every
//! function with samples. So V8 compiles the functions' code. The second snapshot has this code and
//! a fresh context, without the changes of the samples. Isolates of different snapshots cannot live
//! in one process at once. V8 does not check this.

use super::engine::{self, Host, Reason, Thrown};
use super::handle::Handle;
use super::heap::Isolate;
use super::prelude::PRELUDE;
use super::snapshot::{Snapshot, SnapshotUse};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the sample call of one function may take, and how much memory it may use. All sample
/// calls of a library may take ten times as long.
const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLE_MEMORY: usize = 256 << 20;

/// Boots an isolate that becomes a snapshot: without a library, or from a snapshot. `memory` limits the
/// memory of the load, in bytes.
pub(crate) fn builder(
    cold: Option<&Snapshot>,
    host: Box<dyn Host>,
    memory: usize,
) -> Result<Isolate, Thrown> {
    engine::initialize();
    Isolate::builder(&PRELUDE, cold, SnapshotUse::new(cold), host.into(), memory)
}

/// Loads a module and all its imports, within `time`.
pub(crate) fn load_within(
    builder: &mut Isolate,
    path: &str,
    source: &[u8],
    time: Duration,
) -> Result<(), Thrown> {
    let _limit = Deadline::new(builder.handle(), time);
    builder.load(path, source)
}

/// Makes the same snapshot with the compiled code for the first calls of its functions. `functions`
/// is the number of functions.
pub(crate) fn warmed(cold: &Snapshot, functions: usize) -> Result<Snapshot, Thrown> {
    let mut warmer = builder(Some(cold), Box::new(Silence), SAMPLE_MEMORY)?;
    let begun = Instant::now();
    for index in (0..functions).take_while(|_| begun.elapsed() < SAMPLE * 10) {
        let _limit = Deadline::new(warmer.handle(), SAMPLE);
        // The function may not accept the sample, so this ignores errors.
        let _ = warmer.call(c"warm", &[index as f64], &[]);
    }
    Ok(warmer.into_snapshot())
}

/// Discards the output of functions during the warm-up.
struct Silence;

impl Host for Silence {
    fn print(&self, _: bool, _: &str) {}
    fn fatal(&self, _: Reason, _: &str) {}
}

/// Ends the work of an isolate after some time. Dropping it before cancels this.
struct Deadline {
    cancel: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Deadline {
    /// How long V8 may take to note the stack. After that, this ends the work without a stack.
    const STACK_TIME: Duration = Duration::from_millis(100);

    fn new(handle: &Arc<Handle>, time: Duration) -> Self {
        let (cancel, cancelled) = mpsc::channel();
        let handle = Arc::clone(handle);
        let thread = std::thread::spawn(move || {
            let mut wait = time;
            let mut stack = true;
            while let Err(mpsc::RecvTimeoutError::Timeout) = cancelled.recv_timeout(wait) {
                handle.end(Reason::Timeout, stack);
                wait = Self::STACK_TIME;
                stack = false;
            }
        });
        Self { cancel: Some(cancel), thread: Some(thread) }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.cancel = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
