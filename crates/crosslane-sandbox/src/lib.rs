//! Restricts the process of a library to what its functions may do. The kernel enforces it, for
//! any user, without a helper program.
//!
//! # Layers
//! | layer | what it restricts |
//! |---|---|
//! | Landlock ([`files`]) | files, folders, programs; signals to processes outside (Linux 6.12) |
//! | seccomp ([`calls`]) | sockets, other processes, namespaces, and all else that Landlock does not watch |
//! | a broker in the engine ([`broker`]) | which hosts are connected to, if the sandbox lists hosts |
//! | privileges ([`privileges`]) | the capabilities of root, and core dumps |
//!
//! # Order
//! 1. The process that will load the library calls [`enter`], before it runs anything of the
//!    library's file, and while it has one thread: Landlock does not reach threads that exist.
//! 2. It loads the library.
//! 3. Each lane calls [`LaneFilter::enter`] before it runs anything of the library: as the first
//!    thing after its fork, or, where lanes are threads, once before the first of them starts.
//!
//! A process whose lanes are threads that need no files calls [`keep_to_descriptors`] instead, also
//! without a sandbox.
//!
//! The lane's filter is a second line: code that runs while the library is loaded, and hooks of forks,
//! run without it. What must never be possible is forbidden by the first two filters and Landlock.
//!
//! A function may have a sandbox of its own. Its lanes enter it after their forks ([`Narrower`]). The
//! kernel allows what all entered sandboxes allow.
//!
//! None of this can be undone, by any code in the process or in a program that it becomes.
//!
//! A library may also be recorded ([`recorder`]): then nothing is forbidden.
//!
//! # Answers
//! A forbidden file is EACCES. A forbidden system call is EPERM. A call that is not known to be
//! needed is ENOSYS, as if the kernel were too old to have it, because libraries then use another
//! one. `clone3` and `openat2` are among these: a filter cannot read their flags.

pub mod broker;
mod calls;
mod files;
mod machine;
mod narrower;
mod privileges;
pub mod recorder;
mod scope;

pub use calls::LaneFilter;
pub use files::Runtime;
pub use machine::Machine;
pub use narrower::{Narrower, threads};
pub use scope::keep_to_own_processes;

use broker::listener;
use crosslane::{Net, Sandbox};
use std::io;
use std::os::fd::OwnedFd;

/// Restricts this process for good, so that it can load a library. Returns what its lanes enter. If the
/// sandbox lists hosts, `hand_over` sends a descriptor to the engine, whose [`broker`] then makes all
/// connections of this process. If the library is recorded, `hand_over` sends the two descriptors of the
/// [`recorder`].
///
/// # Errors
/// What is missing or wrong, for the user to read. The process must not load the library then.
pub fn enter(
    sandbox: &Sandbox,
    runtime: &Runtime,
    hand_over: impl Fn(OwnedFd) -> io::Result<()>,
) -> Result<LaneFilter, String> {
    let machine = Machine::look()?;
    know_page_size();
    let lane = LaneFilter::new(sandbox)?;
    if sandbox.recorded {
        recorder::enter(runtime, hand_over)?;
        return Ok(lane);
    }
    privileges::drop_all().map_err(|error| format!("the privileges of this process: {error}"))?;
    files::restrict(files::rules(sandbox, runtime, machine)?)?;
    let filters = calls::Filters::new(sandbox, machine)?;
    filters.enter().map_err(|error| format!("seccomp: {error}"))?;
    if matches!(sandbox.net, Net::Hosts(_)) {
        let listener =
            listener::listen(&calls::handing_over(calls::connecting())?, 0).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::EBUSY) => "allow_net lists hosts, but this container watches system calls itself, \
                                          so that Crosslane cannot: allow_net can be true or false here (EBUSY)"
                        .to_owned(),
                    _ => format!("seccomp: {error}"),
                }
            })?;
        hand_over(listener).map_err(|error| format!("the engine takes no connections: {error}"))?;
        listener::probe()?;
    }
    Ok(lane)
}

/// Restricts all threads of this process for good, and those that it starts, to the descriptors that it
/// has, and to those that are sent to it: it opens no file, makes no socket and starts no program. For a
/// process that has loaded its library, and whose lanes are threads. `is_sandboxed` tells whether it has
/// entered a sandbox.
///
/// # Errors
/// What is missing or wrong, for the user to read.
pub fn keep_to_descriptors(is_sandboxed: bool) -> Result<(), String> {
    know_page_size();
    let lanes = LaneFilter::of_descriptors()?;
    if !is_sandboxed {
        let filters = calls::Filters::new(&Sandbox::default(), Machine::look()?)?;
        filters.enter().map_err(|error| format!("seccomp: {error}"))?;
    }
    lanes.enter().map_err(|error| format!("seccomp: {error}"))
}

/// Makes the library of system calls read what it needs for this. It reads it when it is first asked, and
/// a lane that opens nothing could not do that any more.
fn know_page_size() {
    rustix::param::page_size();
}
