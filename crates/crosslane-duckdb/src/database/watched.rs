//! What loaded files were loaded from, and whether it has changed.

use crosslane::Sandbox;
use crosslane_process::Files;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a loaded file was loaded from, and how the last attempt to load it again failed.
pub(super) struct Watched {
    pub(super) files: Files,
    /// Whether it was loaded with the permission to take names.
    pub(super) replace: bool,
    /// The sandbox of the settings that it was loaded with, if they had one. The file may ask for another.
    pub(super) allowed: Option<Sandbox>,
    pub(super) failed: Option<Looks>,
}

impl Watched {
    pub(super) fn new(files: Files, replace: bool, allowed: Option<Sandbox>) -> Self {
        Self { files, replace, allowed, failed: None }
    }

    /// How the files look now that belong to a library: those of its folder, and those that it was
    /// loaded from.
    pub(super) fn looks(&self, library: &str) -> Looks {
        let folder = Path::new(library).parent().and_then(|folder| fs::read_dir(folder).ok());
        let beside = folder.into_iter().flatten().flatten().map(|entry| entry.path());
        let described = |path: PathBuf| {
            let metadata = fs::metadata(&path).ok()?;
            metadata.is_file().then(|| (path, metadata.len(), metadata.modified().ok()))
        };
        let paths = beside.chain(self.files.paths().map(PathBuf::from));
        let mut files: Vec<_> = paths.filter_map(described).collect();
        files.sort();
        Looks(files)
    }
}

/// The names, sizes and times of files. A change may mend a library that could not be loaded: the file
/// that was wrong is not known.
#[derive(PartialEq, Eq)]
pub(super) struct Looks(Vec<(PathBuf, u64, Option<SystemTime>)>);
