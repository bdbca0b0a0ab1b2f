//! The native part of the gem.
//!
//! | module | contents |
//! |---|---|
//! | [`worker`] | the zygote, and the loop that serves a lane |
//! | [`functions`] | functions that Ruby declared, and their calls |
//! | [`values`] | conversion between Ruby objects and SQL values |
//! | [`lane`] | waits, progress and exceptions of every lane |
//! | [`engine`] | the embedded database, and its calls of this program's blocks |
//! | [`client`] | the functions of a server |
//!
//! [`worker`] does not use [`engine`].

#![allow(missing_docs, reason = "the only thing to be seen is Ruby's entry point, which a macro makes")]

mod client;
mod engine;
mod errors;
mod functions;
mod lane;
mod signature;
#[cfg(test)]
mod tests;
mod values;
mod worker;

use crosslane::RetryAfter;
use crosslane_gvl::{Unwind, define};
use crosslane_process::Files;
use magnus::rb_sys::AsRawValue;
use magnus::{Error, Module, Object, RArray, RModule, RString, Ruby, Value, function, method};
use std::collections::{BTreeMap, HashMap};

/// A hash of the content of each file, from pairs of path and content.
fn hashes(files: RArray) -> Result<HashMap<String, String>, Error> {
    let mut read = Vec::new();
    for index in 0..files.len() {
        let (path, content): (RString, RString) = files.entry(index as isize)?;
        // SAFETY: the bytes are copied at once, and the Strings live in the Array.
        read.push(unsafe { (path.as_slice().to_vec(), content.as_slice().to_vec()) });
    }
    let files = Files::of(read.iter().map(|(path, content)| (&path[..], &content[..])));
    Ok(BTreeMap::from(files).into_iter().collect())
}

/// The pause in seconds before try `tries + 1`, after an exception that names a time in seconds for
/// it, or nil. Nil if there is no such try, because the time is too long.
fn pause(tries: u32, after: Option<f64>) -> Option<f64> {
    crosslane::call::pause(tries, after.and_then(RetryAfter::seconds)).map(|pause| pause.as_secs_f64())
}

/// Whether an exception ends the program.
fn is_final(error: Value) -> bool {
    Unwind::Raise(error.as_raw()).is_final()
}

/// Looks up the constants of the gem's Ruby code that the native part needs. Called when that code
/// is loaded.
fn prepare() -> Result<(), Error> {
    crosslane_gvl::prepare()?;
    // SAFETY: with the GVL, protected.
    crosslane_gvl::protect(|| unsafe { values::primitives::prepare() })?;
    Ok(())
}

#[magnus::init(name = "native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let native = ruby.define_module("Crosslane")?.define_module("Native")?;
    // SAFETY: protected, with the GVL; the module was just defined.
    crosslane_gvl::protect(|| unsafe { functions::block::define(native.as_raw()) })?;
    native.define_singleton_method("prepare", function!(prepare, 0))?;
    native.define_singleton_method("parse_signature", function!(signature::parse_signature, 1))?;
    native.define_singleton_method("own_sandbox", function!(signature::own_sandbox, 2))?;
    native.define_singleton_method("zygote", function!(worker::zygote::zygote, 2))?;
    native.define_singleton_method("note_variable", function!(worker::zygote::note_variable, 1))?;
    native.define_singleton_method("pause", function!(pause, 2))?;
    native.define_singleton_method("final?", function!(is_final, 1))?;
    native.define_singleton_method("hashes", function!(hashes, 1))?;
    native.define_singleton_method("serve", function!(worker::serve::serve, 5))?;
    native.const_set("VERSION", env!("CARGO_PKG_VERSION"))?;
    let clock = define::<lane::clock::Clock>(ruby, native, "Clock")?;
    clock.define_method("call", method!(lane::clock::Clock::call, 1))?;
    clock.define_method("rest", method!(lane::clock::Clock::rest, 1))?;
    define::<functions::table::Taker>(ruby, native, "Taker")?;
    let control = define::<worker::control::Control>(ruby, native, "Control")?;
    control.define_singleton_method("new", function!(worker::control::Control::new, 1))?;
    control.define_method("receive", method!(worker::control::Control::receive, 0))?;
    control.define_method("loaded", method!(worker::control::Control::loaded, 1))?;
    control.define_method("forked", method!(worker::control::Control::forked, 1))?;
    control.define_method("unforked", method!(worker::control::Control::unforked, 2))?;
    control.define_method("exited", method!(worker::control::Control::exited, 3))?;
    let client = define::<client::Client>(ruby, native, "Client")?;
    client.define_singleton_method("new", function!(client::Client::new, 3))?;
    client.define_method("outdated?", method!(client::Client::is_outdated, 0))?;
    client.define_method("renewed", method!(client::Client::renewed, 0))?;
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
    use engine::connection::{connection, database, forget, statement};
    use engine::data::{append, export, import, rows};
    use engine::functions::{aggregate, host, scalar, table};
    use engine::library::api;
    native.define_singleton_method("load_duckdb", function!(api::load, 1))?;
    native.define_singleton_method("duckdb_version", function!(api::version, 0))?;
    native.define_singleton_method("start_host", function!(host::start, 1))?;
    native.define_singleton_method("host_statistics", function!(host::statistics, 0))?;
    native.define_singleton_method("forget_functions", function!(host::forget_ended, 1))?;
    native.define_singleton_method("forget_partitions", function!(table::forget_ended, 1))?;
    native.define_singleton_method("copied", function!(aggregate::copied, 0))?;
    native.define_singleton_method("forget_copies", function!(aggregate::forget_copies, 1))?;
    native.define_singleton_method("arrow_stream", function!(export::stream, 1))?;
    native.define_singleton_method("free_arrow_stream", function!(export::free_stream, 1))?;
    native.define_singleton_method("poll", function!(lane::poll::poll, 2))?;
    let class = define::<database::Database>(ruby, native, "Database")?;
    class.define_singleton_method("open", function!(database::Database::open, 2))?;
    class.define_method("connect", method!(database::Database::connect, 0))?;
    class.define_method("close", method!(database::Database::close, 0))?;
    let class = define::<connection::Connection>(ruby, native, "Connection")?;
    class.define_method("query", method!(connection::Connection::query, 2))?;
    class.define_method("stream", method!(connection::Connection::stream, 2))?;
    class.define_method("prepare", method!(connection::Connection::prepare, 1))?;
    class.define_method("appender", method!(connection::Connection::appender, 4))?;
    class.define_method("query_appender", method!(connection::Connection::query_appender, 2))?;
    class.define_method("progress", method!(connection::Connection::progress, 0))?;
    class.define_method("close", method!(connection::Connection::close, 0))?;
    class.define_method("closed?", method!(connection::Connection::is_closed, 0))?;
    class.define_method("forget", method!(forget::forget, 2))?;
    class.define_method("resolve", method!(connection::Connection::resolve, 1))?;
    class.define_method("register_scalar", method!(scalar::register, 2))?;
    class.define_method("register_table", method!(table::register, 2))?;
    class.define_method("register_aggregate", method!(aggregate::register, 2))?;
    let class = define::<statement::Statement>(ruby, native, "Statement")?;
    class.define_method("query", method!(statement::Statement::query, 1))?;
    class.define_method("parameters", method!(statement::Statement::parameters, 0))?;
    class.define_method("columns", method!(statement::Statement::columns, 0))?;
    class.define_method("free", method!(statement::Statement::free, 0))?;
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
