//! The native half of the gem.
//!
//! | module | what |
//! |---|---|
//! | [`serve`], [`ready`], [`function`], [`concurrent`], [`table`], [`aggregate`] | calls, in forked workers and in host lanes |
//! | [`objects`], [`shapes`], [`values`] | what Ruby's objects are in SQL |
//! | [`zygote`] | loads a file, and forks workers |
//! | [`control`] | the host's side of the control socket |
//! | [`engine`] | the embedded database, and its calls of this program's blocks |
//! | [`client`] | a server's functions |

#![allow(missing_docs, reason = "the only thing to be seen is Ruby's entry point, which a macro makes")]

mod aggregate;
mod client;
mod concurrent;
mod control;
mod engine;
mod function;
mod kept;
mod objects;
mod ready;
mod rows;
mod serve;
mod shapes;
mod table;
#[cfg(test)]
mod tests;
mod values;
mod zygote;

use crosslane::{DataType, Signature};
use crosslane_gvl::Unwind;
use magnus::rb_sys::AsRawValue;
use magnus::{
    Error, Module, Object, RArray, RClass, RModule, RString, Ruby, TypedData, Value, function, method,
};
use rustix::event::EventfdFlags;
use std::os::fd::AsRawFd;

/// An ArgumentError.
pub(crate) fn argument_error(message: impl ToString) -> Error {
    Error::new(Ruby::get().expect("with the GVL").exception_arg_error(), message.to_string())
}

/// A name, the parameters' names and types, the type of the result, whether the last parameter stands for any number of
/// arguments.
type Parts = (String, Vec<(String, String)>, String, bool);

/// The parts of a signature, in their normal form.
fn parse_signature(text: String) -> Result<Parts, Error> {
    let signature: Signature = text.parse().map_err(argument_error)?;
    let mut parameters = signature.pairs();
    if signature.stream {
        // A table is no type: what it travels as is.
        parameters[0].1 = match &signature.parameters[0].data_type {
            DataType::Any => "TABLE".to_owned(),
            columns => columns.to_string().replacen("STRUCT", "TABLE", 1),
        };
    }
    Ok((signature.name.clone(), parameters, signature.result(), signature.variadic))
}

/// What tells files, as pairs of path and content, from any others.
fn text(files: RArray) -> Result<String, Error> {
    let mut read = Vec::new();
    for index in 0..files.len() {
        let (path, content): (RString, RString) = files.entry(index as isize)?;
        // SAFETY: the bytes are copied at once, and the Strings live in the Array.
        read.push(unsafe { (path.as_slice().to_vec(), content.as_slice().to_vec()) });
    }
    Ok(crosslane_process::control::text(read.iter().map(|(path, content)| (&path[..], &content[..]))))
}

/// How long a wait is that nothing can end, in milliseconds.
const GLANCE: i32 = 10;

/// Waits, without the GVL, until one of the first descriptors can be read, or the other side of one of the second
/// is gone; returns those.
fn poll(readable: Vec<i32>, gone: Vec<i32>) -> Result<Vec<i32>, Error> {
    // Without a descriptor for it, nothing can end the wait: then it is a short one.
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
    let patience = if wake.is_some() { -1 } else { GLANCE };
    let wanted = readable.iter().map(|fd| (*fd, libc::POLLIN));
    let wanted = wanted.chain(gone.iter().map(|fd| (*fd, libc::POLLRDHUP)));
    let wanted = wanted.chain(wake.iter().map(|wake| (wake.as_raw_fd(), libc::POLLIN)));
    let mut fds: Vec<libc::pollfd> =
        wanted.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let unblock = || {
        if let Some(wake) = &wake {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    };
    // SAFETY: the list lives across the call.
    crosslane_gvl::without(
        || unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, patience) },
        unblock,
    );
    crosslane_gvl::check_interrupts()?;
    let fds = &fds[..fds.len() - usize::from(wake.is_some())];
    Ok(fds.iter().filter(|fd| fd.revents != 0).map(|fd| fd.fd).collect())
}

/// The pause in seconds before try `tries + 1`.
fn backoff(tries: u32) -> f64 {
    crosslane::call::backoff(tries).as_secs_f64()
}

/// Whether an exception is to end the program.
fn is_final(error: Value) -> bool {
    Unwind::Raise(error.as_raw()).is_final()
}

/// Looks up what the native half needs of the Ruby half, when that is loaded.
fn prepare() -> Result<(), Error> {
    crosslane_gvl::prepare()?;
    // SAFETY: with the GVL, protected.
    crosslane_gvl::protect(|| unsafe { values::prepare() })?;
    Ok(())
}

/// Defines a class whose objects are made here. It is looked up at once: where a thread is killed, or interrupted, the
/// first use could not find it.
fn define<T: TypedData>(ruby: &Ruby, module: RModule, name: &str) -> Result<RClass, Error> {
    module.define_class(name, ruby.class_object())?;
    Ok(T::class(ruby))
}

