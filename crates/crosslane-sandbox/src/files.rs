//! Landlock: which files the process may use, and which programs it may run.
//!
//! Landlock cannot take anything away from a folder that it allows. So of a folder in which the
//! user works, only the sources are allowed: a database may lie beside them.

use crate::machine::Machine;
use crosslane::{Net, Sandbox, lock};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use std::{fs, io};

/// Files of `/proc` that stay open for their rules.
static KEPT: LazyLock<Mutex<HashMap<PathBuf, PathFd>>> = LazyLock::new(Mutex::default);

/// The newest version of which this module knows the accesses.
const NEWEST: ABI = ABI::V5;
/// Ways to use a file or folder.
pub(crate) type Accesses = BitFlags<AccessFs>;

const READ: Accesses = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// No links, pipes or sockets: a program outside of the sandbox might follow or open them.
const WRITE: Accesses = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | RemoveDir | RemoveFile | MakeDir | MakeReg | Refer
});
const DEVICE: Accesses = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});
const RUN: Accesses = make_bitflags!(AccessFs::{ReadFile | Execute});

/// The parts of a system that programs read and that hold no data of users: libraries, time zones,
/// languages, processors.
const SYSTEM: [&str; 30] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
    "/var/lib/ca-certificates",
    "/etc/fonts",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    OWN_PROCESS,
    "/dev/random",
    "/dev/urandom",
];
/// What the kernel tells of the process that loads the library.
pub(crate) const OWN_PROCESS: &str = "/proc/self";
/// What resolves the names of hosts.
const NETWORK: [&str; 7] = [
    "/etc/resolv.conf",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/run/systemd/resolve",
];
/// The names of hosts that this machine knows. If hosts are listed, the engine resolves their names, and
/// must know their addresses.
pub(crate) const HOSTS: &str = "/etc/hosts";
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];
/// What loads the libraries of programs.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// The most files and folders that are looked at for sources.
const MOST_LOOKED_AT: usize = 20_000;
/// A folder of packages, which are sources and what belongs to them.
const PACKAGES: &str = "node_modules";

/// What a language needs while functions run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Runtime {
    /// Files and folders that belong to the language and its packages.
    pub packages: Vec<PathBuf>,
    /// Folders of users in which the language finds modules.
    pub modules: Vec<PathBuf>,
    /// The suffixes of the sources there.
    pub sources: Vec<String>,
    /// Programs that the process may become: itself.
    pub programs: Vec<PathBuf>,
    /// What other programs of the user run, and so must not be writable. The packages and folders of
    /// modules must not be, either.
    pub outside: Vec<PathBuf>,
}

/// What a sandbox allows. `restrict` enters it.
pub(crate) fn rules(
    sandbox: &Sandbox,
    runtime: &Runtime,
    machine: Machine,
) -> Result<RulesetCreated, String> {
    let mut rules = Rules::new(machine).map_err(|error| format!("Landlock: {error}"))?;
    for (path, access) in unnamed(&sandbox.net, runtime) {
        rules.allow(&path, access)?;
    }
    for path in &sandbox.write {
        refuse_to_write(path, runtime)?;
    }
    for (paths, access, word) in [
        (&sandbox.read, READ, "allow_read"),
        (&sandbox.write, WRITE, "allow_write"),
        (&sandbox.run, RUN, "allow_run"),
    ] {
        for path in paths {
            rules.allow_named(path, access, word)?;
        }
    }
    Ok(rules.0)
}

/// Restricts the calling thread, and all threads and processes that it starts.
pub(crate) fn restrict(rules: RulesetCreated) -> Result<(), String> {
    let entered = rules.restrict_self().map_err(|error| format!("Landlock: {error}"))?;
    match entered.ruleset {
        RulesetStatus::NotEnforced => Err("Landlock does not enforce anything in this kernel".into()),
        _ => Ok(()),
    }
}

