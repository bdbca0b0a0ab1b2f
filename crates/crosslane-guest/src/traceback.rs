//! Tracebacks as all guests write them.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;

/// A traceback of places in users' files: `at FILE:LINE in NAME`, and the text of the line. Paths
/// below the working directory are relative to it.
pub fn traceback<'a>(places: impl IntoIterator<Item = (&'a str, usize, Option<&'a str>)>) -> String {
    let mut files: HashMap<&str, String> = HashMap::new();
    let mut text = String::new();
    let here = std::env::current_dir().map(|folder| format!("{}/", folder.display())).unwrap_or_default();
    for (file, line, name) in places {
        let _ = write!(text, "  at {}:{line}", file.strip_prefix(&here).unwrap_or(file));
        if let Some(name) = name {
            let _ = write!(text, " in {name}");
        }
        text.push('\n');
        let content = files.entry(file).or_insert_with(|| fs::read_to_string(file).unwrap_or_default());
        if let Some(line) = content.lines().nth(line.wrapping_sub(1)) {
            let _ = writeln!(text, "    {}", line.trim());
        }
    }
    text
}
