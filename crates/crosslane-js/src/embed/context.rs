//! V8 contexts of a program that embeds V8: scripts, calls, and functions of the program.
//!
//! Several threads may use a context, one at a time. (Only one thread uses a lane's isolate.) Each
//! use takes V8's lock (`v8::Locker`), and passes the size of its thread's stack. Values are
//! encoded as `shim/shim.h` says. So a program needs its own lock for its objects only before and
//! after a call.
//!
//! Isolates of different snapshots cannot live in one process at once. A fork of a process that has
//! run V8 cannot use V8. This module refuses both.

use crate::isolate::ffi::{self, ClHost, ClIsolate, ClOutcome, ClText};
use crate::isolate::{self, Handle, LARGEST_OBJECTS, Reason, STACK, SnapshotUse, Thrown};
use crate::isolate::{SMALL_PRELUDE, Snapshot};
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The functions of the program. A context calls them on the thread that uses the context, without
/// a lock of the program.
pub trait Program: Send + Sync {
    /// Takes a text that `console` printed. `error` is true for errors and warnings.
    fn print(&self, error: bool, text: &str);
    /// Calls an attached function with an encoded array.
    ///
    /// # Errors
    /// The name and the message of the error that JavaScript then sees, separated by a line end.
    fn call(&self, number: u32, arguments: &[u8]) -> Result<Vec<u8>, String>;
    /// Returns whether the reason that was passed to [`Handle::end`] is still valid. V8's thread
    /// calls this at a check.
    fn confirm(&self, reason: Reason) -> bool;
}

/// Why no context or snapshot was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Contexts of another snapshot live in this process.
    #[error(
        "contexts of another snapshot live in this process, and V8 can have those of one only; dispose of them first"
    )]
    Occupied,
    /// V8 ran in this process before it was forked.
    #[error(
        "this process was forked after V8 had run in it, and V8 does not survive that; start it in the child only"
    )]
    Forked,
    /// The script of a snapshot threw.
    #[error(transparent)]
    Thrown(#[from] Thrown),
    /// The bytes are no snapshot of this build.
    #[error("{0}")]
    Invalid(&'static str),
}

/// The id of the process in which V8 runs. 0 before V8 runs.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn enter() -> Result<(), Refused> {
    let process = std::process::id();
    match PROCESS.compare_exchange(0, process, Relaxed, Relaxed) {
        Ok(_) => {}
        Err(first) if first == process => {}
        Err(_) => return Err(Refused::Forked),
    }
    isolate::initialize();
    Ok(())
}

/// The program behind a thin pointer, and the answer that V8 is reading.
struct Host {
    program: Arc<dyn Program>,
    answer: Mutex<Vec<u8>>,
}

impl Host {
    fn new(program: Arc<dyn Program>) -> Box<Self> {
        Box::new(Self { program, answer: Mutex::default() })
    }

    fn table(&self) -> ClHost {
        let host = std::ptr::from_ref(self).cast_mut().cast();
        ClHost { host, print, resolve, confirm, fatal, call, url }
    }
}

/// # Safety
/// `host` must be the pointer of [`Host::table`], and its box alive.
unsafe fn host<'a>(host: *mut c_void) -> &'a Host {
    // SAFETY: the caller guarantees this, and there are only shared references to a host.
    unsafe { &*host.cast() }
}

extern "C" fn print(data: *mut c_void, level: u32, text: ClText) {
    // SAFETY: the shim passes the table's pointer and a text that lives during the call. The text
    // is UTF-8, so this does not copy it.
    unsafe { host(data).program.print(level > 0, &String::from_utf8_lossy(bytes(text))) }
}

extern "C" fn confirm(data: *mut c_void, reason: u32) -> bool {
    // SAFETY: as above.
    unsafe { host(data).program.confirm(Reason::of(reason)) }
}

extern "C" fn fatal(_data: *mut c_void, _reason: u32, what: ClText) {
    // SAFETY: as above. The process ends when this returns.
    unsafe { eprintln!("V8 cannot go on: {}", what.to_text()) }
}

extern "C" fn resolve(_: *mut c_void, _: ClText, _: ClText, path: *mut ClText, _: *mut ClText) -> bool {
    // SAFETY: the shim passes a place for the text, and the text is static.
    unsafe { *path = ClText::new(b"scripts do not import") };
    false
}

/// Returns false, because contexts of a program have no `URL`.
extern "C" fn url(_: *mut c_void, _: ClText, _: ClText, _: ClText, _: *mut ClText) -> bool {
    false
}

