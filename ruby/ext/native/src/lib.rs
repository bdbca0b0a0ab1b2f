//! The native half of the gem.
//!
//! | module | what |
//! |---|---|
//! | [`serve`], [`function`], [`table`] | the guest's loop, for forked workers and for host lanes |
//! | [`reader`], [`writer`] | columns as Ruby objects and back |
//! | [`gvl`], [`protect`] | the VM's lock, and where its longjmps end |
//! | [`control`] | the zygote's side of the control socket |

mod control;
mod function;
mod gvl;
mod protect;
mod reader;
mod serve;
mod shapes;
mod table;
mod values;
mod writer;

use crosslane::Signature;
use magnus::{Class, Error, Module, Object, Ruby, function, method};

/// An ArgumentError.
pub(crate) fn argument_error(message: impl ToString) -> Error {
    Error::new(Ruby::get().expect("with the GVL").exception_arg_error(), message.to_string())
}

/// A name, the parameters' names and types, the type of the result: in their normal form.
fn parse_signature(text: String) -> Result<(String, Vec<(String, String)>, String), Error> {
    let signature: Signature = text.parse().map_err(argument_error)?;
    let parameters = signature.parameters.into_iter().map(|field| (field.name, field.data_type.to_string()));
    Ok((signature.name, parameters.collect(), signature.returns.to_string()))
}

/// Has the kernel end this process when its parent ends.
fn die_with_parent(signal: i32) {
    // SAFETY: prctl has no memory requirements.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
}

/// A child that has ended, which is not reaped: its process id, exit code and signal.
fn ended_child() -> Option<(i32, Option<i32>, Option<i32>)> {
    // SAFETY: the structure is plain data, filled by the call.
    let info = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, &mut info, options) != 0 {
            return None;
        }
        info
    };
    // SAFETY: these fields belong to what waitid fills in.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    match pid {
        0 => None,
        _ if info.si_code == libc::CLD_EXITED => Some((pid, Some(status), None)),
        _ => Some((pid, None, Some(status))),
    }
}

/// Looks up what the native half needs of the Ruby half, when that is loaded.
fn prepare() -> Result<(), Error> {
    // SAFETY: with the GVL, protected.
    protect::protect(|| unsafe { values::prepare() })?;
    Ok(())
}

#[magnus::init(name = "native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let native = ruby.define_module("Crosslane")?.define_module("Native")?;
    native.define_singleton_method("prepare", function!(prepare, 0))?;
    native.define_singleton_method("parse_signature", function!(parse_signature, 1))?;
    native.define_singleton_method("die_with_parent", function!(die_with_parent, 1))?;
    native.define_singleton_method("ended_child", function!(ended_child, 0))?;
    native.define_singleton_method("serve", function!(serve::serve, 5))?;
    native.const_set("VERSION", env!("CARGO_PKG_VERSION"))?;
    let clock = native.define_class("Clock", ruby.class_object())?;
    clock.undef_default_alloc_func();
    clock.define_method("call", method!(serve::Clock::call, 1))?;
    let control = native.define_class("Control", ruby.class_object())?;
    control.define_singleton_method("new", function!(control::Control::new, 1))?;
    control.define_method("receive", method!(control::Control::receive, 0))?;
    control.define_method("loaded", method!(control::Control::loaded, 2))?;
    control.define_method("failed", method!(control::Control::failed, 3))?;
    control.define_method("forked", method!(control::Control::forked, 2))?;
    control.define_method("unforked", method!(control::Control::unforked, 2))?;
    control.define_method("exited", method!(control::Control::exited, 3))?;
    control.define_method("interrupted", method!(control::Control::interrupted, 0))?;
    Ok(())
}
