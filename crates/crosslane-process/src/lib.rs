//! Process lanes: a guest in a process of its own behind two rings in shared memory.
//!
//! | who | what |
//! |---|---|
//! | engine | [`Zygote`] starts `interpreter -m crosslane._worker.zygote` for one library and asks it for lanes |
//! | zygote | loads the library once, forks a child per lane, reaps the children and reports how they ended |
//! | lane | the child: [`guest::GuestLane`] takes calls from the ring and answers them |
//!
//! Beside its memory a lane has a socket pair (`SOCK_SEQPACKET`): it carries descriptors of memory
//! for frames that outgrow the ring, and its end tells the guest that the engine is gone. What a
//! lane prints goes through a pipe to the [`warden`], which writes it to the log.
//! `docs/protocol.md` describes the messages precisely enough to write another guest from.

use rustix::event::{PollFd, Timespec};
use rustix::io::retry_on_intr;

mod aligned;
pub mod control;
mod external;
pub mod guest;
pub mod guests;
mod identity;
mod lane;
pub mod limits;
mod log;
mod memory;
mod placement;
pub mod reaper;
mod ruby;
mod source;
mod stack;
#[doc(hidden)]
pub mod testing;
mod usage;
mod warden;
mod zygote;

pub use aligned::Aligned;
pub use lane::ProcessLane;
pub use log::{
    LogForm, flush as flush_log, occupy_standard_descriptors, print as print_to_log, report_panics,
    set_log_form,
};
pub use ruby::compiled as compiled_ruby;
pub use source::Source;
pub use zygote::{Loaded, Origin, Zygote, ZygoteOptions};

/// Whether one of the descriptors is ready now. A signal that interrupts the look says nothing of them.
fn is_ready(fds: &mut [PollFd<'_>]) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| rustix::event::poll(fds, Some(&now))) != Ok(0)
}

/// The tag of a ring frame that holds the message itself.
const INLINE: u32 = 0;
/// The tag of a ring frame that holds only the message's length; the message lies in a memfd whose
/// descriptor is the next on the socket.
const EXTERNAL: u32 = 1;

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
        // SAFETY: the handler does nothing, and no other test uses the signal. Without SA_RESTART it interrupts.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        // SAFETY: it returns a number.
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
            // Signals come when they come: until they have interrupted enough of the same looks.
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
