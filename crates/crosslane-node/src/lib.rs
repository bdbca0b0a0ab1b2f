//! The library that runs the JavaScript host in place of Node ([`start`]).
//!
//! It is crosslane-js, compiled for Node's V8. Cargo compiles a package once for all that use it, and Ruby's contexts
//! use crosslane-js with Debian's V8. So these are its sources, in another package.

#[path = "../../crosslane-js/src/embed/mod.rs"]
pub mod embed;
#[path = "../../crosslane-js/src/guest/mod.rs"]
pub mod guest;
#[path = "../../crosslane-js/src/host/mod.rs"]
pub mod host;
#[path = "../../crosslane-js/src/isolate/mod.rs"]
pub mod isolate;
#[path = "../../crosslane-js/src/library/mod.rs"]
pub mod library;
#[path = "../../crosslane-js/src/start.rs"]
pub mod start;

pub use host::attention;

crate::main_in_node!(host::main);
