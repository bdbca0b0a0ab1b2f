//! Whether the files of a loaded library have changed, for programs that load them again.

use super::Files;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The files that a library was loaded from, and how they looked when another load was no use.
#[derive(Debug)]
pub struct Watched {
    files: Files,
    left: Option<Looks>,
}

/// The names, sizes and times of files. A change may mend a library that could not be loaded: the file
/// that was wrong is not known.
#[derive(Debug, PartialEq, Eq)]
pub struct Looks(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Watched {
    /// The files that a guest has just run.
    pub fn new(files: Files) -> Self {
        Self { files, left: None }
    }

    /// How the files look now, if the library should be loaded again: one of them has changed. If
    /// `only_new`, a library that is left alone is not loaded.
    pub fn change(&self, library: &Path, only_new: bool) -> Option<Looks> {
        if !self.files.have_changed() {
            return None;
        }
        let looks = self.looks(library);
        (!only_new || !self.is_left(&looks)).then_some(looks)
    }

    /// Leaves the library alone while its files look so, for example because it could not be loaded.
    pub fn leave(&mut self, looks: Looks) {
        self.left = Some(looks);
    }

    /// Whether the library is left alone while its files look so.
    pub fn is_left(&self, looks: &Looks) -> bool {
        self.left.as_ref() == Some(looks)
    }

    /// How the files look now that belong to a library: those of its folder, and those that it was
    /// loaded from.
    pub fn looks(&self, library: &Path) -> Looks {
        let folder = library.parent().and_then(|folder| fs::read_dir(folder).ok());
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