extern "C" fn call(data: *mut c_void, number: u32, arguments: ClText, result: *mut ClText) -> bool {
    // SAFETY: as above. The answer stays in its place until the next call.
    unsafe {
        let host = host(data);
        let outcome = host.program.call(number, bytes(arguments));
        let fine = outcome.is_ok();
        let mut answer = host.answer.lock().unwrap_or_else(PoisonError::into_inner);
        *answer = outcome.unwrap_or_else(String::into_bytes);
        *result = ClText::new(&answer);
        fine
    }
}

/// # Safety
/// The text must be alive.
unsafe fn bytes<'a>(text: ClText) -> &'a [u8] {
    if text.length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees this.
    unsafe { std::slice::from_raw_parts(text.data, text.length) }
}

/// Copies bytes, or fails if there is no memory for the copy.
fn copied(bytes: &[u8]) -> Result<Vec<u8>, Thrown> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Thrown::Ended(Reason::NoMemory, String::new()))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// A context with a heap of its own.
pub struct Context {
    raw: NonNull<ClIsolate>,
    handle: Arc<Handle>,
    /// V8 reads from this snapshot as long as the isolate lives.
    snapshot: Option<Arc<Snapshot>>,
    _host: Box<Host>,
    snapshot_use: Option<SnapshotUse>,
    process: u32,
}

// SAFETY: each use takes V8's lock for the isolate.
unsafe impl Send for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("memory", &self.memory()).finish_non_exhaustive()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.handle.forget();
        if self.process == std::process::id() {
            // SAFETY: no other code has the pointer any more.
            let disposed = unsafe { ffi::cl_dispose(self.raw.as_ptr()) };
            if !disposed {
                // The isolate stays in memory, so its snapshot must stay, too.
                std::mem::forget((self.snapshot.take(), self.snapshot_use.take()));
            }
        }
    }
}

impl Context {
    /// Boots from a snapshot, or without one. `memory` is the limit of the heap and the array
    /// buffers together, in bytes. `stack` is the size of this thread's stack.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn boot(
        snapshot: Option<Arc<Snapshot>>,
        program: Arc<dyn Program>,
        memory: usize,
        stack: usize,
    ) -> Result<Self, Refused> {
        enter()?;
        let blob = snapshot.as_ref().map_or(ClText::EMPTY, |snapshot| snapshot.text());
        let snapshot_use = SnapshotUse::try_new(blob).ok_or(Refused::Occupied)?;
        let host = Host::new(program);
        let hard = memory.saturating_add(memory / 2).saturating_add(LARGEST_OBJECTS);
        let prelude = ClText::new(SMALL_PRELUDE.as_bytes());
        let mut outcome = ClOutcome::EMPTY;
        // SAFETY: the snapshot lives as long as the isolate, and so does the host.
        let raw =
            unsafe { ffi::cl_boot(true, blob, prelude, &host.table(), memory, hard, stack, &mut outcome) };
        let raw = isolate::booted(raw, &outcome)?;
        let handle = Handle::new(raw);
        let process = std::process::id();
        let this = Self { raw, handle, snapshot, _host: host, snapshot_use: Some(snapshot_use), process };
        // SAFETY: no call into V8 was made since then.
        unsafe { isolate::check(&outcome) }?;
        Ok(this)
    }

    /// Returns the handle that ends the context's calls.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Returns whether this process may use the context. A fork of the process that made the
    /// context may not.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the bytes of the heap and of array buffers, with garbage.
    pub fn memory(&self) -> usize {
        // SAFETY: the isolate lives.
        unsafe { ffi::cl_memory_used(self.raw.as_ptr()) }
    }

    fn outcome(&self, run: impl FnOnce(*mut ClIsolate, &mut ClOutcome)) -> Result<Vec<u8>, Thrown> {
        let mut outcome = ClOutcome::EMPTY;
        self.handle.begin();
        run(self.raw.as_ptr(), &mut outcome);
        self.handle.begin();
        // SAFETY: the texts live until the next call, and the caller has not made that call yet.
        unsafe {
            isolate::check(&outcome)?;
            copied(bytes(outcome.value))
        }
    }

    /// Runs a script. Returns the encoded value.
    ///
    /// # Errors
    /// The error that the code threw, or the reason why the code was ended.
    pub fn eval(&self, script: Script<'_>) -> Result<Vec<u8>, Thrown> {
        // SAFETY: the isolate lives.
        self.outcome(|raw, outcome| unsafe { script.eval(raw, outcome) })
    }

    /// Calls a function by its path (`a.b.c`) with an encoded array: the number of elements
    /// (`u32`), then the elements. Returns the encoded value.
    ///
    /// # Errors
    /// The error that the code threw, or the reason why the code was ended.
    pub fn invoke(&self, path: &str, arguments: &[u8], stack: usize) -> Result<Vec<u8>, Thrown> {
        let (path, arguments) = (ClText::new(path.as_bytes()), ClText::new(arguments));
        // SAFETY: as above. The arguments are encoded as the shim expects.
        self.outcome(|raw, outcome| unsafe { ffi::cl_invoke(raw, path, arguments, stack, outcome) })
    }

    /// Makes a function at a path. The function calls the program's function `number`. This also
    /// makes the objects that are missing in the path.
    ///
    /// # Errors
    /// If the path leads through a value that is not an object.
    pub fn attach(&self, path: &str, number: u32, stack: usize) -> Result<(), Thrown> {
        let path = ClText::new(path.as_bytes());
        // SAFETY: as above.
        self.outcome(|raw, outcome| unsafe { ffi::cl_attach(raw, path, number, stack, outcome) })?;
        Ok(())
    }

    /// Frees all garbage at once.
    ///
    /// # Errors
    /// Why the call was ended.
    pub fn collect(&self, stack: usize) -> Result<(), Thrown> {
        // SAFETY: the isolate lives.
        self.outcome(|raw, outcome| unsafe { ffi::cl_collect(raw, stack, outcome) })?;
        Ok(())
    }

    /// Returns V8's statistics of its heap, by V8's names, as an encoded object. Most numbers are
    /// bytes.
    ///
    /// # Errors
    /// Why the call was ended.
    pub fn heap_stats(&self, stack: usize) -> Result<Vec<u8>, Thrown> {
        // SAFETY: the isolate lives.
        self.outcome(|raw, outcome| unsafe { ffi::cl_heap_stats(raw, stack, outcome) })
    }
}

