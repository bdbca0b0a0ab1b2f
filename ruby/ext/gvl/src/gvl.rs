//! The VM's lock: giving it up for a wait, taking it for a call, and where a thread stands.
//!
//! A wait without the lock must end when the VM wants its thread back (a signal, `Timeout`, `Thread#kill`). For what
//! another thread wants, the VM calls `unblock`, from that thread. A signal's handler runs on the main thread itself
//! and only interrupts its system call; the VM calls `unblock` for it if there are no other threads, from the handler
//! (so it must be async-signal-safe). So waits of the main thread also ask [`Me::is_wanted`]. What the VM wants is done
//! by [`check_interrupts`], where nothing is held that a longjmp would leak.
//!
//! Without the lock nothing may look at a Ruby object, not even at a thread: the collector may be moving it.

use crate::protect::{Unwind, protect};
use std::convert::Infallible;
use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn ruby_thread_has_gvl_p() -> c_int;
    /// Whether signals wait for their handlers; only looks at a counter.
    fn rb_thread_check_trap_pending() -> c_int;
}

/// Where a thread stands, which decides how it may call Ruby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// A Ruby thread with the lock: it calls.
    Locked,
    /// A Ruby thread without the lock: it takes the lock, and calls.
    Unlocked,
    /// Any other thread: it must ask a Ruby thread.
    Foreign,
}

/// Where the current thread stands.
pub fn stand() -> Stand {
    // SAFETY: both functions only look at the thread's own data.
    unsafe {
        if rb_sys::ruby_native_thread_p() == 0 {
            Stand::Foreign
        } else if ruby_thread_has_gvl_p() == 0 {
            Stand::Unlocked
        } else {
            Stand::Locked
        }
    }
}

/// The current Ruby thread.
#[derive(Debug, Clone, Copy)]
pub struct Me {
    main: bool,
}

impl Me {
    /// With the GVL.
    pub fn get() -> Self {
        // SAFETY: called with the GVL.
        Self { main: unsafe { rb_sys::rb_thread_current() == rb_sys::rb_thread_main() } }
    }

    /// Whether a signal waits for this thread; the VM tells of everything else. Without the GVL too.
    pub fn is_wanted(self) -> bool {
        // SAFETY: looks at a counter of the process.
        self.main && unsafe { rb_thread_check_trap_pending() != 0 }
    }
}

struct Work<W, T> {
    work: Option<W>,
    result: Option<std::thread::Result<T>>,
}

impl<W: FnOnce() -> T, T> Work<W, T> {
    fn new(work: W) -> Self {
        Self { work: Some(work), result: None }
    }

    /// What the VM calls.
    extern "C" fn run(data: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer is to a `Work` that lives until this returns.
        let data = unsafe { &mut *data.cast::<Self>() };
        if let Some(work) = data.work.take() {
            data.result = Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)));
        }
        std::ptr::null_mut()
    }

    fn runner(&self) -> unsafe extern "C" fn(*mut c_void) -> *mut c_void {
        Self::run
    }

    fn finish(self) -> Option<T> {
        self.result.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

/// Runs `work` without the lock; `unblock` is called when it should end early, from another thread or a signal
/// handler. `None` if it was not even begun, because the VM wants the thread at once.
///
/// # Panics
/// If `work` panics.
pub fn without<T, W: FnOnce() -> T, U: Fn() + Sync>(work: W, unblock: U) -> Option<T> {
    extern "C" fn stop<U: Fn()>(data: *mut c_void) {
        // SAFETY: the pointer is to the closure below, which lives until the work is done.
        unsafe { (*data.cast::<U>())() }
    }
    let mut data = Work::new(work);
    // SAFETY: called with the lock; this function neither raises nor checks interrupts afterwards.
    unsafe {
        rb_sys::rb_nogvl(
            Some(data.runner()),
            (&raw mut data).cast(),
            Some(stop::<U>),
            (&raw const unblock).cast_mut().cast(),
            (rb_sys::RB_NOGVL_INTR_FAIL | rb_sys::RB_NOGVL_UBF_ASYNC_SAFE) as c_int,
        );
    }
    data.finish()
}

/// Runs `work` without the lock, to its end: what the VM wants of the thread before it is begun is done, and `stop` gets
/// what that raises. With the lock, `work` could wait for ever, for one who needs the lock.
///
/// # Panics
/// If `work` panics.
pub fn without_fail<T>(work: impl FnOnce() -> T, unblock: impl Fn() + Sync, stop: impl Fn(Unwind)) -> T {
    let done = without_unless(work, unblock, |unwind| -> Result<(), Infallible> {
        stop(unwind);
        Ok(())
    });
    match done {
        Ok(done) => done,
        Err(never) => match never {},
    }
}

/// Runs `work` without the lock, unless what the VM wants of the thread before it is begun raises something.
///
/// # Errors
/// What was raised; the work was not begun.
///
/// # Panics
/// If `work` panics.
pub fn without_or_raise<T>(work: impl FnOnce() -> T, unblock: impl Fn() + Sync) -> Result<T, Unwind> {
    without_unless(work, unblock, Err)
}

fn without_unless<T, E>(
    work: impl FnOnce() -> T,
    unblock: impl Fn() + Sync,
    raised: impl Fn(Unwind) -> Result<(), E>,
) -> Result<T, E> {
    let mut work = Some(work);
    loop {
        if let Some(done) = without(|| work.take().map(|work| work()), &unblock).flatten() {
            return Ok(done);
        }
        check_interrupts().or_else(&raised)?;
    }
}

/// Runs `work` with the lock, on a Ruby thread: takes the lock if the thread is without. `None` if it was not
/// even begun.
///
/// The VM does what it wants of a thread when that gives the lock back, and raises there, over all frames. So it is
/// asked before, until it wants nothing more, and `stop` gets what it raises: its exceptions, the thread's end.
/// What another thread or a signal asks for between the last look and the VM's own, some instructions later, is
/// still raised there.
///
/// # Panics
/// If `work` panics.
pub fn with<T>(work: impl FnOnce() -> T, stop: impl Fn(Unwind)) -> Option<T> {
    if stand() == Stand::Locked {
        return Some(work());
    }
    let work = || {
        let result = work();
        loop {
            // Other threads may take a turn here.
            if let Err(unwind) = check_interrupts() {
                stop(unwind);
            }
            // SAFETY: with the GVL.
            if unsafe { rb_sys::rb_thread_interrupted(rb_sys::rb_thread_current()) } == 0 {
                break;
            }
        }
        result
    };
    let mut data = Work::new(work);
    // SAFETY: the caller stands on a Ruby thread without the lock, and the work lets no longjmp out.
    unsafe {
        rb_sys::rb_thread_call_with_gvl(Some(data.runner()), (&raw mut data).cast());
    }
    data.finish()
}

/// Does what the VM wants of this thread: runs signal handlers, raises what another thread raised in it, ends it.
pub fn check_interrupts() -> Result<(), Unwind> {
    // SAFETY: nothing is held across the call.
    protect(|| unsafe { rb_sys::rb_thread_check_ints() })
}
