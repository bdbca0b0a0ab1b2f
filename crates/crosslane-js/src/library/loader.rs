//! Reads the modules that a file imports.

use crate::isolate::{Host, Reason};
use crate::library::unreadable::Unreadable;
use crate::library::{packages, source};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of a module that exports `udf` and the other globals. It is for editors and type
/// checkers that do not know the globals.
const OURS: &str = "crosslane";
const OURS_SOURCE: &[u8] = b"export const { udf, udtf, udaf, Timestamp } = globalThis; export default udf;";

/// The environment variable with folders, in the format of `PATH`. Files may import modules from
/// these folders and from the file's own folder.
const IMPORTS: &str = "CROSSLANE_JS_IMPORTS";
/// The paths and texts of the files that were read.
type Files = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

pub(super) fn note(files: &Files, path: &str, source: &[u8]) {
    files.lock().unwrap_or_else(PoisonError::into_inner).push((path.to_owned(), source.to_owned()));
}

/// The host of the loading isolate. It reads modules.
pub(super) struct Loader<H> {
    host: H,
    /// The folders of modules, with symbolic links resolved.
    folders: Vec<PathBuf>,
    pub(super) files: Files,
    /// The CommonJS scripts that were read.
    scripts: RefCell<HashSet<PathBuf>>,
}

/// The folders of the environment variable.
pub(crate) fn import_folders() -> impl Iterator<Item = PathBuf> {
    let folders = std::env::var_os(IMPORTS).unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&folders).collect();
    folders.into_iter().filter(|folder| folder.is_absolute())
}

impl<H> Loader<H> {
    /// Makes a loader for a file and its imports.
    pub(super) fn new(host: H, file: &Path) -> Self {
        let own = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folders = [own.to_owned()].into_iter().chain(import_folders());
        let folders = folders.filter_map(|folder| folder.canonicalize().ok()).collect();
        Self { host, folders, files: Files::default(), scripts: RefCell::default() }
    }

    /// Makes a module of a file with this text.
    ///
    /// # Errors
    /// If the file is not a module.
    pub(super) fn module(&self, path: &Path, text: Vec<u8>) -> Result<Vec<u8>, Unreadable> {
        let read = String::from_utf8_lossy(&text);
        if !packages::is_script(path, &read, &self.folders) {
            return source::module(path, text);
        }
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok()).unwrap_or_default();
        // In a package, a file that is not there may be required where nothing calls it.
        let is_there = |name: &str| {
            if name.starts_with(['.', '/']) {
                !packages::holds(&folder) || packages::completed(&folder.join(name), &self.folders).is_some()
            } else {
                packages::find(name, &folder, &self.folders, packages::REQUIRED).is_ok()
            }
        };
        let script = source::common_js(&read, is_there);
        self.scripts.borrow_mut().insert(path.to_owned());
        Ok(script.into_bytes())
    }

    fn holds(&self, path: &Path) -> bool {
        self.folders.iter().any(|folder| path.starts_with(folder))
    }
}

/// Removes `.` and `..` from a path. The file need not exist.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            _ => plain.push(part),
        }
        plain
    })
}

impl<H: Host> Host for Loader<H> {
    fn print(&self, error: bool, text: &str) {
        self.host.print(error, text);
    }

    fn fatal(&self, reason: Reason, what: &str) {
        self.host.fatal(reason, what);
    }

    fn resolve(&self, specifier: &str, referrer: &str) -> Result<(String, Vec<u8>), String> {
        if specifier == OURS {
            return Ok((format!("{OURS}:module"), OURS_SOURCE.to_vec()));
        }
        let folder = Path::new(referrer).parent().unwrap_or(Path::new("/"));
        let folder = folder.canonicalize().unwrap_or(folder.to_owned());
        let is_relative = ["./", "../", "/"].iter().any(|start| specifier.starts_with(start));
        let path = if is_relative {
            let path = plain(&folder.join(specifier));
            let is_of_package = packages::holds(&folder);
            is_of_package.then(|| packages::completed(&path, &self.folders)).flatten().unwrap_or(path)
        } else {
            let is_required = self.scripts.borrow().contains(Path::new(referrer));
            let conditions = if is_required { packages::REQUIRED } else { packages::IMPORTED };
            packages::find(specifier, &folder, &self.folders, conditions)?
        };
        // This does not open files in other folders, so the error does not show whether they exist.
        let elsewhere = || {
            format!(
                "cannot import \"{specifier}\": it is not in the file's folder. The environment variable {IMPORTS} \
                 names other folders to import from"
            )
        };
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
        if !self.holds(&path) || folder.is_some_and(|folder| !self.holds(&folder)) {
            return Err(elsewhere());
        }
        let missing = |error: std::io::Error| {
            let other = source::ENDINGS.map(|extension| {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{extension}"));
                PathBuf::from(name)
            });
            let hint = other.iter().find(|path| path.is_file());
            let hint = hint
                .and_then(|path| path.extension())
                .map(|extension| format!("; did you mean \"{specifier}.{}\"?", extension.to_string_lossy()));
            format!("cannot import \"{specifier}\": {error}{}", hint.unwrap_or_default())
        };
        let path = path.canonicalize().map_err(missing)?;
        if !self.holds(&path) {
            return Err(elsewhere());
        }
        // Reading a pipe would block.
        if !path.is_file() {
            return Err(format!("cannot import \"{specifier}\": it is not a file"));
        }
        let source = fs::read(&path).map_err(missing)?;
        note(&self.files, &path.display().to_string(), &source);
        let source = self.module(&path, source).map_err(|unreadable| {
            let place =
                unreadable.place.map(|(line, column)| format!(" ({}:{line}:{column})", path.display()));
            format!("cannot import \"{specifier}\": {}{}", unreadable.message, place.unwrap_or_default())
        })?;
        Ok((path.display().to_string(), source))
    }
}
