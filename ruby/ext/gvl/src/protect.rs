//! Catches longjmps: exceptions and other jumps out of Ruby code become values.

use magnus::error::Tag;
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Exception, TryConvert, Value};
use rb_sys::{Qnil, Qtrue, VALUE};
use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The way in which Ruby code ended, other than by a return.
#[derive(Debug)]
pub enum Unwind {
    /// An exception. The caller must keep it on its stack, or pass it to Ruby.
    Raise(VALUE),
    /// A jump by `throw`, `break` or the thread's end. The number is the kind of jump; the VM
    /// itself keeps the target. The number is as wide as an exception, so a result with an object
    /// or an unwind is returned in registers.
    Jump(i64),
}

impl Unwind {
    /// A new exception with a message.
    pub fn new(class: &CStr, message: &str) -> Self {
        let mut exception = Qnil as VALUE;
        let raised = protect(|| {
            // SAFETY: protected, and nothing needs to be dropped in here.
            unsafe {
                let class = rb_sys::rb_path2class(class.as_ptr());
                let text = rb_sys::rb_utf8_str_new(message.as_ptr().cast(), message.len() as i64);
                exception = rb_sys::rb_exc_new_str(class, text);
            }
        });
        raised.map_or_else(|other| other, |()| Unwind::Raise(exception))
    }

    /// Whether this ends the program or the thread. Such an unwind must not be delayed.
    pub fn is_final(&self) -> bool {
        match self {
            // SAFETY: the exception is alive, and asking for its class raises nothing.
            Unwind::Raise(exception) => unsafe {
                [rb_sys::rb_eSystemExit, rb_sys::rb_eSignal]
                    .into_iter()
                    .any(|class| rb_sys::rb_obj_is_kind_of(*exception, class) == Qtrue as VALUE)
            },
            Unwind::Jump(_) => true,
        }
    }

    /// Raises or jumps again.
    ///
    /// # Safety
    /// With the GVL. The callers' frames, up to Ruby's own or those of a [`protect`], hold nothing
    /// that must be dropped.
    pub unsafe fn resume(self) -> ! {
        match self {
            // SAFETY: as the caller says.
            Unwind::Raise(exception) => unsafe { rb_sys::rb_exc_raise(exception) },
            // SAFETY: as above; the VM still holds the target of this state.
            Unwind::Jump(state) => unsafe { rb_sys::rb_jump_tag(state as c_int) },
        }
        #[allow(unreachable_code, reason = "bindgen does not know that these never return")]
        {
            unreachable!("a jump that did not happen")
        }
    }

    /// The unwind as an error of magnus, which raises or jumps again elsewhere.
    pub fn into_error(self) -> magnus::Error {
        match self {
            Unwind::Raise(exception) => {
                // SAFETY: the exception is alive.
                let exception = unsafe { Value::from_raw(exception) };
                match Exception::try_convert(exception) {
                    Ok(exception) => exception.into(),
                    Err(error) => error,
                }
            }
            Unwind::Jump(state) => {
                // SAFETY: the VM still holds the target of this state. magnus catches the
                // jump, and continues it after its caller's frames have ended.
                let jumped = magnus::rb_sys::protect(|| unsafe {
                    rb_sys::rb_jump_tag(state as c_int);
                    #[allow(unreachable_code, reason = "bindgen does not know that this never returns")]
                    (Qnil as VALUE)
                });
                match jumped {
                    Err(error) => error,
                    Ok(_) => magnus::Error::new(
                        magnus::Ruby::get().expect("with the GVL").exception_fatal(),
                        "a jump that did not happen",
                    ),
                }
            }
        }
    }
}

impl From<Unwind> for magnus::Error {
    fn from(unwind: Unwind) -> Self {
        unwind.into_error()
    }
}

impl From<std::io::Error> for Unwind {
    fn from(error: std::io::Error) -> Self {
        Unwind::new(c"IOError", &error.to_string())
    }
}

impl From<magnus::Error> for Unwind {
    fn from(error: magnus::Error) -> Self {
        use magnus::rb_sys::AsRawValue;
        let ruby = magnus::Ruby::get().expect("with the GVL");
        match error.error_type() {
            magnus::error::ErrorType::Exception(exception) => Unwind::Raise(exception.as_raw()),
            magnus::error::ErrorType::Error(class, message) => {
                match class.funcall::<_, _, Value>("new", (message.to_string(),)) {
                    Ok(exception) => Unwind::Raise(exception.as_raw()),
                    Err(_) => Unwind::Raise(ruby.qnil().as_raw()),
                }
            }
            magnus::error::ErrorType::Jump(tag) => Unwind::Jump(match tag {
                Tag::Return => 1,
                Tag::Break => 2,
                Tag::Next => 3,
                Tag::Retry => 4,
                Tag::Redo => 5,
                Tag::Raise => 6,
                Tag::Throw => 7,
                Tag::Fatal => 8,
            }),
        }
    }
}

