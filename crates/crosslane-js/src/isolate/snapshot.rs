//! The bytes of a snapshot, and the rule that all isolates of a process boot from the same
//! snapshot.

use super::engine::initialize;
use super::ffi::{self, ClText};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The bytes that isolates boot from.
pub struct Snapshot {
    blob: ClText,
    owner: Owner,
}

/// The owner of a snapshot's memory.
enum Owner {
    /// V8. The snapshot frees the memory.
    V8,
    /// The snapshot itself.
    Bytes(#[allow(dead_code, reason = "the blob points into it")] Box<[u8]>),
    /// No owner. The memory lives as long as the process.
    Nobody,
}

// SAFETY: no code writes to the blob.
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
            // SAFETY: the shim made the blob. Isolates that boot from this snapshot keep the
            // snapshot alive.
            unsafe { ffi::cl_free_blob(self.blob) }
        }
    }
}

impl Snapshot {
    /// The bytes for the shim, which are none without a snapshot.
    pub(crate) fn blob(snapshot: Option<&Self>) -> ClText {
        snapshot.map_or(ClText::EMPTY, |snapshot| snapshot.blob)
    }

    /// Wraps a snapshot that V8 has made.
    pub(crate) fn made(blob: ClText) -> Self {
        Self { blob, owner: Owner::V8 }
    }

    /// Makes a snapshot of bytes that the snapshot then owns.
    ///
    /// # Safety
    /// As [`Snapshot::from_bytes`].
    pub(crate) unsafe fn owned(bytes: Box<[u8]>) -> Self {
        Self { blob: ClText::new(&bytes), owner: Owner::Bytes(bytes) }
    }

    /// Makes a snapshot of static bytes that another process has made.
    ///
    /// # Safety
    /// The bytes must be an unchanged snapshot of exactly this build, because V8 does not check
    /// them.
    pub unsafe fn from_bytes(bytes: &'static [u8]) -> Self {
        initialize();
        Self { blob: ClText::new(bytes), owner: Owner::Nobody }
    }

    /// Returns the bytes. Another process can make the same snapshot of them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the blob lives as long as `self`, and has this length.
        unsafe { std::slice::from_raw_parts(self.blob.data, self.blob.length) }
    }
}

/// The address of the snapshot of the isolates that live in this process, and the number of these
/// isolates. V8 shares the read-only part of a snapshot between all isolates, and crashes if they
/// have different ones.
static IN_USE: Mutex<(usize, usize)> = Mutex::new((0, 0));

/// Counts one isolate in [`IN_USE`] until it is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotUse;

impl SnapshotUse {
    /// # Panics
    /// If isolates of another snapshot live in this process.
    pub(crate) fn new(snapshot: Option<&Snapshot>) -> Self {
        Self::try_new(snapshot).expect("isolates of two snapshots cannot live in one process at once")
    }

    /// Returns `None` if isolates of another snapshot live in this process.
    pub(crate) fn try_new(snapshot: Option<&Snapshot>) -> Option<Self> {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = Snapshot::blob(snapshot).data.addr();
        if in_use.1 > 0 && in_use.0 != snapshot {
            return None;
        }
        *in_use = (snapshot, in_use.1 + 1);
        Some(Self)
    }
}

impl Drop for SnapshotUse {
    fn drop(&mut self) {
        IN_USE.lock().unwrap_or_else(PoisonError::into_inner).1 -= 1;
    }
}
