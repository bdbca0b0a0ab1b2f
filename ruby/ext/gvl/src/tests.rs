//! Longjmps and the lock, in the test's own VM.

use crate::{Stand, Unwind, class_name, made, protect, stand, with, without, without_fail, without_or_raise};
use magnus::{Error, Ruby, Value, function};
use rb_sys::VALUE;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_int};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

unsafe extern "C" {
    fn raise(signal: c_int) -> c_int;
}
const SIGUSR1: c_int = 10;

fn run(code: &str) -> Result<VALUE, Unwind> {
    let code = CString::new(code).expect("no zero bytes");
    let mut result = 0;
    // SAFETY: protected, and nothing in the closure needs to be dropped.
    protect(|| unsafe { result = rb_sys::rb_eval_string(code.as_ptr()) })?;
    Ok(result)
}

fn an_exception_is_a_value() {
    assert_eq!(run("40 + 2").expect("an Integer"), 42 << 1 | 1);
    let unwind = run("raise ArgumentError, 'why'").expect_err("an exception");
    assert!(matches!(unwind, Unwind::Raise(_)) && !unwind.is_final());
    let error = unwind.into_error();
    assert!(error.to_string().contains("why"), "{error}");
    // No exception remains in the VM.
    assert_eq!(run("$!.nil? ? 1 : 0").expect("an Integer"), 1 << 1 | 1);
    assert!(run("exit 3").expect_err("an exception").is_final());
    assert!(run("raise Interrupt").expect_err("an exception").is_final());
}

fn a_throw_is_a_jump_that_goes_on() {
    fn jump() -> Result<Value, Error> {
        let unwind = run("throw :out, 7").expect_err("a jump");
        assert!(matches!(unwind, Unwind::Jump(_)) && unwind.is_final());
        Err(unwind.into_error())
    }
    let ruby = Ruby::get().expect("with the GVL");
    ruby.define_global_function("jump", function!(jump, 0)).expect("a function");
    assert_eq!(run("catch(:out) { jump; 8 }").expect("an Integer"), 7 << 1 | 1);
}

fn a_panic_goes_through() {
    let caught = catch_unwind(|| protect(|| panic!("a defect")));
    assert_eq!(caught.expect_err("a panic").downcast_ref::<&str>(), Some(&"a defect"));
    assert_eq!(run("1").expect("the VM goes on"), 1 << 1 | 1);
}

fn an_object_that_cannot_be_made_is_returned_as_an_error() {
    struct Noted<'a>(&'a Cell<u32>);
    impl Drop for Noted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Cell::new(0);
    let make = |code: &str| -> Result<VALUE, Unwind> {
        let _noted = Noted(&dropped);
        let code = CString::new(code).expect("no zero bytes");
        // SAFETY: protected, and the closure owns nothing.
        made(|| unsafe { rb_sys::rb_eval_string(code.as_ptr()) })
    };
    assert_eq!(make("40 + 2").expect("an Integer"), 42 << 1 | 1);
    let error = make("raise NoMemoryError, 'none left'").expect_err("an exception").into_error();
    assert!(error.to_string().contains("none left"), "{error}");
    assert_eq!(dropped.get(), 2);
    let nameless: Value = magnus::eval("Class.new.new").expect("an object");
    assert!(class_name(nameless).expect("a name").starts_with("#<Class:0x"));
}

fn the_lock_is_given_up_and_taken_again() {
    assert_eq!(stand(), Stand::Locked);
    let inside = without(|| (stand(), with(stand, |_| {})), || {}).expect("it ran");
    assert_eq!(inside, (Stand::Unlocked, Some(Stand::Locked)));
    assert_eq!(stand(), Stand::Locked);
    assert_eq!(std::thread::spawn(stand).join().expect("no panic"), Stand::Foreign);
}

fn a_wait_ends_when_its_thread_is_wanted() {
    let unblocked = AtomicBool::new(false);
    run("$main = Thread.current; Thread.new { sleep 0.05; $main.raise(IOError, 'enough') }")
        .expect("a thread");
    without(
        || {
            while !unblocked.load(Relaxed) {
                std::thread::yield_now();
            }
        },
        || unblocked.store(true, Relaxed),
    )
    .expect("it ran");
    let error = crate::check_interrupts().expect_err("what was raised").into_error();
    assert!(error.to_string().contains("enough"), "{error}");
}

fn a_signal_after_the_work_is_reported() {
    run("trap('USR1') { raise IOError, 'late' }").expect("a handler");
    let told = RefCell::new(Vec::new());
    let signalled = || {
        // SAFETY: the signal has the VM's handler, which only notes it.
        unsafe { raise(SIGUSR1) };
        42
    };
    let outer = || with(signalled, |unwind| told.borrow_mut().push(unwind.into_error().to_string()));
    assert_eq!(without(outer, || {}), Some(Some(42)));
    assert_eq!(told.take(), ["late"]);
    run("trap('USR1', 'DEFAULT')").expect("no handler");
}

fn signals_before_the_work_are_handled_first() {
    // When the first handler raises, two more signals wait, one after the other.
    run("$signals = 0; trap('USR1') { Process.kill('USR1', $$) if ($signals += 1) % 3 > 0; raise IOError }")
        .expect("a handler");
    // SAFETY: the signal has the VM's handler, which only notes it.
    let signal = || unsafe { raise(SIGUSR1) };
    // No Ruby code runs in `work`, because Ruby code would handle the interrupts.
    let told = Cell::new(0);
    signal();
    let stood = without_fail(stand, || {}, |unwind| told.set(told.get() + u32::from(is_raise(&unwind))));
    // With the lock, `work` would block the threads that it waits for.
    assert_eq!((stood, told.get()), (Stand::Unlocked, 3));
    signal();
    for _ in 0..3 {
        let unwind = without_or_raise(|| unreachable!("the work was begun"), || {}).expect_err("a signal");
        assert!(is_raise(&unwind));
    }
    assert_eq!(without_or_raise(stand, || {}).expect("no signal"), Stand::Unlocked);
    assert_eq!(run("$signals").expect("an Integer"), 6 << 1 | 1);
    run("trap('USR1', 'DEFAULT')").expect("no handler");
}

fn is_raise(unwind: &Unwind) -> bool {
    matches!(unwind, Unwind::Raise(_))
}

/// One thread must start and use the VM, so all tests are in this one.
#[test]
fn ruby() {
    // SAFETY: the VM is begun once, and lives as long as this frame.
    let _vm = unsafe { magnus::embed::init() };
    an_exception_is_a_value();
    a_panic_goes_through();
    an_object_that_cannot_be_made_is_returned_as_an_error();
    the_lock_is_given_up_and_taken_again();
    a_wait_ends_when_its_thread_is_wanted();
    a_throw_is_a_jump_that_goes_on();
    a_signal_after_the_work_is_reported();
    signals_before_the_work_are_handled_first();
}
