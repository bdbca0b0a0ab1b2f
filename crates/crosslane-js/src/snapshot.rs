//! A snapshot: the heap of a library that was loaded once, from which isolates boot.
//!
//! It is made in two steps, as V8's own `WarmUpSnapshotDataBlob` does: the library is loaded and
//! snapshotted; an isolate booted from that calls every function with samples, so that their code is
//! compiled; and a fresh context of that isolate, which has seen none of the samples, is snapshotted with
//! the code. Isolates of different snapshots cannot live in one process at once, which V8 does not check.

use crate::ffi::{self, ClOutcome, ClText};
use crate::isolate::{self, Argument, Handle, Host, HostBox, Isolate, Reason, Tenant, Thrown};
use crate::rules;
use std::fmt;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::{Duration, Instant};

/// The JavaScript side of the guest.
pub(crate) static PRELUDE: LazyLock<String> = LazyLock::new(|| prelude("print, urlParts", FULL));

const FULL: &str = concat!(
    include_str!("js/primordials.js"),
    include_str!("js/values.js"),
    include_str!("js/missing.js"),
    include_str!("js/json.js"),
    include_str!("js/columns.js"),
    include_str!("js/intl.js"),
    include_str!("js/encoding.js"),
    include_str!("js/url.js"),
    include_str!("js/timers.js"),
    include_str!("js/stateful.js"),
    include_str!("js/run.js"),
    include_str!("js/clone.js"),
    include_str!("js/saved.js"),
    include_str!("js/scan.js"),
    include_str!("js/aggregate.js"),
    include_str!("js/console.js"),
    include_str!("js/declare.js"),
    include_str!("js/warm.js"),
    include_str!("js/describe.js"),
    include_str!("js/guest.js"),
    "return methods;"
);

/// The little that a program's own contexts need ([`crate::embed`]).
pub(crate) static SMALL_PRELUDE: LazyLock<String> = LazyLock::new(|| prelude("print", SMALL));

const SMALL: &str = concat!(
    include_str!("js/primordials.js"),
    include_str!("js/values.js"),
    include_str!("js/missing.js"),
    include_str!("js/console.js"),
    include_str!("js/describe.js"),
    "return { describe };"
);

/// A function of these parameters with this body, which knows the rules.
fn prelude(parameters: &str, body: &str) -> String {
    format!("(function ({parameters}) {{ 'use strict';\n{}{body} }})", rules::source())
}

/// How long the sample call of one function may take, and how much memory; those of a library together
/// may take ten times as long.
const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLE_MEMORY: usize = 256 << 20;

/// What isolates boot from.
pub struct Snapshot {
    blob: ClText,
    owner: Owner,
}

/// Whose memory a snapshot is.
enum Owner {
    /// V8's, to be freed.
    V8,
    /// Ours.
    Bytes(#[allow(dead_code, reason = "the blob points into it")] Box<[u8]>),
    /// Of the whole process.
    Nobody,
}

// SAFETY: the blob is memory that nobody writes.
unsafe impl Send for Snapshot {}
// SAFETY: as above.
unsafe impl Sync for Snapshot {}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("bytes", &self.blob.length).finish()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::V8) {
            // SAFETY: the shim made it, and isolates that boot from it keep it alive.
            unsafe { ffi::cl_free_blob(self.blob) }
        }
    }
}

impl Snapshot {
    pub(crate) fn text(&self) -> ClText {
        self.blob
    }

    /// What V8 has made.
    pub(crate) fn made(blob: ClText) -> Self {
        Self { blob, owner: Owner::V8 }
    }

    /// A snapshot that was read from somewhere.
    ///
    /// # Safety
    /// As [`Snapshot::from_bytes`].
    pub(crate) unsafe fn owned(bytes: Box<[u8]>) -> Self {
        Self { blob: ClText::new(&bytes), owner: Owner::Bytes(bytes) }
    }

    /// A snapshot that was made elsewhere.
    ///
    /// # Safety
    /// The bytes must be those of a snapshot of this very build, which nobody has changed: V8 trusts them.
    pub unsafe fn from_bytes(bytes: &'static [u8]) -> Self {
        isolate::initialize();
        Self { blob: ClText::new(bytes), owner: Owner::Nobody }
    }

