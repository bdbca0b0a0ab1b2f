//! Opens the files with the results of functions that outlive the program (`cache`).

use super::environment::cache;
use crate::definition;
use crate::files::{Files, hash};
use crate::source::Source;
use crate::warden::log::say;
use crosslane::{Error, Function, Sandbox, Store};
use crosslane_cache::{Cache, Kept};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The file of results in the user's cache.
const FILE: &str = "results.db";

/// Opens the caches of a library's functions.
///
/// # Errors
/// [`Error::Load`] if a file cannot be used.
pub(super) fn open(source: &Source, functions: &[Arc<Function>], files: Option<&Files>) -> Result<(), Error> {
    let folder = if let Source::File { path } = source { path.parent() } else { None };
    let version = files.zip(folder).map(|(files, folder)| files.hash_in(folder));
    for function in functions {
        let Some(option) = &function.spec.cache else { continue };
        let sandbox = function.spec.sandbox.as_deref();
        if sandbox.is_some_and(|sandbox| sandbox.recorded) {
            // A function that is not called touches nothing.
            continue;
        }
        let opened = function.keep_in(|| {
            let (Some(version), Source::File { path }) = (&version, source) else {
                return Err("cache is for functions of files".to_owned());
            };
            let file = file(option, path);
            let is_allowed = |sandbox: &Sandbox| {
                option.is_empty() || sandbox.write.iter().any(|folder| real(&file).starts_with(real(folder)))
            };
            if !sandbox.is_none_or(is_allowed) {
                return Err(format!(
                    "its sandbox allows no cache in {}: allow_write names its folder, or cache is true",
                    file.display()
                ));
            }
            // Guests in a sandbox are not believed which files they have run.
            let version = &match sandbox {
                Some(_) => hash(format!("{}\0{version}", path.display()).as_bytes()),
                None => version.clone(),
            };
            let kept = Kept {
                file: &path.to_string_lossy(),
                name: function.name(),
                signature: &function.signature.to_string(),
                version,
                ttl: function.spec.ttl.map(Duration::from_secs_f64),
            };
            let cache = Cache::open(&file, &kept, say)?;
            Ok(cache.map(|cache| Arc::new(cache) as Arc<dyn Store>))
        });
        opened.map_err(|message| {
            let message = format!("function {}: {message}", function.name());
            Error::declared(&source.name(), "DeclarationError", &message, &function.spec.place())
        })?;
    }
    Ok(())
}

/// A path without links, of a file that may not be there yet.
fn real(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(folder), Some(name)) => real(folder).join(name),
        (Err(_), ..) => path.to_owned(),
    }
}

/// The file that an option names, of a function in a file of the user.
fn file(option: &str, user: &Path) -> PathBuf {
    if option.is_empty() {
        return cache().join(FILE);
    }
    if let Some(rest) = option.strip_prefix("~/") {
        return env::home_dir().unwrap_or_default().join(rest);
    }
    // The file of a definition in SQL is somewhere in the user's cache.
    let folder = user.parent().filter(|_| !definition::is_one(user));
    folder.map_or_else(|| env::current_dir().unwrap_or_default(), Path::to_owned).join(option)
}
