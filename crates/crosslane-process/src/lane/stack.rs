//! The stack of a guest that makes no progress, as the guest writes it.
//!
//! A guest says in its greeting whether it can write its stack ([`crate::guest::tells_stack`]).
//! Such a guest writes its stack to its stderr when it gets SIGQUIT, and goes on. Other guests get
//! no signal.
//!
//! Python writes the stack by `faulthandler`, which needs no lock. Ruby writes it by a handler,
//! which runs when the interpreter gets to it. The lines come through the log, like all output of a
//! guest. The stack ends when no more lines come. Other output of the guest at that time is among
//! the lines.

use crate::identity::Process;
use crate::warden::{LaneRecord, log};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the engine waits for the first line, and for each further line.
const PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(30);
const GLANCE: Duration = Duration::from_millis(5);
/// The most lines that are shown. They are the innermost ones.
const MOST: usize = 20;
/// The text before the frames of a thread.
const HEAD: &str = "(most recent call first):";
/// The outermost frame of a guest is in one of these files. The paths begin at the guest's package.
const OUTERMOST: [&str; 2] = ["/_worker/zygote.py", "/zygote.rb"];

/// The lines of a guest's stack in the form of errors, the innermost last. Empty if the guest
/// writes none.
pub(crate) fn of(process: &Process, record: &LaneRecord) -> String {
    if !process.tells_stack {
        return String::new();
    }
    log::say(&format!("worker {} makes no progress; its stack:", process.pid));
    record.begin_stack();
    // A process that has ended meanwhile has no stack.
    let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::QUIT);
    let begun = Instant::now();
    let (mut kept, mut since) = (0, begun);
    // A guest may print other text all the time.
    while begun.elapsed() < 2 * PATIENCE {
        sleep(GLANCE);
        let bytes = record.stack_bytes();
        if bytes != kept {
            (kept, since) = (bytes, Instant::now());
        }
        if since.elapsed() > if kept == 0 { PATIENCE } else { PAUSE } {
            break;
        }
    }
    frames(&record.end_stack())
}

/// Parses a frame as faulthandler writes it: its file, line and name.
fn frame(line: &str) -> Option<(&str, u32, &str)> {
    let (file, rest) = line.trim().strip_prefix("File \"")?.split_once("\", line ")?;
    let (number, name) = rest.split_once(" in ")?;
    Some((file, number.parse().ok()?, name))
}

/// The frames of the first thread in a text, without the guest's own frames.
fn frames(text: &str) -> String {
    let Some(first) = text.split(HEAD).nth(1) else { return String::new() };
    let all: Vec<_> = first.lines().filter_map(frame).collect();
    let mut outermost_first = all.iter().rev();
    let ours =
        outermost_first.find_map(|(file, ..)| OUTERMOST.iter().find_map(|name| file.strip_suffix(name)));
    let is_ours = |file: &str| ours.is_some_and(|folder| Path::new(file).starts_with(folder));
    let theirs = all.iter().filter(|(file, ..)| !is_ours(file) && !file.starts_with("<frozen "));
    let mut shown: Vec<_> =
        theirs.take(MOST).map(|(file, line, name)| format!("  at {file}:{line} in {name}")).collect();
    shown.reverse();
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_shown_as_in_errors_and_the_guests_own_are_not() {
        let text = "  File \"/printed/before.py\", line 1 in it\nStack (most recent call first):\n  \
                    File \"/shop/a b/f.py\", line 12 in inner\n  File \"/logged.py\", line 3, in traceback\n  \
                    File \"/shop/crosslane/_jobs.py\", line 20 in outer\n  File \"/lib/crosslane/_declare/classes.py\", line 9 in __call__\n  \
                    File \"/lib/crosslane/_worker/zygote.py\", line 3 in main\n  File \"<frozen runpy>\", line 88 in _run_code\n\
                    Stack of another (most recent call first):\n  File \"/shop/g.py\", line 1 in other\n";
        assert_eq!(
            frames(text),
            "  at /shop/crosslane/_jobs.py:20 in outer\n  at /shop/a b/f.py:12 in inner"
        );
        assert_eq!(frames("nothing of the kind\n"), "");
    }

    /// A guest writes the innermost frame first.
    #[test]
    fn a_deep_stack_shows_its_innermost_frames() {
        let deep: String = (0..1000).map(|n| format!("  File \"/f.py\", line {n} in f\n")).collect();
        let shown = frames(&format!("Stack (most recent call first):\n{deep}"));
        assert_eq!(shown.lines().count(), MOST);
        assert!(shown.ends_with("  at /f.py:0 in f"), "{shown}");
    }
}
