//! Makes a snapshot: the heap of a loaded library. Isolates boot from it.
//!
//! There are two steps, as in V8's own `WarmUpSnapshotDataBlob`. First a builder loads the library
//! and makes a snapshot of it. Then a second isolate boots from that snapshot, and calls every
//! function with samples. So V8 compiles the functions' code. The second snapshot has this code and
//! a fresh context, without the changes of the samples. Isolates of different snapshots cannot live
//! in one process at once. V8 does not check this.

use super::engine::{self, Host, Reason, Thrown};
use super::ffi::ClText;
use super::handle::Handle;
use super::heap::Isolate;
use super::prelude::PRELUDE;
use super::snapshot::{Snapshot, SnapshotUse};
use super::values::Argument;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the sample call of one function may take, and how much memory it may use. All sample
/// calls of a library may take ten times as long.
const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLE_MEMORY: usize = 256 << 20;

/// An isolate that loads a library and becomes a snapshot.
#[derive(Debug)]
pub(crate) struct Builder {
    isolate: Isolate,
}

impl Builder {
    /// Boots without a library. `memory` limits the memory of the load, in bytes.
    pub(crate) fn new(host: Box<dyn Host>, memory: usize) -> Result<Self, Thrown> {
        engine::initialize();
        Self::boot(ClText::EMPTY, host, memory)
    }

    fn boot(blob: ClText, host: Box<dyn Host>, memory: usize) -> Result<Self, Thrown> {
        let isolate = Isolate::builder(&PRELUDE, blob, SnapshotUse::new(blob), host.into(), memory)?;
        Ok(Self { isolate })
    }

    /// Loads a module and all its imports.
    pub(crate) fn load(&mut self, path: &str, source: &[u8], time: Duration) -> Result<(), Thrown> {
        let _limit = Deadline::new(self.isolate.handle(), time);
        self.isolate.load(path, source)
    }

    /// Returns the declarations of the library, as JSON.
    pub(crate) fn declarations(&mut self) -> Result<String, Thrown> {
        Ok(self.isolate.call(c"declarations", &[], &[])?.text)
    }

    /// Passes the types of the functions to the prelude, as JSON.
    pub(crate) fn prepare(&mut self, types: &str) -> Result<(), Thrown> {
        self.isolate.call(c"prepare", &[], &[Argument::Text(types)])?;
        Ok(())
    }

    /// Makes the snapshot of the loaded library.
    pub(crate) fn snapshot(self) -> Snapshot {
        self.isolate.into_snapshot()
    }
}

/// Makes the same snapshot with the compiled code for the first calls of its functions. `functions`
/// is the number of functions.
pub(crate) fn warmed(cold: &Snapshot, functions: usize) -> Result<Snapshot, Thrown> {
    let mut warmer = Builder::boot(cold.text(), Box::new(Silence), SAMPLE_MEMORY)?;
    let begun = Instant::now();
    for index in (0..functions).take_while(|_| begun.elapsed() < SAMPLE * 10) {
        let _limit = Deadline::new(warmer.isolate.handle(), SAMPLE);
        // The function may not accept the sample, so this ignores errors.
        let _ = warmer.isolate.call(c"warm", &[index as f64], &[]);
    }
    Ok(warmer.snapshot())
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
