//! What loaded files were loaded from, and whether it has changed.

use crosslane_process::Files;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a loaded file was loaded from, and how the last attempt to load it again failed.
pub(super) struct Watched {
    pub(super) files: Files,
    pub(super) failed: Option<Folder>,
}

impl Watched {
    pub(super) fn new(files: Files) -> Self {
        Self { files, failed: None }
    }
}

/// The names, sizes and times of the files in the folder of a library. A change may mend a library
/// that could not be loaded: the file that was wrong is not known.
#[derive(PartialEq, Eq)]
pub(super) struct Folder(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Folder {
    pub(super) fn of(library: &str) -> Self {
        let entries = Path::new(library).parent().and_then(|folder| fs::read_dir(folder).ok());
        let described = |entry: fs::DirEntry| {
            let metadata = entry.metadata().ok()?;
            metadata.is_file().then(|| (entry.path(), metadata.len(), metadata.modified().ok()))
        };
        let mut files: Vec<_> = entries.into_iter().flatten().flatten().filter_map(described).collect();
        files.sort();
        Self(files)
    }
}
