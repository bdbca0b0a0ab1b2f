//! Waits for descriptors.

use magnus::Error;
use rustix::event::EventfdFlags;
use std::os::fd::AsRawFd;

/// The length of a wait that no event of the VM can end, in milliseconds.
const GLANCE: i32 = 10;

/// Waits, without the GVL, until a descriptor of `readable` can be read, or the peer of a
/// descriptor of `gone` has closed. Returns all such descriptors.
pub(crate) fn poll(readable: Vec<i32>, gone: Vec<i32>) -> Result<Vec<i32>, Error> {
    // Without a wake-up descriptor, the VM cannot end the wait. Then the wait is short.
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
    let patience = if wake.is_some() { -1 } else { GLANCE };
    let wanted = readable.iter().map(|fd| (*fd, libc::POLLIN));
    let wanted = wanted.chain(gone.iter().map(|fd| (*fd, libc::POLLRDHUP)));
    let wanted = wanted.chain(wake.iter().map(|wake| (wake.as_raw_fd(), libc::POLLIN)));
    let mut fds: Vec<libc::pollfd> =
        wanted.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let unblock = || {
        if let Some(wake) = &wake {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    };
    // SAFETY: the list lives across the call.
    crosslane_gvl::without(
        || unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, patience) },
        unblock,
    );
    crosslane_gvl::check_interrupts()?;
    let fds = &fds[..fds.len() - usize::from(wake.is_some())];
    Ok(fds.iter().filter(|fd| fd.revents != 0).map(|fd| fd.fd).collect())
}
