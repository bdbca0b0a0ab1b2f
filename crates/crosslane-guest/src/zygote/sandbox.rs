//! The sandbox in which a library runs.

use super::lanes::prefer_to_be_killed;
use super::threads::other_threads;
use crosslane::{Failure, Sandbox};
use crosslane_process::{Source, ask_for_connections, environment};
use crosslane_sandbox::{LaneFilter, Runtime};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Restricts this process before it loads a library. `runtime` is what the language needs. The engine
/// makes its connections, over this socket, if the sandbox lists hosts. Returns what lanes enter
/// ([`crosslane_sandbox`] says when).
///
/// # Errors
/// Why the library cannot be restricted, and so must not be loaded.
pub fn enter_sandbox(
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
    crosslane_process::guest::is_sandboxed();
    Ok(lanes)
}
