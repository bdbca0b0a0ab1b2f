//! The native half of the gem.
//!
//! | module | what |
//! |---|---|
//! | [`serve`], [`function`], [`table`] | the guest's loop, for forked workers and for host lanes |
//! | [`reader`], [`writer`] | columns as Ruby objects and back |
//! | [`control`] | the zygote's side of the control socket |
//! | [`engine`] | the embedded database, and its calls of this program's blocks |

#![allow(missing_docs, reason = "the only thing to be seen is Ruby's entry point, which a macro makes")]

mod control;
mod engine;
mod function;
mod reader;
mod rows;
mod serve;
mod shapes;
mod table;
mod values;
mod writer;

use crosslane::Signature;
use magnus::rb_sys::AsRawValue;
use magnus::{Class, Error, Module, Object, RModule, Ruby, function, method};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An ArgumentError.
pub(crate) fn argument_error(message: impl ToString) -> Error {
    Error::new(Ruby::get().expect("with the GVL").exception_arg_error(), message.to_string())
}

/// A name, the parameters' names and types, the type of the result.
type Parts = (String, Vec<(String, String)>, String);

/// The parts of a signature, in their normal form.
fn parse_signature(text: String) -> Result<Parts, Error> {
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

/// Waits, without the GVL, until one of the first descriptors can be read, or the other side of one of the second
/// is gone; returns those.
fn poll(readable: Vec<i32>, gone: Vec<i32>) -> Result<Vec<i32>, Error> {
    // SAFETY: a new descriptor.
    let wake = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    let wanted = readable.iter().map(|fd| (*fd, libc::POLLIN));
    let wanted = wanted.chain(gone.iter().map(|fd| (*fd, libc::POLLRDHUP)));
    let wanted = wanted.chain([(wake.as_raw_fd(), libc::POLLIN)]);
    let mut fds: Vec<libc::pollfd> =
        wanted.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let unblock = || {
        let one = 1u64;
        // SAFETY: eight bytes are read from a living place.
        unsafe { libc::write(wake.as_raw_fd(), (&raw const one).cast(), 8) };
    };
    // SAFETY: the list lives across the call.
    crosslane_gvl::without(
        || unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) },
        unblock,
    );
    crosslane_gvl::check_interrupts()?;
    Ok(fds[..fds.len() - 1].iter().filter(|fd| fd.revents != 0).map(|fd| fd.fd).collect())
}

/// Looks up what the native half needs of the Ruby half, when that is loaded.
fn prepare() -> Result<(), Error> {
    // SAFETY: with the GVL, protected.
    crosslane_gvl::protect(|| unsafe { values::prepare() })?;
    Ok(())
}

#[magnus::init(name = "native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let native = ruby.define_module("Crosslane")?.define_module("Native")?;
    // SAFETY: the module was just defined; defining a method of it raises nothing but for lack of memory.
    unsafe { rows::define(native.as_raw()) };
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
    define_engine(ruby, native)
}

fn define_engine(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    use engine::{aggregate, api, append, arrow, database, host, rows, scalar, scan};
    native.define_singleton_method("load_duckdb", function!(api::load, 1))?;
    native.define_singleton_method("duckdb_version", function!(api::version, 0))?;
    native.define_singleton_method("start_host", function!(host::start, 1))?;
    native.define_singleton_method("host_statistics", function!(host::statistics, 0))?;
    native.define_singleton_method("ended_scans", function!(scan::ended, 0))?;
    native.define_singleton_method("ended_states", function!(aggregate::ended, 0))?;
    native.define_singleton_method("arrow_stream", function!(arrow::stream, 1))?;
    native.define_singleton_method("free_arrow_stream", function!(arrow::free_stream, 1))?;
    native.define_singleton_method("poll", function!(poll, 2))?;
    let class = |name| {
        let class = native.define_class(name, ruby.class_object())?;
        class.undef_default_alloc_func();
        Ok::<_, Error>(class)
    };
    let database = class("Database")?;
    database.define_singleton_method("open", function!(database::Database::open, 2))?;
    database.define_method("connect", method!(database::Database::connect, 0))?;
    database.define_method("close", method!(database::Database::close, 0))?;
    let connection = class("Connection")?;
    connection.define_method("query", method!(database::Connection::query, 2))?;
    connection.define_method("prepare", method!(database::Connection::prepare, 1))?;
    connection.define_method("appender", method!(database::Connection::appender, 2))?;
    connection.define_method("close", method!(database::Connection::close, 0))?;
    connection.define_method("register_scalar", method!(scalar::register, 2))?;
    connection.define_method("register_table", method!(scan::register, 3))?;
    connection.define_method("register_aggregate", method!(aggregate::register, 4))?;
    let statement = class("Statement")?;
    statement.define_method("query", method!(database::Statement::query, 1))?;
    let rows = class("Rows")?;
    rows.define_method("names", method!(rows::Rows::names, 0))?;
    rows.define_method("types", method!(rows::Rows::types, 0))?;
    rows.define_method("changed", method!(rows::Rows::changed, 0))?;
    rows.define_method("fetch", method!(rows::Rows::fetch, 0))?;
    let appender = class("Appender")?;
    appender.define_method("row", method!(append::Appender::row, 1))?;
    appender.define_method("close", method!(append::Appender::close, 0))?;
    appender.define_method("give_up", method!(append::Appender::give_up, 0))?;
    Ok(())
}
