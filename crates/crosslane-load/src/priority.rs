//! Threads that wake when they shall.

use anyhow::{Context, Result, ensure};
use std::io;
use std::num::NonZeroU64;

/// Asks the kernel to end this thread's sleeps on time, and to let it go first when they end: as a client would on a machine
/// of its own. So it becomes a real-time thread, if that is allowed and `may_go_first` says so; the kernel stops real-time threads that
/// never sleep for a while. Says whether it is one.
pub(crate) fn wake_in_time(may_go_first: bool) -> Result<bool> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: all zeros are a value of this type, which consists of integers.
    let mut ordinary: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the attributes have the size that is told.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut ordinary, size, 0) };
    ensure!(rc == 0, "sched_getattr: {}", io::Error::last_os_error());
    let set = |attributes: libc::sched_attr| {
        // SAFETY: the attributes have the size that they tell.
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
    // The shortest slice that the scheduler grants, in nanoseconds. A kernel before 6.12 takes no notice.
    set(libc::sched_attr { sched_runtime: 100_000, ..ordinary }).context("sched_setattr")?;
    Ok(false)
}
