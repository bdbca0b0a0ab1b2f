//! The environments of Python files with inline script metadata (PEP 723).
//!
//! The package's `_runtime/environments.py` makes an environment, and writes a *note*: the command of
//! a zygote in it. The engine reads the note, so that a file whose environment is there loads as fast
//! as any other. Without a note, the zygote starts in the engine's own interpreter, and makes the
//! environment before it loads the file.

use crate::files::Files;
use serde::Deserialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// What a file needs, and where the note of its environment is or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// The metadata, as TOML.
    pub metadata: String,
    /// The path of the note.
    pub note: PathBuf,
}

impl Needs {
    /// What a file needs that this interpreter would load. None if it has no metadata, or cannot be
    /// read.
    ///
    /// # Errors
    /// What is wrong with the metadata.
    pub fn of(file: &Path, interpreter: &Path) -> Result<Option<Self>, String> {
        let Ok(content) = fs::read(file) else { return Ok(None) };
        let Some(metadata) = metadata(&String::from_utf8_lossy(&content))? else { return Ok(None) };
        let lock = fs::read(lock_of(file)).unwrap_or_default();
        // Packages may come from places that are named from the file's folder.
        let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let folder = real.parent().unwrap_or(&real);
        let parts: [(&[u8], &[u8]); 4] = [
            (b"metadata", metadata.as_bytes()),
            (b"lock", &lock),
            (b"folder", folder.as_os_str().as_encoded_bytes()),
            (b"interpreter", interpreter.as_os_str().as_encoded_bytes()),
        ];
        let note = cache().join("notes").join(Files::of(parts).hash());
        Ok(Some(Self { metadata, note }))
    }
}

/// The path of a file's lock, which uv writes.
fn lock_of(file: &Path) -> PathBuf {
    let mut lock = file.as_os_str().to_owned();
    lock.push(".lock");
    lock.into()
}

/// The folder of what is made for this user.
pub fn cache() -> PathBuf {
    let home = || env::home_dir().unwrap_or_default().join(".cache");
    let folder = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    folder.unwrap_or_else(home).join("crosslane")
}

/// What a note says.
#[derive(Debug, Deserialize)]
struct Note {
    /// The version of the package that has written it.
    version: String,
    /// The folder of that package.
    package: PathBuf,
    command: Vec<String>,
}

/// The command of a zygote in the environment of a file, if it is there.
pub(super) fn command(file: &Path, interpreter: &Path) -> Option<Vec<String>> {
    let needs = Needs::of(file, interpreter).ok()??;
    let owner = fs::metadata(cache()).ok()?.uid();
    let note: Note = serde_json::from_slice(&fs::read(needs.note).ok()?).ok()?;
    // An environment that is not there any more is made again by a zygote of this interpreter.
    let is_usable = owner == rustix::process::geteuid().as_raw()
        && note.version == env!("CARGO_PKG_VERSION")
        && note.package.join("_worker").exists()
        && Path::new(note.command.first()?).exists();
    is_usable.then_some(note.command)
}

/// The content of the block `script` of a file, as PEP 723 defines it.
fn metadata(text: &str) -> Result<Option<String>, String> {
    let lines: Vec<_> = text.trim_start_matches('\u{feff}').lines().collect();
    let mut found = None;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let Some(kind) = line.strip_prefix("# /// ").filter(|kind| is_kind(kind)) else { continue };
        let comments = lines[at..].iter().take_while(|line| **line == "#" || line.starts_with("# "));
        let comments: Vec<_> = comments.collect();
        let Some(end) = comments.iter().rposition(|line| ***line == *"# ///") else { continue };
        at += end + 1;
        if kind == "script" {
            let content = comments[..end].iter().map(|line| line.get(2..).unwrap_or_default());
            if found.replace(content.map(|line| format!("{line}\n")).collect()).is_some() {
                return Err("it has two blocks `# /// script`, where one is allowed".to_owned());
            }
        }
    }
    // Whoever writes this wants an environment.
    let is_meant = |line: &&&str| line.split_whitespace().eq(["#", "///", "script"]);
    match (&found, lines.iter().find(is_meant)) {
        (None, Some(_)) => {
            Err("its block `# /// script` has no end `# ///`, or has lines that do not begin with `# `"
                .into())
        }
        _ => Ok(found),
    }
}

fn is_kind(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_pep_723() {
        let of = |text: &str| metadata(text);
        assert_eq!(of("import x\n"), Ok(None));
        assert_eq!(of("# /// script\n# a = 1\n#\n# b = 2\n# ///\n"), Ok(Some("a = 1\n\nb = 2\n".into())));
        // The last end counts.
        assert_eq!(
            of("# /// script\n# a = \"\"\"\n# ///\n# \"\"\"\n# ///\nx\n# ///\n")
                .unwrap()
                .unwrap()
                .lines()
                .count(),
            3
        );
        assert_eq!(of("# /// other\n# x\n# ///\n"), Ok(None));
        assert!(of("# /// script\n# a = 1\n\n# ///\n").is_err());
        assert!(of("# /// script \n# a = 1\n# ///\n").is_err());
        assert_eq!(of("\u{feff}# /// script\n# ///\n"), Ok(Some(String::new())));
        assert_eq!(of("# /// script\r\n# a = 1\r\n# ///\r\n"), Ok(Some("a = 1\n".into())));
        assert!(of("# /// script\n# ///\n# x\n\n# /// script\n# ///\n").is_err());
    }
}
