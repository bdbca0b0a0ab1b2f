//! The environments of Python files with inline script metadata (PEP 723).
//!
//! The package's `_runtime/environments.py` makes an environment, and writes a *note*: the command of
//! a zygote in it. The engine reads the note, so that a file whose environment is there loads as fast
//! as any other. Without a note, the zygote starts in the engine's own interpreter, and makes the
//! environment before it loads the file.

use crate::files::Files;
use crate::metadata::Metadata;
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
        let metadata = Metadata::of(&String::from_utf8_lossy(&content), "#")?;
        let Some(Metadata { text: metadata, .. }) = metadata.filter(Metadata::has_needs) else {
            return Ok(None);
        };
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
