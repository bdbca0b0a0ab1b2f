//! The sandbox in which a library runs, and those of its functions.

use super::threads::other_threads;
use crosslane::{Failure, Sandbox};
use crosslane_process::{Source, ask_for_connections, environment, limits};
use crosslane_sandbox::{LaneFilter, Narrower, Runtime};
use serde::Deserialize;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What the lanes of a library enter before they run anything of it.
#[derive(Debug, Default)]
pub(crate) struct Restrictions {
    /// That of the library, if it is in a sandbox.
    pub(crate) library: Option<LaneFilter>,
    /// Those of functions with a sandbox of their own, by their indices, and whether they are strict.
    pub(crate) own: HashMap<u32, (Narrower, bool)>,
}

impl Restrictions {
    /// Restricts this process, which is a lane, for good. The lane calls one function, if that has own
    /// lanes.
    pub(crate) fn enter(&self, function: Option<u32>) -> io::Result<()> {
        match (function.and_then(|index| self.own.get(&index)), &self.library) {
            (Some((own, is_strict)), _) => {
                own.enter()?;
                crosslane_process::guest::is_sandboxed(*is_strict);
            }
            (None, Some(library)) => library.enter()?,
            (None, None) => return Ok(()),
        }
        crosslane_process::guest::is_sandboxed_fork();
        Ok(())
    }
}

/// What is read of the description of a function.
#[derive(Deserialize)]
struct Asks {
    signature: String,
    #[serde(default)]
    file: String,
    #[serde(default)]
    line: u32,
    #[serde(default)]
    own_sandbox: Option<Sandbox>,
}

/// Prepares the sandboxes of those functions of a loaded library that ask for one of their own.
///
/// # Errors
/// Why a function cannot have it, so that the library must not be used.
pub(crate) fn own_sandboxes(
    functions: &serde_json::Value,
    library: Option<&Sandbox>,
    source: &Source,
    reads: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<HashMap<u32, (Narrower, bool)>, Failure> {
    let failure = |message| Failure { class: "SandboxError".into(), message, ..Failure::default() };
    let functions: Vec<Asks> =
        Deserialize::deserialize(functions).map_err(|error| failure(error.to_string()))?;
    let asking = functions.iter().zip(0..).filter_map(|(function, index)| {
        let own = function.own_sandbox.as_ref()?;
        Some((index, function, own))
    });
    let asking: Vec<_> = asking.collect();
    if asking.is_empty() {
        return Ok(HashMap::new());
    }
    let runtime = of_source(reads()?, source);
    let prepare = |(index, Asks { signature, file, line, .. }, own): (u32, &Asks, &Sandbox)| {
        let narrower = Narrower::new(own, library, &runtime);
        narrower
            .map(|narrower| (index, (narrower, own.strict)))
            .map_err(|why| failure(format!("{file}:{line}: the sandbox of {signature}: {why}")))
    };
    asking.into_iter().map(prepare).collect()
}

/// What a language needs for a library of this source.
fn of_source(mut runtime: Runtime, source: &Source) -> Runtime {
    if let Source::File { path } = source {
        runtime.packages.push(path.clone());
        runtime.modules.extend(path.parent().map(Path::to_owned));
    }
    runtime.outside.push(environment::cache());
    runtime
}

/// Restricts this process before it loads a library. `reads` is what the language needs in a sandbox.
/// Over this socket, the engine makes the process's connections if the sandbox lists hosts, or records what
/// the process touches if the sandbox says so. Returns what lanes enter ([`crosslane_sandbox`] says when),
/// if the library has a sandbox. Without one, a file can do what its user can, but it cannot reach the
/// engine's process.
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
    runtime: Runtime,
    connections: Option<OwnedFd>,
) -> Result<LaneFilter, Failure> {
    let refused = |why: String| {
        let name = source.name();
        let message = match sandbox.recorded {
            true => format!("{name} cannot be recorded: {why}"),
            false => format!("the sandbox of {name} cannot be entered: {why}"),
        };
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
    limits::prefer_to_be_killed();
    let hand_over = |descriptor| ask_for_connections(connections.as_ref(), descriptor);
    let runtime = of_source(runtime, source);
    let lanes = crosslane_sandbox::enter(sandbox, &runtime, hand_over).map_err(refused)?;
    if !sandbox.recorded {
        crosslane_process::guest::is_sandboxed(sandbox.strict);
    }
    Ok(lanes)
}
