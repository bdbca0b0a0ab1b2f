//! Boots isolates from snapshots, and runs calls in them.

use super::callbacks::HostBox;
use super::engine::{Host, LARGEST_OBJECTS, Reason, STACK, Thrown, check, initialize};
use super::ffi::{self, ClOutcome, ClText, ClValue};
use super::handle::Handle;
use super::prelude::PRELUDE;
use super::snapshot::{Snapshot, SnapshotUse};
use super::values::{Argument, Reply, Value};
use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Makes V8 read the system's time zone, which it reads only once. No isolate may live meanwhile.
pub(crate) fn know_time_zone() {
    initialize();
    let _no_other = SnapshotUse::new(None);
    // SAFETY: V8 has started, and no isolate of another snapshot lives.
    unsafe { ffi::cl_know_time_zone() };
}

/// An isolate that booted from a snapshot, or that builds one.
///
/// Only the thread that made the isolate uses it.
pub struct Isolate {
    raw: NonNull<ffi::ClIsolate>,
    handle: Arc<Handle>,
    /// V8 reads from this snapshot as long as the isolate lives.
    snapshot: Option<Arc<Snapshot>>,
    /// The functions that V8 calls.
    _host: Box<HostBox>,
    /// The parts of the last call's result.
    parts: Vec<ClValue>,
    snapshot_use: Option<SnapshotUse>,
}

impl fmt::Debug for Isolate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Isolate").finish_non_exhaustive()
    }
}

/// How an isolate boots, and its limits.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    /// Whether several threads use the isolate, one at a time.
    pub(crate) shared: bool,
    /// The source of the prelude, for an isolate without a snapshot.
    pub(crate) prelude: &'a str,
    /// The limit of the heap and the array buffers together, in bytes.
    pub(crate) memory: usize,
    /// The highest limit that [`Isolate::limit_memory`] will set.
    pub(crate) most: usize,
    /// How much of this thread's stack V8 may use, in bytes.
    pub(crate) stack: usize,
}

impl Isolate {
    /// Boots from a snapshot, or without a library. `memory` is the limit of the heap and the array
    /// buffers together, in bytes. `most` is the highest limit that [`Isolate::limit_memory`] will set.
    ///
    /// # Errors
    /// If the process has no memory for the isolate.
    pub fn boot(
        snapshot: Option<&Arc<Snapshot>>,
        host: Box<dyn Host>,
        memory: usize,
        most: usize,
    ) -> Result<Self, Thrown> {
        initialize();
        let most = most.max(memory);
        let boot = Boot { shared: false, prelude: &PRELUDE, memory, most, stack: STACK };
        let snapshot_use = SnapshotUse::new(snapshot.map(|snapshot| &**snapshot));
        Self::start(&boot, snapshot.cloned(), snapshot_use, host.into())
    }

    /// Boots from a snapshot, or without a library. V8 runs.
    pub(crate) fn start(
        boot: &Boot<'_>,
        snapshot: Option<Arc<Snapshot>>,
        snapshot_use: SnapshotUse,
        host: Arc<dyn Host>,
    ) -> Result<Self, Thrown> {
        let host = HostBox::new(host);
        let &Boot { shared, prelude, memory, most, stack } = boot;
        let hard = most.saturating_add(most / 2).saturating_add(LARGEST_OBJECTS);
        let blob = Snapshot::blob(snapshot.as_deref());
        let prelude = ClText::new(prelude.as_bytes());
        let mut outcome = ClOutcome::EMPTY;
        // SAFETY: the snapshot lives as long as the isolate, and so does the host.
        let raw =
            unsafe { ffi::cl_boot(shared, blob, prelude, &host.table(), memory, hard, stack, &mut outcome) };
        Self::booted(raw, &outcome, snapshot, host, snapshot_use)
    }

    /// Boots without a library or from `cold`, to become a snapshot. V8 runs. The callers keep `cold`
    /// alive. `memory` limits the memory of the load, in bytes.
    pub(crate) fn builder(
        prelude: &str,
        cold: Option<&Snapshot>,
        snapshot_use: SnapshotUse,
        host: Arc<dyn Host>,
        memory: usize,
    ) -> Result<Self, Thrown> {
        let host = HostBox::new(host);
        let prelude = ClText::new(prelude.as_bytes());
        let mut outcome = ClOutcome::EMPTY;
        // SAFETY: the host lives as long as the isolate, and the callers keep the snapshot alive.
        let raw =
            unsafe { ffi::cl_builder(Snapshot::blob(cold), prelude, &host.table(), memory, &mut outcome) };
        Self::booted(raw, &outcome, None, host, snapshot_use)
    }

