//! A short slice for threads that dispatch.
//!
//! Linux (6.12 and later) lets a thread ask for the length of its time slice, without privileges. One that asks for a
//! short slice gets the processor sooner when it wakes, and no more of it in the long run.

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

/// Asks for slices of this length for the calling thread. False if the kernel does not grant any.
pub(crate) fn request(slice: Duration) -> bool {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes there; thread 0 is the calling one.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 || attributes.policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    attributes.size = size;
    attributes.flags = 0;
    attributes.runtime = slice.as_nanos() as u64;
    // SAFETY: the kernel reads `size` bytes from there.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}
