//! Which files a call uses, and how.

use super::VARIABLES;
use crate::broker::listener::Call;
use crate::files::{Accesses, OWN_PROCESS};
use landlock::AccessFs;
use libc::*;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The most bytes of a path, with its end.
const LONGEST: usize = PATH_MAX as usize;
/// Memory is readable in whole pages, which have at least this many bytes.
const PAGE: u64 = 4096;
/// The most interpreters of one program: an interpreter may be a script, too.
const MOST_INTERPRETERS: usize = 4;
/// The most bytes of the first line of a script that the kernel reads.
const LONGEST_LINE: usize = 256;

/// Paths that lead each process to its own, and where that is below the process's folder in `/proc`.
const OWN: [(&str, &str); 6] = [
    (OWN_PROCESS, ""),
    ("/proc/thread-self", ""),
    ("/dev/fd", "fd"),
    ("/dev/stdin", "fd/0"),
    ("/dev/stdout", "fd/1"),
    ("/dev/stderr", "fd/2"),
];

/// What a call uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Used {
    /// A path without links. For a file that is made or removed, it is the path of its folder.
    File(PathBuf, Accesses),
    /// A variable of the environment.
    Variable(String),
}

/// What a call does with the file that it names.
#[derive(Clone, Copy)]
enum Use {
    /// With these flags.
    Open(c_int),
    Make,
    Remove,
    /// Another file takes its place.
    Replace,
    Truncate,
    Run,
}

/// What a call uses. What is not there, and would not be made, is left out.
#[expect(non_upper_case_globals, reason = "the names of system calls")]
pub(super) fn used(call: &Call) -> Result<Vec<Used>, Errno> {
    let number = |index: usize| call.argument(index) as c_int;
    let at = |directory: usize, path: usize, how| one(call, number(directory), call.argument(path), how);
    let here = |path: usize, how| one(call, AT_FDCWD, call.argument(path), how);
    match call.number() {
        #[cfg(target_arch = "x86_64")]
        SYS_open => here(0, Use::Open(number(1))),
        #[cfg(target_arch = "x86_64")]
        SYS_creat => here(0, Use::Open(O_CREAT | O_WRONLY | O_TRUNC)),
        #[cfg(target_arch = "x86_64")]
        SYS_mkdir => here(0, Use::Make),
        #[cfg(target_arch = "x86_64")]
        SYS_unlink | SYS_rmdir => here(0, Use::Remove),
        #[cfg(target_arch = "x86_64")]
        SYS_rename => moved(here(0, Use::Remove)?, || here(1, Use::Replace)),
        #[cfg(target_arch = "x86_64")]
        SYS_link => here(1, Use::Make),
        SYS_openat => at(0, 1, Use::Open(number(2))),
        SYS_openat2 => {
            let mut flags = [0; 8];
            call.memory(call.argument(2), &mut flags)?;
            at(0, 1, Use::Open(u64::from_ne_bytes(flags) as c_int))
        }
        SYS_mkdirat => at(0, 1, Use::Make),
        SYS_unlinkat => at(0, 1, Use::Remove),
        SYS_renameat | SYS_renameat2 => moved(at(0, 1, Use::Remove)?, || at(2, 3, Use::Replace)),
        SYS_linkat => at(2, 3, Use::Make),
        SYS_truncate => here(0, Use::Truncate),
        SYS_execve => here(0, Use::Run),
        SYS_execveat => at(0, 1, Use::Run),
        _ => Ok(Vec::new()),
    }
}

/// What a move uses: the folder from which a file is taken, if it is there, and the one to which it goes.
fn moved(mut from: Vec<Used>, to: impl FnOnce() -> Result<Vec<Used>, Errno>) -> Result<Vec<Used>, Errno> {
    if !from.is_empty() {
        from.extend(to()?);
    }
    Ok(from)
}