    /// The bytes, to make the same snapshot elsewhere.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the blob lives as long as self, and has this length.
        unsafe { std::slice::from_raw_parts(self.blob.data, self.blob.length) }
    }
}

/// An isolate in which a library is loaded, to become a snapshot.
#[derive(Debug)]
pub(crate) struct Builder {
    isolate: Isolate,
}

impl Builder {
    /// Boots without a library. `memory` limits what loading may use, in bytes.
    pub(crate) fn new(host: Box<dyn Host>, memory: usize) -> Result<Self, Thrown> {
        isolate::initialize();
        Self::boot(ClText::EMPTY, host, memory)
    }

    fn boot(blob: ClText, host: Box<dyn Host>, memory: usize) -> Result<Self, Thrown> {
        let mut host = HostBox::new(host);
        let mut outcome = ClOutcome::EMPTY;
        let prelude = ClText::new(PRELUDE.as_bytes());
        let tenant = Tenant::new(blob);
        // SAFETY: the host lives as long as the isolate; the blob does as its callers see to.
        let raw = unsafe { ffi::cl_builder(blob, prelude, &host.table(), memory, &mut outcome) };
        let isolate = Isolate::new(isolate::booted(raw, &outcome)?, None, host, tenant);
        // SAFETY: nothing was called since.
        unsafe { isolate::check(&outcome)? };
        Ok(Self { isolate })
    }

    /// Loads a module and all that it imports.
    pub(crate) fn load(&mut self, path: &str, source: &[u8], time: Duration) -> Result<(), Thrown> {
        let _limit = Deadline::new(self.isolate.handle(), time);
        self.isolate.load(path, source)
    }

    /// What the library declared, as JSON.
    pub(crate) fn declarations(&mut self) -> Result<String, Thrown> {
        Ok(self.isolate.call(c"declarations", &[], &[])?.text)
    }

    /// Gives the functions their types, as JSON.
    pub(crate) fn prepare(&mut self, types: &str) -> Result<(), Thrown> {
        self.isolate.call(c"prepare", &[], &[Argument::Text(types)])?;
        Ok(())
    }

    /// The snapshot of what was loaded.
    pub(crate) fn snapshot(self) -> Snapshot {
        Snapshot::made(self.isolate.into_snapshot())
    }
}

/// The same snapshot, with the code that the first calls of its `functions` need.
pub(crate) fn warmed(cold: &Snapshot, functions: usize) -> Result<Snapshot, Thrown> {
    let mut warmer = Builder::boot(cold.blob, Box::new(Silence), SAMPLE_MEMORY)?;
    let begun = Instant::now();
    for index in (0..functions).take_while(|_| begun.elapsed() < SAMPLE * 10) {
        let _limit = Deadline::new(warmer.isolate.handle(), SAMPLE);
        // A sample may be nothing that the function is for: what it throws tells nothing.
        let _ = warmer.isolate.call(c"warm", &[index as f64], &[]);
    }
    Ok(warmer.snapshot())
}

/// What functions print while they warm up is of no use.
struct Silence;

impl Host for Silence {
    fn print(&mut self, _: bool, _: &str) {}
    fn fatal(&mut self, _: Reason, _: &str) {}
}

/// Ends what an isolate does after some time, unless it is dropped before.
struct Deadline {
    cancel: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Deadline {
    /// How long V8 gets to note where it is before it is stopped wherever that is.
    const NOTE: Duration = Duration::from_millis(100);

    fn new(handle: &Arc<Handle>, time: Duration) -> Self {
        let (cancel, cancelled) = mpsc::channel();
        let handle = Arc::clone(handle);
        let thread = std::thread::spawn(move || {
            let mut wait = time;
            let mut stack = true;
            while let Err(mpsc::RecvTimeoutError::Timeout) = cancelled.recv_timeout(wait) {
                handle.end(Reason::Timeout, stack);
                wait = Self::NOTE;
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
