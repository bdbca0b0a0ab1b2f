//! What the functions of a library may do.

use crate::error::Failure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What sandboxed functions may do, besides computing. What is not listed is forbidden.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// Files and folders that they may read.
    pub read: Vec<PathBuf>,
    /// Files and folders that they may read and change.
    pub write: Vec<PathBuf>,
    /// Whether they may connect to other machines, and to other programs on this one.
    pub net: bool,
    /// The environment variables of the engine that they have, in addition to those that say where
    /// programs and packages are, and which language people use.
    pub env: Vec<String>,
    /// Programs that they may run. These have the same sandbox.
    pub run: Vec<PathBuf>,
}

impl Sandbox {
    /// What to say of a failure whose cause may be the sandbox.
    pub fn remedy(failure: &Failure) -> Option<&'static str> {
        let Failure { class, message, .. } = failure;
        let files = ["Errno::EACCES"].contains(&&class[..]) || message.contains("Permission denied");
        let others = ["Errno::EPERM", "gaierror", "SocketError", "Socket::ResolutionError"]
            .contains(&&class[..])
            || message.contains("Operation not permitted")
            || message.contains("name resolution");
        match (files, others) {
            (true, _) => Some(
                "this library runs in a sandbox: the settings allow_read and allow_write name files and folders that \
                 it may use, before it is loaded",
            ),
            (false, true) => Some(
                "this library runs in a sandbox: the setting allow_net lets it use the network, allow_run names programs \
                 that it may run, before it is loaded",
            ),
            (false, false) => None,
        }
    }
}
