//! A library: a JavaScript file and the modules that it imports. The loading process runs this code
//! once, makes a snapshot, and ends. The lanes' isolates boot from the snapshot.
//!
//! | file | content |
//! |---|---|
//! | `load` | loads a file and its imports, and reads the declarations of its functions |
//! | `loader` | reads the modules that a file imports |
//! | `packages` | finds packages in `node_modules` |
//! | `source` | makes an ES module of a JSON, CommonJS or TypeScript file |
//! | `typescript` | removes types from TypeScript |
//! | `unreadable` | the error for a file that is not a module |

mod load;
mod loader;
mod packages;
mod source;
#[cfg(feature = "typescript")]
mod typescript;
mod unreadable;

pub use load::{Function, Library, Stage, from_source, load};
pub(crate) use loader::import_folders;
