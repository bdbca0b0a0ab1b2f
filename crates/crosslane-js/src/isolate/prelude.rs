//! The JavaScript side of the guest, as one text.

use super::value_rules;
use std::sync::LazyLock;

/// The methods that this V8 leaves out of a snapshot, and what must not be there.
#[cfg(not(node))]
macro_rules! polyfills {
    () => {
        include_str!("../js/language/es2022.js")
    };
}
#[cfg(node)]
macro_rules! polyfills {
    () => {
        concat!(include_str!("../js/language/es2026.js"), include_str!("../js/language/buffers.js"))
    };
}

/// The JavaScript side of the guest.
pub(crate) static PRELUDE: LazyLock<String> =
    LazyLock::new(|| prelude("print, isError, urlParts, utf8Size, writeUtf8, textOfBytes, noteTypes", FULL));

const FULL: &str = concat!(
    include_str!("../js/language/primordials.js"),
    include_str!("../js/language/values.js"),
    include_str!("../js/language/boot.js"),
    polyfills!(),
    include_str!("../js/language/json.js"),
    include_str!("../js/loops/columns.js"),
    include_str!("../js/web/intl.js"),
    include_str!("../js/web/encoding.js"),
    include_str!("../js/web/url.js"),
    include_str!("../js/web/wasm.js"),
    include_str!("../js/web/timers.js"),
    include_str!("../js/loops/stateful.js"),
    include_str!("../js/loops/compile.js"),
    include_str!("../js/loops/run.js"),
    include_str!("../js/web/clone.js"),
    include_str!("../js/loops/serialize.js"),
    include_str!("../js/loops/sink.js"),
    include_str!("../js/loops/scan.js"),
    include_str!("../js/loops/aggregate.js"),
    include_str!("../js/web/console.js"),
    include_str!("../js/library/declare.js"),
    include_str!("../js/loops/warm_up.js"),
    include_str!("../js/library/describe.js"),
    include_str!("../js/library/guest.js"),
    "return methods;"
);

/// The small part that the contexts of a program need ([`crate::embed`]).
pub(crate) static SMALL_PRELUDE: LazyLock<String> = LazyLock::new(|| prelude("print, isError", SMALL));

const SMALL: &str = concat!(
    include_str!("../js/language/primordials.js"),
    include_str!("../js/language/values.js"),
    include_str!("../js/language/boot.js"),
    polyfills!(),
    include_str!("../js/web/console.js"),
    include_str!("../js/library/describe.js"),
    "return { describe, beforeSnapshot, afterBoot };"
);

/// Makes the source of a function with these parameters and this body. The source also defines the
/// rules of [`value_rules`].
fn prelude(parameters: &str, body: &str) -> String {
    let rules = value_rules::source();
    format!("(function ({parameters}) {{ 'use strict';\n{rules}const hasWasm = {};\n{body} }})", has_wasm())
}

/// Returns whether functions have WebAssembly. The engine's setting `wasm` sets the variable. With pages of
/// 64 KiB, `CountedPages` in `shim/limits.h` cannot recognize a memory of WebAssembly.
fn has_wasm() -> bool {
    const WASM_PAGE: usize = 64 << 10;
    rustix::param::page_size() < WASM_PAGE
        && std::env::var_os("CROSSLANE_JS_WASM").is_none_or(|value| value != "off")
}
