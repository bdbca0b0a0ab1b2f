//! The files that a guest has run for a library.

mod watched;

pub use watched::{Looks, Watched};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The most bytes of a source.
const LARGEST: u64 = 256 << 20;

/// The files that a guest has run for a library: their absolute paths, and a hash of each content as
/// it was read. What is no path, such as `environment`, names something else that the library was
/// loaded with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Files(BTreeMap<String, String>);

impl Files {
    /// The files with these paths and contents.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let named = |path| String::from_utf8_lossy(path).into_owned();
        Self(files.into_iter().map(|(path, content)| (named(path), hash(content))).collect())
    }

    /// One hash of all paths and contents.
    pub fn hash(&self) -> String {
        hash(serde_json::to_string(self).unwrap_or_default().as_bytes())
    }

    /// One hash of all contents, and of their paths relative to a folder. So a copy of the folder has
    /// the same hash.
    pub fn hash_in(&self, folder: &Path) -> String {
        let relative = |path: &str| {
            let below = Path::new(path).strip_prefix(folder);
            below.map_or_else(|_| path.to_owned(), |below| below.to_string_lossy().into_owned())
        };
        Self(self.0.iter().map(|(path, hash)| (relative(path), hash.clone())).collect()).hash()
    }

    /// The paths.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether the content of a file is not what the guest has run. A file that cannot be read now has
    /// not changed, unless it is gone.
    pub fn have_changed(&self) -> bool {
        let mut files = self.0.iter().filter(|(path, _)| Path::new(path).is_absolute());
        files.any(|(path, known)| match content(Path::new(path)) {
            Ok(content) => content.is_none_or(|content| hash(&content) != *known),
            Err(error) => error.kind() == ErrorKind::NotFound,
        })
    }
}

impl From<BTreeMap<String, String>> for Files {
    fn from(hashes: BTreeMap<String, String>) -> Self {
        Self(hashes)
    }
}

impl From<Files> for BTreeMap<String, String> {
    fn from(files: Files) -> Self {
        files.0
    }
}

/// The content of a file, or `None` if it is no source. A guest has named it, and a read of something
/// else than a file might not end.
fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let metadata = fs::metadata(path)?;
    let is_source = metadata.is_file() && metadata.len() <= LARGEST;
    is_source.then(|| fs::read(path)).transpose()
}

/// The SHA-256 of bytes, as 64 hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // A String takes all that is written.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_that_cannot_be_read_for_a_moment_has_not_changed() {
        let path = std::env::temp_dir().join(format!("crosslane-files-{}", std::process::id()));
        let files = Files::of([(path.as_os_str().as_encoded_bytes(), &b"one"[..])]);
        fs::write(&path, "one").unwrap();
        assert!(!files.have_changed());
        fs::write(&path, "two").unwrap();
        assert!(files.have_changed());
        fs::remove_file(&path).unwrap();
        assert!(files.have_changed());
        symlink(&path, &path).unwrap();
        assert!(!files.have_changed());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(files.have_changed());
        fs::remove_dir(&path).unwrap();
    }
}
