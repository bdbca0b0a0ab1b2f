//! V8 contexts for Ruby, on the isolates of `crosslane_js::embed`.
//!
//! | module | contents |
//! |---|---|
//! | [`context`] | contexts and snapshots; V8 works without the GVL, and does not access Ruby
//! objects meanwhile |
//! | [`place`] | where a context runs: in this program, or in a process of its own |
//! | [`codec`] | the encoding of Ruby objects for V8 |
//! | [`watch`] | the thread that ends late calls, and calls whose Ruby thread the VM needs |
//! | [`stack`] | the remaining size of the stack |

#![allow(missing_docs, reason = "the only thing to be seen is Ruby's entry point, which a macro makes")]

mod codec;
mod context;
mod place;
mod stack;
#[cfg(test)]
mod tests;
mod watch;

use crosslane_gvl::define;
use magnus::{Error, ExceptionClass, Module, Object, Ruby, TryConvert, function, method};

/// A class of `Crosslane::V8`.
fn class_of_v8<T: TryConvert>(name: &str) -> Result<T, Error> {
    crosslane_gvl::constant(&format!("Crosslane::V8::{name}"))
}

/// An exception of `Crosslane::V8`.
fn error(class: &str, message: &str) -> Error {
    class_of_v8(class)
        .map_or_else(|error| error, |class: ExceptionClass| Error::new(class, message.to_owned()))
}

#[magnus::init(name = "v8_native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    crosslane_gvl::prepare()?;
    let module = ruby.define_module("Crosslane")?.define_module("V8")?.define_module("Native")?;
    module.define_singleton_method("version", function!(crosslane_js::isolate::version, 0))?;
    let snapshot = define::<context::Snapshot>(ruby, module, "Snapshot")?;
    snapshot.define_singleton_method("build", function!(context::Snapshot::build, 4))?;
    snapshot.define_singleton_method("load", function!(context::Snapshot::load, 2))?;
    snapshot.define_method("warm_up", method!(context::Snapshot::warm_up, 3))?;
    snapshot.define_method("dump", method!(context::Snapshot::dump, 0))?;
    snapshot.define_method("size", method!(context::Snapshot::size, 0))?;
    let context = define::<context::Context>(ruby, module, "Context")?;
    context.define_singleton_method("boot", function!(context::Context::boot, 6))?;
    context.define_method("eval", method!(context::Context::eval, 3))?;
    context.define_method("invoke", method!(context::Context::invoke, 3))?;
    context.define_method("attach", method!(context::Context::attach, 2))?;
    context.define_method("stop", method!(context::Context::stop, 0))?;
    context.define_method("collect", method!(context::Context::collect, 0))?;
    context.define_method("heap_stats", method!(context::Context::heap_stats, 0))?;
    context.define_method("memory", method!(context::Context::memory, 0))?;
    context.define_method("alive?", method!(context::Context::is_alive, 0))?;
    context.define_method("dispose", method!(context::Context::dispose, 0))?;
    Ok(())
}
