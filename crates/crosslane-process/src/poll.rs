//! Checks descriptors without a wait.

use rustix::event::{PollFd, Timespec};
use rustix::io::retry_on_intr;

/// Whether one of the descriptors is ready now. If a signal interrupts the check, it is repeated.
pub(crate) fn is_ready(fds: &mut [PollFd<'_>]) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| rustix::event::poll(fds, Some(&now))) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::PollFlags;
    use rustix::io::Errno;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    fn a_signal_makes_nothing_ready() {
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: the handler does nothing, and no other test uses the signal. Without SA_RESTART,
        // the signal interrupts system calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        // SAFETY: the call returns a number.
        let this = unsafe { libc::pthread_self() };
        let (silent, _theirs) = rustix::pipe::pipe().unwrap();
        let over = AtomicBool::new(false);
        let ready = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                }
            });
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (mut interrupted, mut ready) = (0, 0);
            // Signals come at any time, so this repeats until they have interrupted enough of the
            // same calls.
            while interrupted < 100 {
                let mut fds = [PollFd::new(&silent, PollFlags::IN)];
                interrupted += u32::from(rustix::event::poll(&mut fds, Some(&now)) == Err(Errno::INTR));
                ready += u32::from(is_ready(&mut fds));
            }
            over.store(true, Relaxed);
            ready
        });
        assert_eq!(ready, 0);
    }
}
