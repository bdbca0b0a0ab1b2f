//! What the functions of a library may do.

mod net;

pub use net::{Host, Net};

use crate::error::Failure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What sandboxed functions may do, besides computing. What is not listed is forbidden.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// Whether they may open nothing once the library is loaded, whatever is allowed: no file, socket or
    /// program. What is open then stays of use.
    pub strict: bool,
    /// Files and folders that they may read.
    pub read: Vec<PathBuf>,
    /// Files and folders that they may read and change.
    pub write: Vec<PathBuf>,
    /// The connections that they may make.
    pub net: Net,
    /// The environment variables of the engine that they have, in addition to those that say where
    /// programs and packages are, and which language people use.
    pub env: Vec<String>,
    /// Programs that they may run. These have the same sandbox.
    pub run: Vec<PathBuf>,
    /// Whether nothing is forbidden, and the engine records what the library touches instead. No setting,
    /// file or client can ask for this: only the program that the engine is in.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
}

impl Sandbox {
    /// The settings that say what is allowed, with their meanings.
    pub(crate) const SETTINGS: [(&'static str, &'static str); 5] = [
        (
            "allow_read",
            "files and folders that sandboxed functions may read: absolute paths, with commas between them",
        ),
        (
            "allow_write",
            "files and folders that sandboxed functions may read and change: absolute paths, with commas between them",
        ),
        (
            "allow_net",
            "hosts that sandboxed functions may connect to, such as api.example.com:443, with commas between them; \
             true: all, false: none",
        ),
        ("allow_env", "environment variables that sandboxed functions have, with commas between them"),
        ("allow_run", "programs that sandboxed functions may run: absolute paths, with commas between them"),
    ];

    /// Those of them whose values are paths.
    pub const PATHS: [&'static str; 3] = ["allow_read", "allow_write", "allow_run"];

    /// Changes one of these settings. Returns whether it can have this value; `None` if it is another
    /// setting.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Option<bool> {
        let words = || value.split(',').map(str::trim).filter(|word| !word.is_empty());
        let paths = match name {
            "allow_read" => &mut self.read,
            "allow_write" => &mut self.write,
            "allow_run" => &mut self.run,
            "allow_env" => {
                self.env = words().map(str::to_owned).collect();
                return Some(true);
            }
            "allow_net" => return Some(value.parse().map(|net| self.net = net).is_ok()),
            _ => return None,
        };
        let given: Vec<_> = words().map(PathBuf::from).collect();
        let is_possible = given.iter().all(|path| path.is_absolute());
        if is_possible {
            *paths = given;
        }
        Some(is_possible)
    }

