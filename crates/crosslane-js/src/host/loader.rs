//! Where a library is loaded: a child process, forked before V8 has run in this one.
//!
//! What the file does while it is loaded and warmed up ends with the child: its garbage, and its crashes. If
//! warming up kills the child, the snapshot from before is used. The child gives the snapshots in two memory
//! files, and says in a pipe, a line of JSON each, what it has put there.

use crate::isolate::Snapshot;
use crate::isolate::{Host, Reason};
use crate::library::{self, Library, Stage};
use crosslane::Failure;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// The file has run.
    Loaded,
    /// The first memory file has a snapshot, of a library that declares this.
    Cold {
        declared: String,
        text: String,
    },
    /// The second has a better one.
    Warm,
    Failed {
        failure: Failure,
    },
}

/// Loads a file within `time`.
///
/// # Errors
/// As [`Library::load`]; and if V8 ended the child.
pub(crate) fn load(path: &Path, time: Duration) -> Result<Library, Failure> {
    let system = |error: io::Error| failure(format!("cannot load a file: {error}"));
    let (blobs, lines, killed) = in_child(path, time).map_err(system)?;
    let mut declared = None;
    let (mut loaded, mut warm) = (false, false);
    for line in lines {
        match line {
            Line::Loaded => loaded = true,
            Line::Cold { declared: said, text } => declared = Some((said, text)),
            Line::Warm => warm = true,
            Line::Failed { failure } => return Err(failure),
        }
    }
    let Some((declared, text)) = declared else {
        return Err(failure(if killed {
            "the process that loaded the file was killed (SIGKILL), by someone or for lack of memory".into()
        } else if loaded {
            "the file was loaded, but something that it made cannot be put into a snapshot, such as an iterator of \
             Intl's segments: make it when a function needs it first. The log has V8's own error"
                .into()
        } else {
            "V8 gave up while the file was loaded; the log has its own error".into()
        }));
    };
    let [cold_blob, warm_blob] = blobs;
    let bytes = map(if warm { warm_blob } else { cold_blob }).map_err(system)?;
    // SAFETY: the bytes are what V8 made in the child, which has ended.
    Library::new(unsafe { Snapshot::from_bytes(bytes) }, &declared, text, time)
}

fn failure(message: String) -> Failure {
    Failure { class: "Error".into(), message, ..Failure::default() }
}

/// The snapshots, what the child said, and whether a SIGKILL ended it.
fn in_child(path: &Path, time: Duration) -> io::Result<([OwnedFd; 2], Vec<Line>, bool)> {
    let blob = || rustix::fs::memfd_create("crosslane-snapshot", MemfdFlags::CLOEXEC);
    let blobs = [blob()?, blob()?];
    let (reading, writing) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: no other thread has been started in this process, so the child finds everything as it was.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reading);
            let code = i32::from(child(path, time, &blobs, File::from(writing)).is_err());
            // SAFETY: the child has nothing to clean up that its end does not.
            unsafe { libc::_exit(code) }
        }
        pid => {
            drop(writing);
            let lines = BufReader::new(File::from(reading)).lines();
            let lines = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok()).collect();
            let ended =
                Pid::from_raw(pid).map(|pid| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
            match ended.transpose()?.flatten().and_then(|(_, status)| status.terminating_signal()) {
                Some(libc::SIGINT) => Err(io::Error::other("interrupted")),
                signal => Ok((blobs, lines, signal == Some(libc::SIGKILL))),
            }
        }
    }
}

/// What the child does.
fn child(path: &Path, time: Duration, blobs: &[OwnedFd; 2], pipe: File) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The terminal's Ctrl-C, which the host takes as a message, ends a load.
    // SAFETY: a signal set is plain memory that sigemptyset initialises; the calls touch nothing else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    // Stdout belongs to `check`; V8 writes there before it gives up.
    rustix::stdio::dup2_stdout(io::stderr())?;
    let pipe = Arc::new(pipe);
    let say = |line: &Line| -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&*pipe).write_all(&text)
    };
    let mut told = Ok(());
    let loaded = library::load(path, time, Child { pipe: Arc::clone(&pipe) }, |stage| {
        told = match stage {
            Stage::Loaded => say(&Line::Loaded),
            Stage::Cold(snapshot, declared, text) => put(&blobs[0], snapshot)
                .and_then(|()| say(&Line::Cold { declared: declared.to_owned(), text: text.to_owned() })),
        };
    });
    told?;
    match loaded {
        Ok((snapshot, _)) => {
            put(&blobs[1], &snapshot)?;
            say(&Line::Warm)
        }
        Err(failure) => say(&Line::Failed { failure: failure.bounded() }),
    }
}

fn put(blob: &OwnedFd, snapshot: &Snapshot) -> io::Result<()> {
    File::from(blob.try_clone()?).write_all(snapshot.bytes())
}

/// The content of a memory file, for the rest of the process's life.
fn map(blob: OwnedFd) -> io::Result<&'static [u8]> {
    let length = rustix::fs::fstat(&blob)?.st_size as usize;
    // SAFETY: a new mapping of a file that only this process still has, and nobody unmaps or writes.
    unsafe {
        let base =
            rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &blob, 0)?;
        Ok(std::slice::from_raw_parts(base.cast(), length))
    }
}

/// The child as V8's host.
struct Child {
    pipe: Arc<File>,
}

impl Host for Child {
    fn print(&mut self, _: bool, text: &str) {
        // A log that nobody reads loses lines, and nothing else.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn fatal(&mut self, _: Reason, what: &str) {
        let message = format!("the file made V8 give up while it was loaded: {what}");
        let failure = Failure { class: "RangeError".into(), message, ..Failure::default() };
        if let Ok(text) = serde_json::to_string(&Line::Failed { failure }) {
            let _ = writeln!(&*self.pipe, "{text}");
        }
    }
}
