//! Libraries whose functions run in a process or on a server.

use crosslane::{Library, catalog};
use crosslane_remote::AnyZygote;

pub(crate) type AnyLibrary = Library<AnyZygote>;
pub(crate) type Entry = catalog::Entry<AnyZygote>;