/// What a sandbox allows that names no paths.
fn unnamed(net: &Net, runtime: &Runtime) -> Vec<(PathBuf, Accesses)> {
    let system = SYSTEM.iter().map(PathBuf::from).chain(runtime.packages.iter().cloned());
    let mut allowed: Vec<_> = system.map(|path| (path, READ)).collect();
    allowed.extend(DEVICES.map(|device| (device.into(), DEVICE)));
    for folder in &runtime.modules {
        // Names can be listed. They could be found by stat anyway.
        allowed.push((folder.clone(), AccessFs::ReadDir.into()));
        allowed.extend(sources(folder, &runtime.sources).into_iter().map(|source| (source, READ)));
    }
    if *net != Net::Nothing {
        let hosts = (*net == Net::Everything).then_some(HOSTS);
        allowed.extend(NETWORK.into_iter().chain(hosts).map(|path| (path.into(), READ)));
    }
    let programs = runtime.programs.iter().cloned().chain(LOADERS.map(PathBuf::from));
    allowed.extend(programs.map(|program| (program, RUN)));
    allowed
}

/// What a sandbox allows that names no paths, for comparisons with what a library touches.
pub(crate) struct Unnamed(HashMap<PathBuf, Accesses>);

impl Unnamed {
    pub(crate) fn new(net: &Net, runtime: &Runtime) -> Self {
        let mut all = HashMap::new();
        for (path, access) in unnamed(net, runtime) {
            // This link leads each process elsewhere.
            let path = if path == Path::new(OWN_PROCESS) { Ok(path) } else { path.canonicalize() };
            let Ok(path) = path else { continue };
            *all.entry(path.clone()).or_default() |= possible(&path, access);
        }
        Self(all)
    }

    /// The part of an access to a path that is not allowed. The path has no links.
    pub(crate) fn refused(&self, path: &Path, access: Accesses) -> Accesses {
        let allowed = path.ancestors().filter_map(|folder| self.0.get(folder));
        allowed.fold(access, |refused, allowed| refused & !*allowed)
    }
}

/// The part of an access that there is for a path: less for a file than for a folder.
fn possible(path: &Path, access: Accesses) -> Accesses {
    if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) }
}

/// Refuses that a path is writable if the sandbox could be left that way: by a change of what runs
/// without one.
pub(crate) fn refuse_to_write(path: &Path, runtime: &Runtime) -> Result<(), String> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = real(path);
    let refused = |why: &str, other: &Path| {
        Err(format!("allow_write names {}, which {why} {}", path.display(), other.display()))
    };
    for package in runtime.packages.iter().chain(&runtime.programs).chain(&runtime.outside) {
        let package = real(package);
        if package.starts_with(&path) {
            return refused("contains", &package);
        }
        if path.starts_with(&package) {
            return refused("is a part of", &package);
        }
    }
    match runtime.modules.iter().map(|folder| real(folder)).find(|folder| folder.starts_with(&path)) {
        Some(folder) => refused("contains the modules of", &folder),
        None => Ok(()),
    }
}

struct Rules(RulesetCreated);

impl Rules {
    fn new(machine: Machine) -> Result<Self, landlock::RulesetError> {
        let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        let rules = rules.handle_access(AccessFs::from_all(NEWEST))?;
        let rules = match machine.scopes_signals() {
            true => rules.scope(Scope::Signal)?.scope(Scope::AbstractUnixSocket)?,
            false => rules,
        };
        rules.create().map(Self)
    }

