//! Time slices: short while a thread waits for events, the usual ones while it runs long handlers.
//!
//! Linux (6.12 and later) lets a thread ask for the length of its time slice, without privileges.
//! When a thread with a short slice wakes, it gets the processor at once from a thread with a
//! longer slice; in the long run it gets no more time. Among threads with equal slices, a thread
//! that wakes waits until the slice of the running thread ends, at the next tick of the kernel's
//! clock (4 ms apart at 250 Hz). So a thread must not keep its short slice during a long handler:
//! the thread that the next event wakes would wait for it.
//!
//! Threads and processes that such a thread starts have the usual slice, because it sets the
//! kernel's flag that they do not inherit it. A process without privileges cannot unset the flag,
//! so the thread keeps it with the usual slice too. (With the flag, a child of a thread whose nice
//! value is negative has the nice value 0.)

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
    /// The thread's scheduling, of which only the slice changes; `None` if the slice cannot change.
    attributes: Option<Attributes>,
    is_short: Cell<bool>,
}

impl Slice {
    /// The usual slice, which never changes unless it `may_change`.
    pub fn new(may_change: bool) -> Self {
        let attributes = if may_change { attributes() } else { None };
        Slice { attributes, is_short: Cell::new(false) }
    }

    /// Asks for a short slice, unless the thread has one. Call it on the thread that made this.
    pub fn shorten(&self) {
        self.set(true);
    }

    /// Asks for the usual slice again. Call it on the thread that made this.
    pub fn restore(&self) {
        self.set(false);
    }

    fn set(&self, is_short: bool) {
        let Some(attributes) = &self.attributes else { return };
        if self.is_short.replace(is_short) != is_short {
            // Zero stands for the kernel's default.
            let runtime = if is_short { SHORT.as_nanos() as u64 } else { 0 };
            let attributes = Attributes { runtime, ..*attributes };
            // SAFETY: the kernel reads `size` bytes of the structure; thread 0 is the calling one.
            // A kernel that does not support slices ignores the value.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        }
    }
}

/// The calling thread's scheduling, if its policy is the ordinary one.
fn attributes() -> Option<Attributes> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes of the structure; thread 0 is the calling one.
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
