//! Threads that wake on time.

use anyhow::{Context, Result, ensure};
use std::io;
use std::num::NonZeroU64;

/// Asks the kernel to end this thread's sleeps on time, and then to run it first. So it wakes as it
/// would on a machine of its own. If `may_go_first` is true and the system allows it, the thread
/// becomes a real-time thread. The kernel throttles real-time threads that never sleep. Returns
/// whether the thread became one.
pub(crate) fn wake_in_time(may_go_first: bool) -> Result<bool> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the type has only integers, so all zeros are a valid value.
    let mut ordinary: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `ordinary` has the size that the call states.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut ordinary, size, 0) };
    ensure!(rc == 0, "sched_getattr: {}", io::Error::last_os_error());
    let set = |attributes: libc::sched_attr| {
        // SAFETY: the attributes have the size that their `size` field states.
        let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    if may_go_first {
        let fifo = libc::SCHED_FIFO as u32;
        let real_time = libc::sched_attr {
            sched_policy: fifo,
            sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            sched_nice: 0,
            sched_priority: 1,
            ..ordinary
        };
        if set(real_time).is_ok() {
            return Ok(true);
        }
    }
    // This is the shortest time slice that the scheduler grants, in nanoseconds. Kernels before
    // 6.12 ignore it.
    set(libc::sched_attr { sched_runtime: 100_000, ..ordinary }).context("sched_setattr")?;
    Ok(false)
}
