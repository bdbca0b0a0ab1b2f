//! What the host may ask of the kernel.
//!
//! JavaScript has no files, sockets or programs, so the host needs none once it has loaded its library.
//! Code that breaks out of V8 then finds no system call for them, with a sandbox and without one.

use crate::host::thread_memory;
use crate::{isolate, library};
use crosslane::{Failure, Net, Sandbox};
use crosslane_guest::{Runtime, restrict};
use crosslane_process::Source;
use std::io;
use std::os::fd::OwnedFd;

/// Restricts this process before it loads a library. Returns whether it is in a sandbox. Call it while
/// the process has one thread.
///
/// # Errors
/// Why the sandbox cannot be entered. The library must not be loaded then.
pub fn before_load(
    sandbox: Option<Sandbox>,
    source: &Source,
    connections: Option<OwnedFd>,
) -> Result<bool, Failure> {
    // Isolates have no sockets or programs, whatever is allowed.
    let sandbox = sandbox.map(|allowed| Sandbox { net: Net::Nothing, run: Vec::new(), ..allowed });
    let entered = restrict(sandbox.as_ref(), source, || Ok(reads()), connections)?;
    Ok(entered.is_some())
}

/// Restricts all threads of this process for good, and those that it starts, to the descriptors that it
/// has. Call it when the library is loaded, and before an isolate boots from its snapshot: code of the
/// library may have broken out of V8 in the process that made the snapshot.
///
/// # Errors
/// If a process in a sandbox cannot be restricted further. It must end then.
pub fn after_load(is_sandboxed: bool) -> io::Result<()> {
    thread_memory::prepare()?;
    isolate::know_time_zone();
    match crosslane_sandbox::keep_to_descriptors(is_sandboxed) {
        Err(why) if is_sandboxed => Err(io::Error::other(why)),
        // Without a sandbox, older kernels do not restrict it. V8 does.
        _ => Ok(()),
    }
}

/// What the host reads while it loads a library.
fn reads() -> Runtime {
    Runtime {
        modules: library::import_folders().collect(),
        sources: ["js", "mjs", "cjs", "ts", "json"].map(String::from).to_vec(),
        ..Runtime::default()
    }
}
