//! Time slices: short while a thread waits for events, the usual ones while it runs long handlers.
//!
//! Linux (6.12 and later) lets a thread ask for the length of its time slice, without privileges. A thread with a short
//! slice that wakes gets the processor at once from one with a longer slice, and no more of it in the long
//! run. Among threads with equal slices it waits until the slice of the other one is over, and that ends at the
//! next tick of the kernel's clock (4 ms apart at 250 Hz). So a thread must not keep its short slice during a
//! long handler, or the thread that the next event wakes waits for it.
//!
//! The threads and processes that such a thread starts have the usual slice: the kernel is told that they inherit none. It lets
//! nobody without privileges take that back, so the thread keeps it with the usual slice as well. (With it, a
//! child of a thread whose nice value is negative has 0.)

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

/// What a thread asks for while it waits for events.
const SHORT: Duration = Duration::from_micros(100);

/// The slice of the thread that has made it.
#[derive(Debug)]
pub struct Slice {
    /// The thread's scheduling, in which only the slice is changed; none if the kernel does not let us.
    attributes: Option<Attributes>,
    is_short: Cell<bool>,
}

impl Slice {
    /// The usual slice, which stays unless it `may_change`.
    pub fn new(may_change: bool) -> Self {
        let attributes = if may_change { attributes() } else { None };
        Slice { attributes, is_short: Cell::new(false) }
    }

    /// Asks for a short slice, unless the thread has it. To be called on the thread that has made it.
    pub fn shorten(&self) {
        self.set(true);
    }

    /// Asks for the usual slice again. To be called on the thread that has made it.
    pub fn restore(&self) {
        self.set(false);
    }

    fn set(&self, is_short: bool) {
        let Some(attributes) = &self.attributes else { return };
        if self.is_short.replace(is_short) != is_short {
            // Zero is the kernel's own choice.
            let runtime = if is_short { SHORT.as_nanos() as u64 } else { 0 };
            let attributes = Attributes { runtime, ..*attributes };
            // SAFETY: the kernel reads `size` bytes from there; thread 0 is the calling one. A kernel that
            // does not know slices ignores this one.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        }
    }
}

/// The calling thread's scheduling, if it is the ordinary one.
fn attributes() -> Option<Attributes> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes there; thread 0 is the calling one.
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
        // Kernels before 6.12 tell and grant nothing.
        assert!(short == 100_000 || (usual, short) == (0, 0), "{usual} {short}");
    }

    #[test]
    fn a_thread_that_is_started_has_the_usual_slice() {
        let usual = attributes().unwrap().runtime;
        let slice = Slice::new(true);
        slice.shorten();
        let of_thread = std::thread::spawn(|| attributes().unwrap().runtime).join().unwrap();
        assert_eq!(of_thread, usual);
        // What the thread may do without privileges has not become less.
        slice.restore();
        slice.shorten();
        let short = attributes().unwrap().runtime;
        assert!(short == 100_000 || (usual, short) == (0, 0), "{usual} {short}");
    }
}
