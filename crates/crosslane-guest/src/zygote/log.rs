//! The log of a zygote and its lanes.

use std::io::{self, Write};

/// Writes a line to the log. A log that is gone is no error.
pub(crate) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "crosslane: {line}");
}