fn one(call: &Call, directory: c_int, address: u64, how: Use) -> Result<Vec<Used>, Errno> {
    let text = text(call, address)?;
    if let Some(name) = text.as_bytes().strip_prefix(VARIABLES.as_bytes()) {
        return Ok(vec![Used::Variable(String::from_utf8_lossy(name).into_owned())]);
    }
    let Some(path) = whole(call, directory, Path::new(&text)) else { return Ok(Vec::new()) };
    let folder = || path.parent().and_then(|folder| real(call, folder));
    let changed = |folder: Option<PathBuf>| folder.map(|folder| (folder, AccessFs::MakeReg.into()));
    let used = match how {
        Use::Open(flags) => opened(call, &path, flags).or_else(|| match flags & (O_CREAT | O_PATH) {
            O_CREAT if real(call, &path).is_none() => changed(folder()),
            _ => None,
        }),
        Use::Make if path.symlink_metadata().is_err() => changed(folder()),
        Use::Remove if path.symlink_metadata().is_ok() => changed(folder()),
        Use::Replace => changed(folder()),
        Use::Make | Use::Remove => None,
        Use::Truncate => real(call, &path).map(|path| (path, AccessFs::WriteFile.into())),
        Use::Run => return Ok(programs(call, path)),
    };
    Ok(used.into_iter().map(|(path, access)| Used::File(path, access)).collect())
}

/// How a file is used that is there.
fn opened(call: &Call, path: &Path, flags: c_int) -> Option<(PathBuf, Accesses)> {
    const NEW: c_int = O_CREAT | O_EXCL;
    let path = real(call, path)?;
    if flags & O_PATH != 0 || flags & NEW == NEW {
        return None;
    }
    if flags & O_TMPFILE == O_TMPFILE {
        return Some((path, AccessFs::MakeReg.into()));
    }
    if path.is_dir() {
        return Some((path, AccessFs::ReadDir.into()));
    }
    let mut access = Accesses::empty();
    if flags & O_ACCMODE != O_WRONLY {
        access |= AccessFs::ReadFile;
    }
    if flags & O_ACCMODE != O_RDONLY || flags & O_TRUNC != 0 {
        access |= AccessFs::WriteFile;
    }
    Some((path, access))
}

/// A program, and the interpreters that the kernel runs for it.
fn programs(call: &Call, path: PathBuf) -> Vec<Used> {
    let mut found = Vec::new();
    let mut next = Some(path);
    while let Some(path) =
        next.and_then(|path| real(call, &path)).filter(|_| found.len() <= MOST_INTERPRETERS)
    {
        let can_run =
            |metadata: fs::Metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
        if !path.metadata().is_ok_and(can_run) {
            break;
        }
        next = interpreter(&path);
        found.push(Used::File(path, AccessFs::Execute.into()));
    }
    found
}

/// The interpreter that the first line of a script names.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = [0; LONGEST_LINE];
    let length = std::io::Read::read(&mut fs::File::open(script).ok()?, &mut line).ok()?;
    let line = line[..length].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)))
}

/// A text of the caller's memory.
fn text(call: &Call, address: u64) -> Result<OsString, Errno> {
    let mut text = Vec::new();
    while text.len() < LONGEST {
        let at = address.wrapping_add(text.len() as u64);
        let mut part = vec![0; (PAGE - at % PAGE) as usize];
        let count = call.memory(at, &mut part)?;
        match part[..count].iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.extend_from_slice(&part[..end]);
                return Ok(OsString::from_vec(text));
            }
            None if count < part.len() => return Err(Errno::FAULT),
            None => text.extend_from_slice(&part),
        }
    }
    Err(Errno::NAMETOOLONG)
}

/// The absolute path of a file that the caller names.
fn whole(call: &Call, directory: c_int, path: &Path) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{}", call.thread()));
    for (own, place) in OWN {
        if let Ok(rest) = path.strip_prefix(own) {
            return Some([&process, Path::new(place), rest].into_iter().flatten().collect());
        }
    }
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let folder = match directory {
        AT_FDCWD => process.join("cwd"),
        directory => process.join(format!("fd/{directory}")),
    };
    let folder = fs::read_link(folder).ok()?;
    // Without a path, a call means the descriptor itself.
    Some(if path.as_os_str().is_empty() { folder } else { folder.join(path) })
}

/// The path without links, of what is there.
fn real(call: &Call, path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    // A link to the process that follows it means the caller, and not the engine. Its own thread is its
    // process, too.
    let caller = call.process().ok()?.as_raw_nonzero();
    for process in [std::process::id(), call.thread()] {
        if let Ok(rest) = real.strip_prefix(format!("/proc/{process}")) {
            return Some(Path::new(&format!("/proc/{caller}")).join(rest));
        }
    }
    Some(real)
}