#[magnus::init(name = "native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let native = ruby.define_module("Crosslane")?.define_module("Native")?;
    // SAFETY: protected, with the GVL; the module was just defined.
    crosslane_gvl::protect(|| unsafe { rows::define(native.as_raw()) })?;
    native.define_singleton_method("prepare", function!(prepare, 0))?;
    native.define_singleton_method("parse_signature", function!(parse_signature, 1))?;
    native.define_singleton_method("zygote", function!(zygote::zygote, 2))?;
    native.define_singleton_method("backoff", function!(backoff, 1))?;
    native.define_singleton_method("final?", function!(is_final, 1))?;
    native.define_singleton_method("text", function!(text, 1))?;
    native.define_singleton_method("serve", function!(serve::serve, 5))?;
    native.const_set("VERSION", env!("CARGO_PKG_VERSION"))?;
    let clock = define::<serve::Clock>(ruby, native, "Clock")?;
    clock.define_method("call", method!(serve::Clock::call, 1))?;
    define::<table::Taker>(ruby, native, "Taker")?;
    let control = define::<control::Control>(ruby, native, "Control")?;
    control.define_singleton_method("new", function!(control::Control::new, 1))?;
    control.define_method("receive", method!(control::Control::receive, 0))?;
    control.define_method("loaded", method!(control::Control::loaded, 1))?;
    control.define_method("forked", method!(control::Control::forked, 1))?;
    control.define_method("unforked", method!(control::Control::unforked, 2))?;
    control.define_method("exited", method!(control::Control::exited, 3))?;
    let client = define::<client::Client>(ruby, native, "Client")?;
    client.define_singleton_method("new", function!(client::Client::new, 3))?;
    client.define_method("functions", method!(client::Client::functions, 0))?;
    client.define_method("call", method!(client::Client::call, 4))?;
    client.define_method("aggregate", method!(client::Client::aggregate, 4))?;
    client.define_method("scan", method!(client::Client::scan, 2))?;
    client.define_method("map", method!(client::Client::map, 4))?;
    client.define_method("close", method!(client::Client::close, 0))?;
    let scan = define::<client::Scan>(ruby, native, "Scan")?;
    scan.define_method("fetch", method!(client::Scan::fetch, 0))?;
    scan.define_method("close", method!(client::Scan::close, 0))?;
    let stream = define::<client::Stream>(ruby, native, "Stream")?;
    stream.define_method("add", method!(client::Stream::add, 1))?;
    stream.define_method("finish", method!(client::Stream::finish, 0))?;
    stream.define_method("fetch", method!(client::Stream::fetch, 0))?;
    stream.define_method("close", method!(client::Stream::close, 0))?;
    define_engine(ruby, native)
}

fn define_engine(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    use engine::{aggregate, api, append, arrow, database, forget, host, import, rows, scalar, table};
    native.define_singleton_method("load_duckdb", function!(api::load, 1))?;
    native.define_singleton_method("duckdb_version", function!(api::version, 0))?;
    native.define_singleton_method("start_host", function!(host::start, 1))?;
    native.define_singleton_method("host_statistics", function!(host::statistics, 0))?;
    native.define_singleton_method("forget_functions", function!(host::forget_ended, 1))?;
    native.define_singleton_method("forget_partitions", function!(table::forget_ended, 1))?;
    native.define_singleton_method("copied", function!(aggregate::copied, 0))?;
    native.define_singleton_method("forget_copies", function!(aggregate::forget_copies, 1))?;
    native.define_singleton_method("arrow_stream", function!(arrow::stream, 1))?;
    native.define_singleton_method("free_arrow_stream", function!(arrow::free_stream, 1))?;
    native.define_singleton_method("poll", function!(poll, 2))?;
    let database = define::<database::Database>(ruby, native, "Database")?;
    database.define_singleton_method("open", function!(database::Database::open, 2))?;
    database.define_method("connect", method!(database::Database::connect, 0))?;
    database.define_method("close", method!(database::Database::close, 0))?;
    let connection = define::<database::Connection>(ruby, native, "Connection")?;
    connection.define_method("query", method!(database::Connection::query, 2))?;
    connection.define_method("stream", method!(database::Connection::stream, 2))?;
    connection.define_method("prepare", method!(database::Connection::prepare, 1))?;
    connection.define_method("appender", method!(database::Connection::appender, 4))?;
    connection.define_method("query_appender", method!(database::Connection::query_appender, 2))?;
    connection.define_method("progress", method!(database::Connection::progress, 0))?;
    connection.define_method("close", method!(database::Connection::close, 0))?;
    connection.define_method("closed?", method!(database::Connection::is_closed, 0))?;
    connection.define_method("forget", method!(forget::forget, 2))?;
    connection.define_method("resolve", method!(database::Connection::resolve, 1))?;
    connection.define_method("register_scalar", method!(scalar::register, 2))?;
    connection.define_method("register_table", method!(table::register, 2))?;
    connection.define_method("register_aggregate", method!(aggregate::register, 2))?;
    let statement = define::<database::Statement>(ruby, native, "Statement")?;
    statement.define_method("query", method!(database::Statement::query, 1))?;
    statement.define_method("parameters", method!(database::Statement::parameters, 0))?;
    statement.define_method("columns", method!(database::Statement::columns, 0))?;
    statement.define_method("free", method!(database::Statement::free, 0))?;
    let rows = define::<rows::Rows>(ruby, native, "Rows")?;
    rows.define_method("free", method!(rows::Rows::free, 0))?;
    rows.define_method("names", method!(rows::Rows::names, 0))?;
    rows.define_method("types", method!(rows::Rows::types, 0))?;
    rows.define_method("changed", method!(rows::Rows::changed, 0))?;
    rows.define_method("fetch", method!(rows::Rows::fetch, 0))?;
    let stream = define::<import::ArrowStream>(ruby, native, "ArrowStream")?;
    stream.define_singleton_method("take", function!(import::ArrowStream::take, 1))?;
    stream.define_method("release", method!(import::ArrowStream::release, 0))?;
    let appender = define::<append::Appender>(ruby, native, "Appender")?;
    appender.define_method("row", method!(append::Appender::row, 1))?;
    appender.define_method("take", method!(append::Appender::take, 2))?;
    appender.define_method("begun?", method!(append::Appender::is_begun, 0))?;
    appender.define_method("close", method!(append::Appender::close, 0))?;
    appender.define_method("free", method!(append::Appender::free, 0))?;
    Ok(())
}
