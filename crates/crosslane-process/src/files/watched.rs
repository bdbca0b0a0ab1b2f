//! Whether the files of a loaded library have changed, for programs that load them again.

use super::Files;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How often a library is loaded again whose files have changed during each of its loads. After that, it
/// is left alone until they change at another time.
const MOST_RESTLESS: u32 = 6;
/// The pause after the first load during which a file has changed. It doubles with each further one.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The files that a library was loaded from, and how they looked when another load was no use.
#[derive(Debug)]
pub struct Watched {
    files: Files,
    left: Option<Looks>,
    /// During how many of the last loads a file has changed.
    restless: u32,
    /// A watch does not load the library again before this time.
    rests_until: Instant,
}

/// The names, sizes and times of files. A change may mend a library that could not be loaded: the file
/// that was wrong is not known.
#[derive(Debug, PartialEq, Eq)]
pub struct Looks(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Watched {
    /// The files that a guest has just run.
    pub fn new(files: Files) -> Self {
        Self { files, left: None, restless: 0, rests_until: Instant::now() }
    }

    /// How the files look now, if they are not what was loaded.
    pub fn difference(&self, library: &Path) -> Option<Looks> {
        self.files.have_changed().then(|| self.looks(library))
    }

    /// How the files look now, if a watch should load the library again. `difference` returns how they
    /// look, if they are not what was loaded.
    pub fn change(&self, difference: impl FnOnce() -> Option<Looks>) -> Option<Looks> {
        if Instant::now() < self.rests_until {
            return None;
        }
        difference().filter(|looks| self.left.as_ref() != Some(looks))
    }

    /// During how many of the last loads a file has changed.
    pub fn restless(&self) -> u32 {
        self.restless
    }

    /// Notes what a load has left. It began when the files looked like `before`, after `restless` loads
    /// during which a file had changed, and may have failed. `difference` is how the files look now, if
    /// they are not what was loaded. The user may have changed a file during the load. Or the load
    /// changes it each time: then the library rests, and at last it is left alone.
    pub fn settle(&mut self, before: &Looks, restless: u32, difference: Option<Looks>) {
        self.restless = 0;
        let Some(looks) = difference else { return };
        if looks != *before {
            self.restless = restless + 1;
            let pause = PAUSE.saturating_mul(1 << restless.min(MOST_RESTLESS));
            self.rests_until = Instant::now() + pause.min(LONGEST_PAUSE);
            if self.restless < MOST_RESTLESS {
                return;
            }
        }
        self.left = Some(looks);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// How the files look after so many changes.
    fn looks(changes: u64) -> Looks {
        Looks(vec![(PathBuf::from("a.py"), changes, None)])
    }

    #[test]
    fn a_library_that_its_own_load_changes_rests_and_is_left_alone_at_last() {
        let mut watched = Watched::new(Files::default());
        let mut pauses = Vec::new();
        for load in 0..u64::from(MOST_RESTLESS) {
            let restless = watched.restless();
            assert_eq!(u64::from(restless), load);
            // A load makes another watch.
            watched = Watched::new(Files::default());
            watched.settle(&looks(load), restless, Some(looks(load + 1)));
            assert_eq!(watched.change(|| Some(looks(load + 1))), None);
            pauses.push(watched.rests_until - Instant::now());
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        watched.rests_until = Instant::now();
        let last = u64::from(MOST_RESTLESS);
        assert_eq!(watched.change(|| Some(looks(last))), None);
        assert_eq!(watched.change(|| Some(looks(last + 1))), Some(looks(last + 1)));
    }

    #[test]
    fn a_library_that_failed_is_left_alone_until_a_file_changes() {
        let mut watched = Watched::new(Files::default());
        watched.settle(&looks(1), 0, Some(looks(1)));
        assert_eq!(watched.change(|| Some(looks(1))), None);
        assert_eq!(watched.change(|| Some(looks(2))), Some(looks(2)));
        // The user has changed a file during the load, and the next load has what it is now.
        watched.settle(&looks(2), 0, Some(looks(3)));
        assert_eq!(watched.restless(), 1);
        watched.settle(&looks(3), 1, None);
        assert_eq!(watched.restless(), 0);
    }
}
