//! Changes the time slice of a thread. The slice is short while the thread waits for events, and
//! usual while the thread runs long handlers.
//!
//! Linux (6.12 and later) lets a thread request the length of its time slice, without privileges.
//! When a thread with a short slice wakes, it gets the processor at once from a thread with a
//! longer slice. In the long run it gets no more time. With equal slices, a thread that wakes must
//! wait until the slice of the running thread ends. Slices end at ticks of the kernel's clock (4 ms
//! apart at 250 Hz). So a thread must not keep its short slice during a long handler. Otherwise the
//! thread that the next event wakes would have to wait.
//!
//! Threads and processes that such a thread starts have the usual slice. For this, the thread sets
//! the kernel's flag against inheritance of the slice. A process without privileges cannot unset
//! the flag, so the thread also keeps the flag with the usual slice. (With the flag, a child of a
//! thread with a negative nice value has the nice value 0.)

use std::cell::Cell;
use std::time::Duration;

/// `struct sched_attr` of the kernel's `sched/types.h`, in its first version.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The slice of a thread that waits for events.
const SHORT: Duration = Duration::from_micros(100);

/// The time slice of the thread that makes this.
#[derive(Debug)]
pub struct Slice {
    /// The thread's scheduling attributes. Only the slice changes. `None` if the slice cannot
    /// change.
    attributes: Option<Attributes>,
    is_short: Cell<bool>,
}

impl Slice {
    /// Begins with the usual slice. The slice never changes if `may_change` is false.
    pub fn new(may_change: bool) -> Self {
        let attributes = if may_change { attributes() } else { None };
        Slice { attributes, is_short: Cell::new(false) }
    }

    /// Requests a short slice, unless the thread has one. Call this on the thread that made the
    /// [`Slice`].
    pub fn shorten(&self) {
        self.set(true);
    }

    /// Requests the usual slice again. Call this on the thread that made the [`Slice`].
    pub fn restore(&self) {
        self.set(false);
    }

    fn set(&self, is_short: bool) {
        let Some(attributes) = &self.attributes else { return };
        if self.is_short.replace(is_short) != is_short {
            // Zero means the kernel's default.
            let runtime = if is_short { SHORT.as_nanos() as u64 } else { 0 };
            let attributes = Attributes { runtime, ..*attributes };
            // SAFETY: the kernel reads `size` bytes of the structure. Thread 0 is the calling
            // thread. A kernel that does not support slices ignores the value.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        }
    }
}

/// Returns the calling thread's scheduling attributes, if its policy is `SCHED_OTHER`.
fn attributes() -> Option<Attributes> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes of the structure. Thread 0 is the calling
    // thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    let is_ordinary = got == 0 && attributes.policy == libc::SCHED_OTHER as u32;
    is_ordinary.then_some(Attributes { size, flags: libc::SCHED_FLAG_RESET_ON_FORK as u64, ..attributes })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_shortened_and_restored() {
        let usual = attributes().unwrap().runtime;
        let slice = Slice::new(true);
        slice.shorten();
        let short = attributes().unwrap().runtime;
        slice.restore();
        assert_eq!(attributes().unwrap().runtime, usual);
        // Kernels before 6.12 have no slices and report 0.
        assert!(short == 100_000 || (usual, short) == (0, 0), "{usual} {short}");
    }

    #[test]
    fn a_started_thread_has_the_usual_slice() {
        let usual = attributes().unwrap().runtime;
        let slice = Slice::new(true);
        slice.shorten();
        let of_thread = std::thread::spawn(|| attributes().unwrap().runtime).join().unwrap();
        assert_eq!(of_thread, usual);
        // The thread can still change its slice without privileges.
        slice.restore();
        slice.shorten();
        let short = attributes().unwrap().runtime;
        assert!(short == 100_000 || (usual, short) == (0, 0), "{usual} {short}");
    }
}
