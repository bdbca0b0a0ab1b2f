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
    /// The settings that make it, as users write them.
    pub fn words(&self) -> Vec<String> {
        let Self { read, write, net, env, run } = self;
        let listed = |word: &str, paths: &[PathBuf]| {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            (!paths.is_empty()).then(|| format!("{word}={}", paths.join(",")))
        };
        let parts = [
            Some("sandbox=on".to_owned()),
            listed("allow_read", read),
            listed("allow_write", write),
            net.then(|| "allow_net=true".to_owned()),
            (!env.is_empty()).then(|| format!("allow_env={}", env.join(","))),
            listed("allow_run", run),
        ];
        parts.into_iter().flatten().collect()
    }

    /// What to say of a failure whose cause may be the sandbox.
    pub fn remedy(failure: &Failure) -> Option<&'static str> {
        const CLASSES: [&str; 5] =
            ["Errno::EACCES", "Errno::EPERM", "gaierror", "SocketError", "Socket::ResolutionError"];
        const TEXTS: [&str; 4] = [
            "Permission denied",
            "Operation not permitted",
            "name resolution",
            "No usable temporary directory",
        ];
        let Failure { class, message, .. } = failure;
        let is_refusal = CLASSES.contains(&&class[..]) || TEXTS.iter().any(|text| message.contains(text));
        is_refusal.then_some(
            "its sandbox allows files with allow_read and allow_write, the network with allow_net, and programs with \
             allow_run",
        )
    }
}
