//! Functions that SQL defines. Each becomes a file in its language, which is loaded like any other.
//!
//! The files are in the user's cache, in folders that are named by the text of the file. So a
//! definition that is restored has the same file again, an error names a file that is there, and
//! nothing needs to be removed when a program is killed.

mod body;
mod source;

use crate::files::hash;
use crate::zygote::environment::cache;
use crosslane::ddl::Definition;
use crosslane::stats::now;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Writes the file of a definition, unless it is there. Returns its path.
///
/// # Errors
/// If the definition cannot be a function of its language, or the file cannot be written.
pub fn file(definition: &Definition) -> Result<PathBuf, String> {
    let (suffix, text) = source::source(definition)?;
    let cache = cache();
    let folder = folder(&cache).join(&hash(text.as_bytes())[..32]);
    let path = folder.join(format!("{}.{suffix}", source::identifier(&definition.signature.name)));
    write(&cache, &path, &text).map_err(|error| {
        format!(
            "functions that SQL defines are kept in {}, which cannot be used: {error}; set XDG_CACHE_HOME to a folder of \
             your own",
            cache.display()
        )
    })?;
    Ok(path)
}

/// Whether a path is that of a definition's file.
pub fn is_one(path: &Path) -> bool {
    path.starts_with(folder(&cache()))
}

fn folder(cache: &Path) -> PathBuf {
    cache.join("definitions")
}

fn write(cache: &Path, path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(cache);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // The owner of the folder could put other code in the file's place.
    let owner = fs::metadata(cache)?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    // A file that was cut or changed is written again.
    if fs::read(path).is_ok_and(|known| known == text.as_bytes()) {
        return Ok(());
    }
    // Other threads, and programs of other containers, may write the same file.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    let new = folder.join(format!(".new-{process}-{number}-{}", now()));
    let written = File::create_new(&new).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&new, path)).inspect_err(|_| drop(fs::remove_file(&new)))
}
