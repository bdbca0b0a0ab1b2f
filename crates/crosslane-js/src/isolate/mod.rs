//! An isolate: one heap of JavaScript objects. One thread at a time uses it. This folder wraps the
//! C interface of `shim/shim.h`.
//!
//! An isolate calls methods of the prelude (`src/js`), which holds the library's functions. Any
//! thread that has the isolate's [`Handle`] can end a call at any time. Then the call fails with
//! [`Thrown::Ended`], and the next call can use the isolate.
//!
//! | file | content | thread |
//! |---|---|---|
//! | `engine` | starts V8; the host's functions; how a call fails | any |
//! | `heap` | [`Isolate`]: boots, calls methods, frees; the time zone | the isolate's |
//! | `handle` | [`Handle`]: ends calls | any |
//! | `builder` | loads a library and makes its snapshot | the loading process's |
//! | `snapshot` | [`Snapshot`]: the bytes that isolates boot from | any |
//! | `prelude` | the files of `src/js` as one text, with the rules of `value_rules` | any |
//! | `value_rules` | limits and messages that the prelude shares with the guests in Rust | any |
//! | `values` | arguments and results of calls | the isolate's |
//! | `callbacks` | functions that V8 calls | the isolate's |
//! | `url` | parses URLs for the prelude | the isolate's |
//! | `ffi` | the declarations of the shim | any |

mod builder;
mod callbacks;
mod engine;
pub(crate) mod ffi;
mod handle;
mod heap;
mod prelude;
mod snapshot;
mod url;
pub(crate) mod value_rules;
mod values;

pub(crate) use builder::{builder, load_within, warmed};
#[cfg(node)]
pub(crate) use engine::built_for;
pub use engine::{Host, Reason, STACK, Thrown, version};
pub(crate) use engine::{LARGEST_OBJECTS, check, initialize};
pub use handle::Handle;
pub use heap::Isolate;
pub(crate) use heap::{Boot, know_time_zone};
pub(crate) use prelude::SMALL_PRELUDE;
pub use snapshot::Snapshot;
pub(crate) use snapshot::SnapshotUse;
pub(crate) use values::{Argument, Part, Reply, Value};