    /// Allows access to a path. If there is no such path, there is nothing to allow.
    fn allow(&mut self, path: &Path, access: Accesses) -> Result<(), String> {
        let descriptor = match PathFd::new(path) {
            Ok(descriptor) => descriptor,
            Err(PathFdError::OpenCall { source, .. }) if is_missing(&source) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        if path.starts_with("/proc") {
            // If no process has had this file open for a while, the kernel makes another file of the
            // same name. The rule is for this file, so it stays open.
            let mut kept = lock(&KEPT);
            if let Entry::Vacant(place) = kept.entry(path.to_owned()) {
                place.insert(PathFd::new(path).map_err(|error| error.to_string())?);
            }
        }
        let rule = PathBeneath::new(descriptor, possible(path, access));
        let added = (&mut self.0).add_rule(rule);
        added.map(|_| ()).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Allows access to a path that the user has named with this word.
    fn allow_named(&mut self, path: &Path, access: Accesses, word: &str) -> Result<(), String> {
        if let Err(error) = path.metadata() {
            return Err(format!("{word} names {}: {error}", path.display()));
        }
        self.allow(path, access)
    }
}

/// Whether there is nothing at a path that this user could open.
fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// The sources in a folder and below it, of at most [`MOST_LOOKED_AT`] files and folders. Those of a
/// folder come before those below it.
fn sources(folder: &Path, known: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = VecDeque::from([folder.to_owned()]);
    let mut left = MOST_LOOKED_AT;
    while let Some(folder) = folders.pop_front().filter(|_| left > 0) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(left) {
            left -= 1;
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
            let suffix = name.rsplit_once('.').map_or(name, |(_, suffix)| suffix);
            // A link may lead anywhere, and is neither a folder nor a file here.
            let Ok(kind) = entry.file_type() else { continue };
            if (kind.is_dir() && name == PACKAGES)
                || (kind.is_file() && known.iter().any(|known| known == suffix))
            {
                found.push(path);
            } else if kind.is_dir() {
                folders.push_back(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_sources_are_found_beside_a_library() {
        let root = std::env::temp_dir().join(format!("crosslane-sources-{}", std::process::id()));
        for folder in ["package", ".hidden", "node_modules/inner"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["a.py", "data.db", "package/b.py", "package/c.csv", ".hidden/d.py"] {
            fs::write(root.join(file), "").unwrap();
        }
        symlink("/etc", root.join("link.py")).unwrap();
        let mut found = sources(&root, &["py".into()]);
        // A folder lists its files in any order.
        found[..2].sort();
        assert_eq!(found, ["a.py", "node_modules", "package/b.py"].map(|name| root.join(name)));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_a_sandbox_allows_by_itself_depends_on_its_network() {
        let runtime = Runtime { packages: vec!["/usr".into()], ..Runtime::default() };
        let refused = |net: &Net, path: &str, access: AccessFs| {
            !Unnamed::new(net, &runtime).refused(Path::new(path), access.into()).is_empty()
        };
        let nothing = &Net::Nothing;
        assert!(!refused(nothing, "/usr/some/file", AccessFs::ReadFile));
        assert!(refused(nothing, "/usr/some/file", AccessFs::WriteFile));
        assert!(!refused(nothing, "/dev/null", AccessFs::WriteFile));
        assert!(!refused(nothing, "/proc/self/status", AccessFs::ReadFile));
        assert!(refused(nothing, "/proc/1/status", AccessFs::ReadFile));
        assert!(refused(nothing, "/etc/services", AccessFs::ReadFile));
        if Path::new("/etc/services").exists() {
            assert!(!refused(&Net::Hosts(Vec::new()), "/etc/services", AccessFs::ReadFile));
        }
    }

    #[test]
    fn what_runs_outside_of_a_sandbox_is_not_writable() {
        let runtime = Runtime {
            packages: vec!["/packages/python".into()],
            modules: vec!["/project/modules".into()],
            ..Runtime::default()
        };
        for path in
            ["/", "/packages", "/packages/python", "/packages/python/site", "/project", "/project/modules"]
        {
            assert!(refuse_to_write(Path::new(path), &runtime).is_err(), "{path}");
        }
        for path in ["/project/modules/out", "/project/other", "/packages/pythonic"] {
            assert_eq!(refuse_to_write(Path::new(path), &runtime), Ok(()), "{path}");
        }
    }
}
