//! Waits on a lane.

use crosslane_gvl::{self as gvl, Me};
use crosslane_process::guest::GuestLane;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Waits on the lane without the GVL. The function that `wait` gets returns true when the VM needs
/// the thread. The caller then handles the VM's interrupts ([`gvl::check_interrupts`]). Returns
/// `None` if the wait did not begin.
pub(crate) fn wait<T>(
    lane: &mut GuestLane,
    wait: impl FnOnce(&mut GuestLane, &dyn Fn() -> bool) -> T,
) -> Option<T> {
    let stop = AtomicBool::new(false);
    let alarm = lane.alarm();
    let me = Me::get();
    gvl::without(
        || wait(lane, &|| stop.load(Relaxed) || me.is_wanted()),
        || {
            stop.store(true, Relaxed);
            alarm.sound();
        },
    )
}