    /// Returns the isolate that the shim has booted with this outcome.
    fn booted(
        raw: *mut ffi::ClIsolate,
        outcome: &ClOutcome,
        snapshot: Option<Arc<Snapshot>>,
        host: Box<HostBox>,
        snapshot_use: SnapshotUse,
    ) -> Result<Self, Thrown> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(Thrown::Ended(Reason::of(outcome.reason), String::new()));
        };
        let (handle, parts) = (Handle::new(raw), Vec::new());
        let this = Self { raw, handle, snapshot, _host: host, parts, snapshot_use: Some(snapshot_use) };
        // SAFETY: no call into V8 was made since then.
        unsafe { check(outcome)? };
        Ok(this)
    }

    /// Returns the isolate for calls of the shim. It lives as long as `self`.
    pub(crate) fn raw(&self) -> *mut ffi::ClIsolate {
        self.raw.as_ptr()
    }

    /// Returns the handle that ends the isolate's calls.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Returns the bytes of the heap and of array buffers, with garbage.
    pub fn memory(&self) -> usize {
        // SAFETY: the isolate lives.
        unsafe { ffi::cl_memory_used(self.raw.as_ptr()) }
    }

    /// Collects all garbage. Returns the bytes of the heap and of array buffers after that.
    pub(crate) fn memory_kept(&mut self) -> usize {
        // SAFETY: the isolate lives, and nothing runs in it.
        unsafe { ffi::cl_memory_kept(self.raw.as_ptr()) }
    }

    /// Changes the limit for the heap and array buffers together, in bytes.
    pub fn limit_memory(&mut self, bytes: usize) {
        // SAFETY: the isolate lives, and nothing runs in it.
        unsafe { ffi::cl_set_memory_limit(self.raw.as_ptr(), bytes) };
    }

    pub(crate) fn load(&mut self, path: &str, source: &[u8]) -> Result<(), Thrown> {
        let mut outcome = ClOutcome::EMPTY;
        self.handle.begin();
        // SAFETY: the isolate and the texts live.
        unsafe {
            let raw = self.raw.as_ptr();
            ffi::cl_load(raw, ClText::new(path.as_bytes()), ClText::new(source), &mut outcome);
            check(&outcome)
        }
    }

    /// Calls a method of the prelude.
    pub(crate) fn call(
        &mut self,
        method: &CStr,
        numbers: &[f64],
        arguments: &[Argument<'_>],
    ) -> Result<Value, Thrown> {
        let values: Vec<ClValue> = arguments.iter().map(Argument::raw).collect();
        let mut outcome = ClOutcome::EMPTY;
        self.parts.clear();
        self.handle.begin();
        // SAFETY: the isolate and the arguments live. JavaScript gets copies of all arguments but
        // the word, and the word outlives the last call.
        unsafe {
            let raw = self.raw.as_ptr();
            let count = ffi::cl_call(
                raw,
                method.as_ptr(),
                numbers.as_ptr(),
                numbers.len(),
                values.as_ptr(),
                values.len(),
                &mut outcome,
            );
            // This forgets a reason to end this call, because the reason must not end the next
            // wait.
            self.handle.begin();
            check(&outcome)?;
            self.parts.resize(count, ClValue::NONE);
            if count > 0 {
                ffi::cl_results(raw, self.parts.as_mut_ptr(), count);
            }
            Ok(Value { array: count > 0, text: outcome.value.text().into_owned(), number: outcome.number })
        }
    }

    /// Returns the array that the last call returned.
    pub(crate) fn reply(&self) -> Reply<'_> {
        Reply::new(self.raw, &self.parts)
    }

    /// Detaches the bytes of the last call's arguments from JavaScript. The results stay.
    pub(crate) fn detach(&self) {
        // SAFETY: the isolate lives, and nothing runs in it.
        unsafe { ffi::cl_detach(self.raw.as_ptr()) };
    }

    /// Makes a snapshot of a builder.
    pub(crate) fn into_snapshot(self) -> Snapshot {
        self.handle.forget();
        // SAFETY: the isolate lives. `cl_snapshot` consumes it, and so the drop does not dispose of it.
        Snapshot::made(unsafe { ffi::cl_snapshot(self.raw.as_ptr()) })
    }
}

impl Drop for Isolate {
    fn drop(&mut self) {
        // SAFETY: the isolate lives, and no other code has the pointer any more.
        if self.handle.forget() && !unsafe { ffi::cl_dispose(self.raw.as_ptr()) } {
            // The isolate stays in memory, so its snapshot must stay, too.
            std::mem::forget((self.snapshot.take(), self.snapshot_use.take()));
        }
    }
}
