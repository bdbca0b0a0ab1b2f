//! An isolate: one heap of JavaScript objects, used by one thread at a time.
//!
//! An isolate calls methods of the prelude (`src/js`), which holds the library's functions. Whoever
//! has its [`Handle`] can end what it does at any time: the call then fails as [`Thrown::Ended`], and the
//! isolate can be used again.

mod builder;
mod callbacks;
mod engine;
pub(crate) mod ffi;
mod handle;
mod heap;
mod prelude;
pub(crate) mod rules;
mod snapshot;
mod url;
mod values;

pub(crate) use builder::{Builder, warmed};
pub use engine::{Host, Reason, STACK, Thrown, version};
pub(crate) use engine::{LARGEST_OBJECTS, booted, check, initialize};
pub use handle::Handle;
pub use heap::Isolate;
pub(crate) use prelude::SMALL_PRELUDE;
pub use snapshot::Snapshot;
pub(crate) use snapshot::Tenant;
pub(crate) use values::{Argument, Part, Reply, Value};
