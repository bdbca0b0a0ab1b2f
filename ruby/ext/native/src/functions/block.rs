//! Runs a loop as a method with a block: `yield` is the fastest way to call a block.

use crosslane_gvl::{Unwind, protect};
use rb_sys::{Qnil, VALUE};
use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

/// The method that runs the loop, `Crosslane::Native.rows`: its module and its name.
static RUNNER: OnceLock<(VALUE, rb_sys::ID)> = OnceLock::new();

/// A loop behind a thin pointer, and its panic.
struct Work<'a> {
    work: &'a mut dyn FnMut(),
    panic: Option<Box<dyn Any + Send>>,
}

/// # Safety
/// `address` must be that of a `Work`, and alive.
unsafe extern "C" fn rows(_native: VALUE, address: VALUE) -> VALUE {
    // SAFETY: `with_block` passes the address of its own `Work`, with a tag in the lowest bit.
    let work = unsafe { &mut *((address & !1) as *mut Work<'_>) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(&mut *work.work)) {
        work.panic = Some(panic);
    }
    Qnil as VALUE
}

/// Defines the method.
///
/// # Safety
/// With the GVL, protected; `native` is the module, a constant.
pub(crate) unsafe fn define(native: VALUE) {
    // SAFETY: as the caller says; the function takes one argument.
    unsafe {
        rb_sys::rb_gc_register_mark_object(native);
        let function: unsafe extern "C" fn(VALUE, VALUE) -> VALUE = rows;
        let function =
            std::mem::transmute::<*const (), Option<unsafe extern "C" fn() -> VALUE>>(function as *const ());
        rb_sys::rb_define_singleton_method(native, c"rows".as_ptr(), function, 1 as c_int);
        let _ = RUNNER.set((native, crate::values::intern(c"rows")));
    }
}

/// Runs `work` with a Proc as its block. Otherwise it is like [`protect`].
///
/// # Panics
/// If `work` does, after the VM's own frames are gone.
pub(crate) fn with_block(block: VALUE, work: &mut dyn FnMut()) -> Result<(), Unwind> {
    let (native, name) = *RUNNER.get().expect("the library is prepared");
    let mut work = Work { work, panic: None };
    // The address is aligned. So a tag in its lowest bit makes it a small integer, which the
    // collector ignores.
    let address = (&raw mut work) as VALUE | 1;
    // SAFETY: protected; the work outlives the call.
    let outcome = protect(|| unsafe {
        rb_sys::rb_funcall_with_block(native, name, 1, &address, block);
    });
    match work.panic {
        Some(panic) => resume_unwind(panic),
        None => outcome,
    }
}
