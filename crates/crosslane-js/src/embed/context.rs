//! V8 contexts of a program that embeds V8: scripts, calls, and functions of the program.
//!
//! Several threads may use a context, one at a time. (Only one thread uses a lane's isolate.) Each
//! use takes V8's lock (`v8::Locker`), and passes the size of its thread's stack. Values are
//! encoded as `shim/shim.h` says. So a program needs its own lock for its objects only before and
//! after a call.
//!
//! Isolates of different snapshots cannot live in one process at once. A fork of a process that has
//! run V8 cannot use V8. This module refuses both.

use crate::isolate::ffi::{self, ClIsolate, ClOutcome, ClText};
use crate::isolate::{
    self, Boot, Handle, Host, Isolate, LARGEST_OBJECTS, Reason, SMALL_PRELUDE, STACK, Snapshot, SnapshotUse,
    Thrown,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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

/// Copies bytes, or fails if there is no memory for the copy.
fn copied(bytes: &[u8]) -> Result<Vec<u8>, Thrown> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Thrown::Ended(Reason::NoMemory, String::new()))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// The functions of the program that a context calls: [`Host`]'s, without a lock of the program.
pub type Program = Arc<dyn Host + Send + Sync>;

/// A context with a heap of its own.
#[derive(Debug)]
pub struct Context {
    isolate: Isolate,
    process: u32,
}

// SAFETY: each use takes V8's lock for the isolate, and the host's functions may be called by any
// thread.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_here() {
            // V8 does not survive a fork, so nothing disposes of the isolate.
            self.handle().forget();
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
        program: Program,
        memory: usize,
        stack: usize,
    ) -> Result<Self, Refused> {
        enter()?;
        let snapshot_use = SnapshotUse::try_new(snapshot.as_deref()).ok_or(Refused::Occupied)?;
        let boot = Boot { shared: true, prelude: &SMALL_PRELUDE, memory, most: memory, stack };
        let isolate = Isolate::start(&boot, snapshot, snapshot_use, program)?;
        Ok(Self { isolate, process: std::process::id() })
    }

    /// Returns the handle that ends the context's calls.
    pub fn handle(&self) -> &Arc<Handle> {
        self.isolate.handle()
    }

    /// Returns whether this process may use the context. A fork of the process that made the
    /// context may not.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the bytes of the heap and of array buffers, with garbage.
    pub fn memory(&self) -> usize {
        self.isolate.memory()
    }

    fn outcome(&self, run: impl FnOnce(*mut ClIsolate, &mut ClOutcome)) -> Result<Vec<u8>, Thrown> {
        let mut outcome = ClOutcome::EMPTY;
        self.handle().begin();
        run(self.isolate.raw(), &mut outcome);
        self.handle().begin();
        // SAFETY: the texts live until the next call, and the caller has not made that call yet.
        unsafe {
            isolate::check(&outcome)?;
            copied(outcome.value.bytes())
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

/// Runs a script in a context of the snapshot `cold`. Returns the snapshot after that.
fn snapshot_of(
    cold: Option<&Snapshot>,
    script: Script<'_>,
    program: Program,
    started: impl FnOnce(&Arc<Handle>),
) -> Result<Snapshot, Refused> {
    enter()?;
    let snapshot_use = SnapshotUse::try_new(cold).ok_or(Refused::Occupied)?;
    let isolate = Isolate::builder(&SMALL_PRELUDE, cold, snapshot_use, program, LARGEST_OBJECTS)?;
    started(isolate.handle());
    let mut outcome = ClOutcome::EMPTY;
    // SAFETY: the isolate and the texts live, and this reads the outcome at once.
    unsafe {
        script.eval(isolate.raw(), &mut outcome);
        isolate::check(&outcome)?;
    }
    Ok(isolate.into_snapshot())
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
        program: Program,
        started: impl FnOnce(&Arc<Handle>),
    ) -> Result<Self, Refused> {
        snapshot_of(None, script, program, started)
    }

    /// Makes a snapshot of the same heap, with the compiled code of another script. It does not
    /// keep the changes that this script makes. All else is as in [`Snapshot::of_script`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn warmed_up(
        &self,
        script: Script<'_>,
        program: Program,
        started: impl FnOnce(&Arc<Handle>),
    ) -> Result<Self, Refused> {
        snapshot_of(Some(self), script, program, started)
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
        let rest = dumped.strip_prefix(MAGIC).ok_or(Refused::Invalid("these bytes are no snapshot"))?;
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