/// A script to run.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// Its text.
    pub source: &'a str,
    /// Its file, for messages.
    pub name: &'a str,
    /// The size of this thread's stack.
    pub stack: usize,
}

impl Script<'_> {
    /// # Safety
    /// The isolate must live.
    unsafe fn eval(self, isolate: *mut ClIsolate, outcome: &mut ClOutcome) {
        let [source, name] = [self.source, self.name].map(|text| ClText::new(text.as_bytes()));
        // SAFETY: the caller guarantees that the isolate lives, and the texts live.
        unsafe { ffi::cl_eval(isolate, source, name, self.stack, outcome) };
    }
}

/// Builds snapshots.
struct Builder {
    raw: NonNull<ClIsolate>,
    handle: Arc<Handle>,
    _host: Box<Host>,
    snapshot_use: Option<SnapshotUse>,
}

impl Builder {
    /// Makes a builder that boots from `blob`.
    fn new(blob: ClText, program: Arc<dyn Program>) -> Result<Self, Refused> {
        enter()?;
        let snapshot_use = SnapshotUse::try_new(blob).ok_or(Refused::Occupied)?;
        let host = Host::new(program);
        let prelude = ClText::new(SMALL_PRELUDE.as_bytes());
        let mut outcome = ClOutcome::EMPTY;
        // SAFETY: the host lives as long as the isolate, and the callers keep the blob alive.
        let raw = unsafe { ffi::cl_builder(blob, prelude, &host.table(), LARGEST_OBJECTS, &mut outcome) };
        let raw = isolate::booted(raw, &outcome)?;
        Ok(Self { raw, handle: Handle::new(raw), _host: host, snapshot_use: Some(snapshot_use) })
    }

    /// Runs a script in a context of `blob`. Returns the snapshot after that.
    fn build(
        blob: ClText,
        script: Script<'_>,
        program: Arc<dyn Program>,
        started: impl FnOnce(&Arc<Handle>),
    ) -> Result<Snapshot, Refused> {
        let builder = Self::new(blob, program)?;
        started(&builder.handle);
        builder.eval(script)?;
        Ok(builder.finish())
    }

    fn eval(&self, script: Script<'_>) -> Result<(), Thrown> {
        let mut outcome = ClOutcome::EMPTY;
        // SAFETY: the isolate and the texts live, and this reads the outcome at once.
        unsafe {
            script.eval(self.raw.as_ptr(), &mut outcome);
            isolate::check(&outcome)
        }
    }

