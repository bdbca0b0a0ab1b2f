//! The sandbox in which a library runs.

use super::lanes::prefer_to_be_killed;
use super::threads::other_threads;
use crosslane::{Failure, Sandbox};
use crosslane_process::{Source, ask_for_connections, environment};
use crosslane_sandbox::{LaneFilter, Runtime};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Restricts this process before it loads a library. `reads` is what the language needs in a sandbox.
/// The engine makes the process's connections, over this socket, if the sandbox lists hosts. Returns what
/// lanes enter ([`crosslane_sandbox`] says when), if the library has a sandbox. Without one, a file can
/// do what its user can, but it cannot reach the engine's process.
///
/// # Errors
/// Why the library cannot be restricted, and so must not be loaded.
pub fn restrict(
    sandbox: Option<&Sandbox>,
    source: &Source,
    reads: impl FnOnce() -> Result<Runtime, Failure>,
    connections: Option<OwnedFd>,
) -> Result<Option<LaneFilter>, Failure> {
    match (sandbox, source) {
        (Some(sandbox), _) => enter(sandbox, source, reads()?, connections).map(Some),
        (None, Source::File { .. }) => {
            // Before Linux 6.12 this is not possible, as `crosslane doctor` says.
            let _ = crosslane_sandbox::keep_to_own_processes();
            Ok(None)
        }
        // These functions belong to a program that could run them itself.
        (None, _) => Ok(None),
    }
}

fn enter(
    sandbox: &Sandbox,
    source: &Source,
    mut runtime: Runtime,
    connections: Option<OwnedFd>,
) -> Result<LaneFilter, Failure> {
    let refused = |why: String| {
        let message = format!("the sandbox of {} cannot be entered: {why}", source.name());
        Failure { class: "SandboxError".into(), message, ..Failure::default() }
    };
    let threads = other_threads();
    if !threads.is_empty() {
        let names = threads.join(", ");
        return Err(refused(format!(
            "the interpreter has threads before it loads the file, which a sandbox would not reach: {names}"
        )));
    }
    // Lanes cannot do this themselves.
    prefer_to_be_killed();
    if let Source::File { path } = source {
        runtime.packages.push(path.clone());
        runtime.modules.extend(path.parent().map(Path::to_owned));
    }
    runtime.outside.push(environment::cache());
    let hand_over = |listener| ask_for_connections(connections, listener);
    let lanes = crosslane_sandbox::enter(sandbox, &runtime, hand_over).map_err(refused)?;
    crosslane_process::guest::is_sandboxed(sandbox.strict);
    Ok(lanes)
}