    /// The value of one of these settings, as [`Sandbox::set`] takes it.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let joined = |paths: &[PathBuf]| {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            paths.join(",")
        };
        Some(match name {
            "allow_read" => joined(&self.read),
            "allow_write" => joined(&self.write),
            "allow_net" => self.net.to_string(),
            "allow_env" => self.env.join(","),
            "allow_run" => joined(&self.run),
            _ => return None,
        })
    }

    /// The settings that make it, without those that allow nothing.
    pub fn words(&self) -> impl Iterator<Item = String> {
        let nothing = Self::default();
        let allowed = Self::SETTINGS.iter().filter_map(move |(name, _)| {
            let value = self.get(name).filter(|_| self.get(name) != nothing.get(name))?;
            Some(format!("{name}={value}"))
        });
        let sandbox = match self {
            Self { recorded: true, .. } => "sandbox=recorded",
            Self { strict: true, .. } => "sandbox=strict",
            _ => "sandbox=on",
        };
        [sandbox.to_owned()].into_iter().chain(allowed)
    }

    /// Resolves links and `..` in all paths, so that they can be compared.
    ///
    /// # Errors
    /// The path that is not there.
    pub fn resolved(mut self) -> Result<Self, PathBuf> {
        for paths in [&mut self.read, &mut self.write, &mut self.run] {
            for path in paths {
                *path = path.canonicalize().map_err(|_| path.clone())?;
            }
        }
        Ok(self)
    }

    /// The settings with which this sandbox allows more than another one, with their values. The paths of
    /// both are [`Sandbox::resolved`].
    pub fn beyond(&self, other: &Self) -> Vec<String> {
        let are_below = |paths: &[PathBuf], allowed: &[&[PathBuf]]| {
            paths
                .iter()
                .all(|path| allowed.iter().copied().flatten().any(|allowed| path.starts_with(allowed)))
        };
        let is_allowed = |name: &str| match name {
            "allow_read" => are_below(&self.read, &[&other.read, &other.write]),
            "allow_write" => are_below(&self.write, &[&other.write]),
            "allow_net" => self.net.is_within(&other.net),
            "allow_env" => self.env.iter().all(|name| other.env.contains(name)),
            "allow_run" => are_below(&self.run, &[&other.run]),
            _ => false,
        };
        let beyond = Self::SETTINGS.iter().filter(|(name, _)| !is_allowed(name));
        let beyond = beyond.filter_map(|(name, _)| Some(format!("{name}={}", self.get(name)?)));
        let less_strict = (other.strict && !self.strict).then(|| "sandbox=on".to_owned());
        less_strict.into_iter().chain(beyond).collect()
    }

    /// What to say of a failure whose cause may be the sandbox. `is_strict` says that nothing may be opened
    /// any more.
    pub fn remedy(failure: &Failure, is_strict: bool) -> Option<&'static str> {
        const CLASSES: [&str; 5] =
            ["Errno::EACCES", "Errno::EPERM", "socket.gaierror", "SocketError", "Socket::ResolutionError"];
        const TEXTS: [&str; 6] = [
            "Permission denied",
            "Operation not permitted",
            "name resolution",
            "Name or service not known",
            "No usable temporary directory",
            "unable to open database file",
        ];
        // Errors of languages that have not found a module.
        const MODULES: [&str; 3] = ["No module named", "cannot load such file", "' not found:"];
        let Failure { class, message, .. } = failure;
        if is_strict && MODULES.iter().any(|text| message.contains(text)) {
            return Some("a strict sandbox allows to load modules at the top of the file, and not later");
        }
        let is_refusal = CLASSES.contains(&&class[..]) || TEXTS.iter().any(|text| message.contains(text));
        if is_strict {
            return is_refusal.then_some(
                "a strict sandbox allows files, the network and programs only while the file is loaded",
            );
        }
        is_refusal.then_some(
            "its sandbox allows files with allow_read and allow_write, the network with allow_net, and programs with \
             allow_run",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(settings: &[(&str, &str)]) -> Sandbox {
        let mut sandbox = Sandbox::default();
        assert!(settings.iter().all(|(name, value)| sandbox.set(name, value) == Some(true)));
        sandbox
    }

    #[test]
    fn a_sandbox_may_allow_more_than_another() {
        let allowed = [
            ("allow_read", "/data,/models"),
            ("allow_write", "/out"),
            ("allow_net", "*.example.com:443"),
            ("allow_env", "KEY,TOKEN"),
            ("allow_run", "/bin/true"),
        ];
        let settings = sandbox(&allowed);
        assert_eq!(settings.beyond(&settings), Vec::<String>::new());
        assert_eq!(Sandbox::default().beyond(&settings), Vec::<String>::new());
        assert_eq!(settings.beyond(&Sandbox::default()).len(), allowed.len());
        let less = sandbox(&[
            ("allow_read", "/models/a,/out/b,/data"),
            ("allow_write", "/out/c"),
            ("allow_net", "api.example.com:443"),
            ("allow_env", "TOKEN"),
        ]);
        assert_eq!(less.beyond(&settings), Vec::<String>::new());
        let more = [
            ("allow_read", "/data,/database"),
            ("allow_write", "/data"),
            ("allow_net", "true"),
            ("allow_env", "SECRET"),
            ("allow_run", "/bin/sh"),
        ];
        let beyond = more.map(|(name, value)| format!("{name}={value}"));
        assert_eq!(sandbox(&more).beyond(&settings), beyond);
        let strict = Sandbox { strict: true, ..settings.clone() };
        assert_eq!(strict.beyond(&settings), Vec::<String>::new());
        assert_eq!(settings.beyond(&strict), ["sandbox=on"]);
    }
}
