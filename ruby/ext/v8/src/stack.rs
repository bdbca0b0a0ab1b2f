//! The remaining size of the machine stack. Ruby's threads have one megabyte, its fibers less. V8
//! must stop before the end.

use crosslane_js::embed::MOST_STACK;
use std::cell::Cell;

/// The bytes that C++ code of V8 and of this project may need beyond V8's limit.
const RESERVE: usize = 160 << 10;
/// The assumed size of a stack that is not the thread's own, such as a fiber's.
const FIBER: usize = 96 << 10;

thread_local! {
    /// The lowest and the highest address of the thread's stack.
    static BOUNDS: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

fn bounds() -> (usize, usize) {
    if let Some(bounds) = BOUNDS.get() {
        return bounds;
    }
    // SAFETY: the attributes are initialised by the first call, and destroyed.
    let bounds = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return (0, 0);
        }
        let (mut start, mut size) = (std::ptr::null_mut(), 0);
        libc::pthread_attr_getstack(&attributes, &mut start, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        (start as usize, start as usize + size)
    };
    BOUNDS.set(Some(bounds));
    bounds
}

/// The bytes of the stack that V8 may use from here on.
pub(crate) fn left() -> usize {
    let marker = 0u8;
    let place = (&raw const marker).addr();
    let (end, start) = bounds();
    if (end..start).contains(&place) {
        (place - end).saturating_sub(RESERVE).clamp(FIBER / 2, MOST_STACK)
    } else {
        FIBER
    }
}