    fn finish(self) -> Snapshot {
        let this = std::mem::ManuallyDrop::new(self);
        this.handle.forget();
        // SAFETY: `cl_snapshot` consumes the isolate. The values that the isolate used are dropped
        // after it, once.
        unsafe {
            let blob = ffi::cl_snapshot(this.raw.as_ptr());
            drop(std::ptr::read(&this.handle));
            drop(std::ptr::read(&this._host));
            drop(std::ptr::read(&this.snapshot_use));
            Snapshot::made(blob)
        }
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.handle.forget();
        // SAFETY: the isolate lives, because `finish` does not drop the builder.
        let disposed = unsafe { ffi::cl_dispose(self.raw.as_ptr()) };
        if !disposed {
            // The isolate stays in memory.
            std::mem::forget(self.snapshot_use.take());
        }
    }
}

/// The start of a dumped snapshot: these bytes, V8's version padded to `VERSION` bytes, and a
/// checksum of the rest.
const MAGIC: &[u8; 16] = b"crosslane-snap-1";
const VERSION: usize = 32;

/// Computes FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo). It is only for finding accidental damage.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn version() -> [u8; VERSION] {
    let mut padded = [0; VERSION];
    let version = isolate::version();
    padded.iter_mut().zip(version.bytes()).for_each(|(place, byte)| *place = byte);
    padded
}

impl Snapshot {
    /// Makes a snapshot of the heap after a script has run. `started` gets the handle that ends the
    /// script.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn of_script(
        script: Script<'_>,
        program: Arc<dyn Program>,
        started: impl FnOnce(&Arc<Handle>),
    ) -> Result<Self, Refused> {
        Builder::build(ClText::EMPTY, script, program, started)
    }

    /// Makes a snapshot of the same heap, with the compiled code of another script. It does not
    /// keep the changes that this script makes. All else is as in [`Snapshot::of_script`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn warmed_up(
        &self,
        script: Script<'_>,
        program: Arc<dyn Program>,
        started: impl FnOnce(&Arc<Handle>),
    ) -> Result<Self, Refused> {
        Builder::build(self.text(), script, program, started)
    }

    /// Returns the snapshot as bytes for [`Snapshot::load`].
    ///
    /// # Errors
    /// If there is no memory for the bytes.
    pub fn dump(&self) -> Result<Vec<u8>, Refused> {
        let blob = self.bytes();
        let head = [&MAGIC[..], &version(), &sum(blob).to_le_bytes()].concat();
        let mut dumped = Vec::new();
        dumped
            .try_reserve_exact(head.len() + blob.len())
            .map_err(|_| Thrown::Ended(Reason::NoMemory, String::new()))?;
        dumped.extend_from_slice(&head);
        dumped.extend_from_slice(blob);
        Ok(dumped)
    }

    /// Loads a snapshot that the same build has dumped.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the bytes are damaged, or if another version of V8 made them. The
    /// check does not find deliberate changes.
    pub fn load(dumped: &[u8]) -> Result<Self, Refused> {
        let Some((magic, rest)) = dumped.split_first_chunk::<16>().filter(|(magic, _)| *magic == MAGIC)
        else {
            return Err(Refused::Invalid("these bytes are no snapshot"));
        };
        debug_assert_eq!(magic, MAGIC);
        let broken = Refused::Invalid("the snapshot is damaged");
        let (made_by, rest) = rest.split_first_chunk::<VERSION>().ok_or(broken.clone())?;
        let (expected, blob) = rest.split_first_chunk::<8>().ok_or(broken.clone())?;
        if *made_by != version() {
            return Err(Refused::Invalid("the snapshot was made by another version of V8"));
        }
        if sum(blob) != u64::from_le_bytes(*expected) {
            return Err(broken);
        }
        enter()?;
        // SAFETY: the checksum shows that these are the bytes of a snapshot of this V8.
        Ok(unsafe { Snapshot::owned(copied(blob)?.into_boxed_slice()) })
    }
}

/// The largest stack that a call can use.
pub const MOST_STACK: usize = STACK;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolate::Reason;
    use crosslane::Failure;

    #[test]
    fn errors_are_plain_text() {
        let failure = Failure {
            class: "TypeError".into(),
            message: "no \"a\"".into(),
            traceback: "at b.js:1\n".into(),
            ..Failure::default()
        };
        let told = |thrown| Refused::from(thrown).to_string();
        assert_eq!(told(Thrown::Exception(failure)), "TypeError: no \"a\"\nat b.js:1");
        let ended = |reason| told(Thrown::Ended(reason, "at c.js:2".into()));
        assert_eq!(ended(Reason::Memory), "the script used more memory than it may\nat c.js:2");
        assert_eq!(ended(Reason::Timeout), "the script took too long\nat c.js:2");
        assert_eq!(told(Thrown::Ended(Reason::Closed, String::new())), "the script was ended");
    }
}
