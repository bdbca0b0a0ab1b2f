//! The VM's lock (GVL): releasing it for a wait, taking it for a call, and whether a thread has it.
//!
//! A wait without the lock must end when the VM needs its thread (for a signal, `Timeout` or
//! `Thread#kill`):
//!
//! - If another thread needs it, the VM calls `unblock` from that thread.
//! - A signal's handler runs on the main thread itself and only interrupts its system call. If
//!   there are no other threads, the VM calls `unblock` from the handler. So `unblock` must be
//!   async-signal-safe. Otherwise it is not called for a signal, so waits of the main thread also
//!   check [`Me::is_wanted`].
//!
//! [`check_interrupts`] handles the VM's interrupts. It is called where the frames hold nothing
//! that a longjmp would leak.
//!
//! Without the lock, no code may access a Ruby object, not even a thread: the collector may be
//! moving it.

use crate::protect::{Unwind, protect};
use std::convert::Infallible;
use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn ruby_thread_has_gvl_p() -> c_int;
    /// Whether signals wait for their handlers. It only reads a counter.
    fn rb_thread_check_trap_pending() -> c_int;
}

/// The relation of a thread to the VM. It decides how the thread may call Ruby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// A Ruby thread with the lock. It can call Ruby.
    Locked,
    /// A Ruby thread without the lock. It takes the lock before it calls Ruby.
    Unlocked,
    /// Any other thread. It must ask a Ruby thread.
    Foreign,
}

/// The relation of the current thread to the VM.
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

    /// Whether a signal waits for this thread. The VM reports all other interrupts by `unblock`. It
    /// may be called without the GVL.
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

    /// The function that the VM calls.
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

/// Runs `work` without the lock. The VM calls `unblock` if `work` should end early, from another
/// thread or a signal handler. Returns `None` if `work` did not run because the VM needed the
/// thread at once.
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

/// Runs `work` without the lock, to its end. Interrupts of the VM are handled before `work`, and
/// `stop` gets their exceptions and jumps. With the lock, `work` could wait forever for a thread
/// that needs the lock.
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

/// Runs `work` without the lock. If an interrupt of the VM raises before `work`, `work` does not
/// run.
///
/// # Errors
/// The exception or jump of the interrupt; `work` did not run.
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

/// Runs `work` with the lock, on a Ruby thread. If the thread does not have the lock, takes it.
/// Returns `None` if `work` did not run.
///
/// When a thread releases the lock, the VM handles its interrupts, and raises across all frames. So
/// this handles the interrupts before the release, until there are none. `stop` gets their
/// exceptions and jumps, such as the thread's end. One gap remains: an interrupt may come some
/// instructions later, between the last check and the VM's own. The VM raises it during the
/// release.
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
            // Other threads may run here.
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
    // SAFETY: the caller stands on a Ruby thread without the lock, and no longjmp leaves
    // the work.
    unsafe {
        rb_sys::rb_thread_call_with_gvl(Some(data.runner()), (&raw mut data).cast());
    }
    data.finish()
}

/// Handles the VM's interrupts for this thread: it runs signal handlers, raises exceptions from
/// other threads, and ends the thread if another one has killed it.
pub fn check_interrupts() -> Result<(), Unwind> {
    // SAFETY: nothing is held across the call.
    protect(|| unsafe { rb_sys::rb_thread_check_ints() })
}