/// A Proc that raises an exception and rescues it.
static RESCUE: OnceLock<VALUE> = OnceLock::new();

/// Must be called once, when a library is loaded. With the GVL.
///
/// # Errors
/// If there is no memory.
pub fn prepare() -> Result<(), Unwind> {
    let mut rescue = Qnil as VALUE;
    protect(|| {
        // SAFETY: the text is a program that makes a Proc, which is kept for ever.
        unsafe {
            rescue = rb_sys::rb_eval_string(c"proc { raise rescue nil }".as_ptr());
            rb_sys::rb_gc_register_mark_object(rescue);
        }
    })?;
    let _ = RESCUE.set(rescue);
    Ok(())
}

/// Reports to the VM that a NoMemoryError or a SystemStackError was caught. After it raises one of
/// them, the VM handles no interrupts of the thread until Ruby code has rescued an exception.
fn caught_lack() {
    if let Some(rescue) = RESCUE.get() {
        let mut state = 0;
        // SAFETY: with the GVL. The Proc takes no argument; if it raises, the exception is dropped.
        unsafe {
            rb_sys::rb_protect(Some(rescued), *rescue, &raw mut state);
            rb_sys::rb_set_errinfo(Qnil as VALUE);
        }
    }
}

unsafe extern "C" fn rescued(rescue: VALUE) -> VALUE {
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_proc_call(rescue, rb_sys::rb_ary_new()) }
}

/// Runs `make`, which makes Ruby objects and may find no memory for them. A jump leaks the data
/// that `make` owns. So `make` must hold nothing that must be dropped while it calls into Ruby.
///
/// # Errors
/// The exception or jump of Ruby.
pub fn made<T>(make: impl FnOnce() -> T) -> Result<T, Unwind> {
    let mut make = Some(make);
    let mut result = None;
    protect(|| result = make.take().map(|make| make()))?;
    Ok(result.expect("it was not left"))
}

/// The name of an object's class. For a class without a name, Ruby makes one.
///
/// # Errors
/// If there is no memory for it.
pub fn class_name(object: Value) -> Result<String, Unwind> {
    // SAFETY: the name is copied at once.
    made(|| unsafe { object.classname() }.into_owned())
}

/// Runs Ruby code. `body` must hold nothing that must be dropped while it calls into Ruby.
///
/// # Panics
/// If `body` does, after the VM's own frames are gone.
pub fn protect<F: FnMut()>(mut body: F) -> Result<(), Unwind> {
    struct Body<F> {
        body: F,
        panic: Option<Box<dyn std::any::Any + Send>>,
    }
    unsafe extern "C" fn run<F: FnMut()>(data: VALUE) -> VALUE {
        // SAFETY: the pointer is to the `Body` below, which lives until this returns.
        let data = unsafe { &mut *(data as *mut Body<F>) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(&mut data.body)) {
            data.panic = Some(panic);
        }
        Qnil as VALUE
    }
    let mut data = Body { body: &mut body, panic: None };
    let mut state = 0;
    // SAFETY: called with the GVL; a longjmp leaves only the frames of `run` and `body`.
    unsafe { rb_sys::rb_protect(Some(run::<&mut F>), &raw mut data as VALUE, &mut state) };
    if let Some(panic) = data.panic {
        std::panic::resume_unwind(panic);
    }
    if state == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe {
        let exception = rb_sys::rb_errinfo();
        let special = rb_sys::SPECIAL_CONST_P(exception)
            || rb_sys::RB_BUILTIN_TYPE(exception) == rb_sys::ruby_value_type::RUBY_T_IMEMO;
        if special || rb_sys::rb_obj_is_kind_of(exception, rb_sys::rb_eException) != Qtrue as VALUE {
            return Err(Unwind::Jump(state.into()));
        }
        rb_sys::rb_set_errinfo(Qnil as VALUE);
        let lacks = [rb_sys::rb_eNoMemError, rb_sys::rb_eSysStackError];
        if lacks.iter().any(|class| rb_sys::rb_obj_is_kind_of(exception, *class) == Qtrue as VALUE) {
            caught_lack();
        }
        Err(Unwind::Raise(exception))
    }
}
