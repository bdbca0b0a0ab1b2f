//! Loads a library in a child process. The host forks the child before V8 runs in the host.
//!
//! So garbage and crashes of the load stay in the child. The child writes two snapshots to two
//! memory files: one from before the warm-up, and one from after it. If the warm-up kills the
//! child, or does not end, the host uses the first snapshot. The child reports each step through a pipe, as a line
//! of JSON.

use crate::isolate::Snapshot;
use crate::isolate::{Host, Reason};
use crate::library::{self, Library, Stage};
use crosslane::Failure;
use crosslane_process::Files;
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

/// How many seconds of processor time the warm-up may take. It ends by itself after one, unless a builtin does
/// not end.
const LONGEST_WARM_UP: libc::time_t = 3;

/// A line that the child reports.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// The file has run.
    Loaded,
    /// The first memory file has a snapshot of a library with these declarations.
    Cold {
        declared: String,
        files: Files,
    },
    /// The second memory file has a snapshot that is warmed up.
    Warm,
    Failed {
        failure: Failure,
    },
}

/// Loads a file within `time`.
///
/// # Errors
/// The errors of [`Library::load`]. Also if V8 ended the child.
pub(crate) fn load(path: &Path, time: Duration) -> Result<Library, Failure> {
    let system = |error: io::Error| failure(format!("cannot load a file: {error}"));
    let (blobs, lines, killed) = in_child(path, time).map_err(system)?;
    let mut declared = None;
    let (mut loaded, mut warm) = (false, false);
    for line in lines {
        match line {
            Line::Loaded => loaded = true,
            Line::Cold { declared: found, files } => declared = Some((found, files)),
            Line::Warm => warm = true,
            Line::Failed { failure } => return Err(failure),
        }
    }
    let Some((declared, files)) = declared else {
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
    // SAFETY: V8 made the bytes in the child, and the child has ended.
    Library::new(unsafe { Snapshot::from_bytes(bytes) }, &declared, files, time)
}

fn failure(message: String) -> Failure {
    Failure { class: "Error".into(), message, ..Failure::default() }
}

/// Returns the snapshots, the lines of the child, and whether a SIGKILL ended it.
fn in_child(path: &Path, time: Duration) -> io::Result<([OwnedFd; 2], Vec<Line>, bool)> {
    let blob = || rustix::fs::memfd_create("crosslane-snapshot", MemfdFlags::CLOEXEC);
    let blobs = [blob()?, blob()?];
    let (reading, writing) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: this process has started no other thread, so the child has a consistent state.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reading);
            let code = i32::from(child(path, time, &blobs, File::from(writing)).is_err());
            // SAFETY: the child needs no cleanup except the end of the process.
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

/// Does the work of the child.
fn child(path: &Path, time: Duration, blobs: &[OwnedFd; 2], pipe: File) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // Ctrl-C in the terminal ends the child. The host itself reads Ctrl-C from a descriptor.
    // SAFETY: a signal set is plain memory that sigemptyset initialises; the calls touch nothing
    // else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    // Only `check` may write to stdout, but V8 also writes to stdout before it gives up.
    rustix::stdio::dup2_stdout(io::stderr())?;
    let pipe = Arc::new(pipe);
    let report = |line: &Line| -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        (&*pipe).write_all(&text)
    };
    let mut reported = Ok(());
    let loaded = library::load(path, time, Child { pipe: Arc::clone(&pipe) }, |stage| {
        reported = match stage {
            Stage::Loaded => report(&Line::Loaded),
            Stage::Cold(snapshot, declared, files) => put(&blobs[0], snapshot)
                .and_then(|()| report(&Line::Cold { declared: declared.to_owned(), files: files.clone() }))
                .and_then(|()| end_after(LONGEST_WARM_UP)),
        };
    });
    reported?;
    match loaded {
        Ok((snapshot, _)) => {
            put(&blobs[1], &snapshot)?;
            report(&Line::Warm)
        }
        Err(failure) => report(&Line::Failed { failure: failure.bounded() }),
    }
}

/// Lets the kernel end this process when it has used so many seconds of processor time. A builtin that comes to
/// no check of V8 hears nothing else.
fn end_after(seconds: libc::time_t) -> io::Result<()> {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer =
        libc::itimerval { it_interval: never, it_value: libc::timeval { tv_sec: seconds, tv_usec: 0 } };
    // SAFETY: the timer is read only. Its signal ends the process, which has no handler for it.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn put(blob: &OwnedFd, snapshot: &Snapshot) -> io::Result<()> {
    File::from(blob.try_clone()?).write_all(snapshot.bytes())
}

/// Maps a memory file until the process ends.
fn map(blob: OwnedFd) -> io::Result<&'static [u8]> {
    let length = rustix::fs::fstat(&blob)?.st_size as usize;
    // SAFETY: this is a new mapping of a file that only this process still has. No code unmaps it
    // or writes to it.
    unsafe {
        let base =
            rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &blob, 0)?;
        Ok(std::slice::from_raw_parts(base.cast(), length))
    }
}

/// The host of the isolate in the child.
struct Child {
    pipe: Arc<File>,
}

impl Host for Child {
    fn print(&self, _: bool, text: &str) {
        // If no process reads the log, only its lines are lost.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    fn fatal(&self, _: Reason, what: &str) {
        let message = format!("the file made V8 give up while it was loaded: {what}");
        let failure = Failure { class: "RangeError".into(), message, ..Failure::default() };
        if let Ok(text) = serde_json::to_string(&Line::Failed { failure }) {
            let _ = writeln!(&*self.pipe, "{text}");
        }
    }
}
