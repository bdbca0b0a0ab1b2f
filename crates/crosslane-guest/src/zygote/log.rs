//! The log of a zygote and its lanes.

use std::io::{self, Write};

/// Writes a line to the log, if that is still there.
pub(crate) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "crosslane: {line}");
}
