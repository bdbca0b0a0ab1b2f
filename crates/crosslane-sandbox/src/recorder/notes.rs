//! The file of notes.

use crosslane::lock;
use serde_json::json;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

/// The most bytes of a library's notes.
const MOST: usize = 4 << 20;

/// Notes, each of which is there once.
#[derive(Debug)]
pub(super) struct Notes {
    file: File,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    lines: HashSet<String>,
    bytes: usize,
}

impl Notes {
    /// Notes at the end of a file that there is.
    pub(super) fn new(file: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().append(true).open(file)?, known: Mutex::default() })
    }

    /// Adds a note. `network` says that a sandbox with a network allows it.
    pub(super) fn add(&self, kind: &str, what: &str, network: bool) {
        let line = format!("{}\n", json!({ "kind": kind, "what": what, "network": network }));
        let mut known = lock(&self.known);
        if known.bytes > MOST || known.lines.contains(&line) {
            return;
        }
        known.bytes += line.len();
        let written = if known.bytes > MOST { "{\"kind\": \"full\"}\n" } else { &line };
        // Without a note, the draft allows too little, and not too much.
        let _ = (&self.file).write_all(written.as_bytes());
        known.lines.insert(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_note_is_kept_once_and_their_number_is_limited() {
        let path = std::env::temp_dir().join(format!("crosslane-notes-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let notes = Notes::new(&path).unwrap();
        for _ in 0..2 {
            notes.add("read", "/a\nb", false);
        }
        let line = "{\"kind\":\"read\",\"network\":false,\"what\":\"/a\\nb\"}\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), line);
        let long = "x".repeat(4000);
        for number in 0..2000 {
            notes.add("read", &format!("/{long}/{number}"), false);
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() <= MOST && text.ends_with("{\"kind\": \"full\"}\n"));
        fs::remove_file(path).unwrap();
    }
}
