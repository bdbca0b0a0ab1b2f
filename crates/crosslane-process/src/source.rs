//! The origin of a library's functions.

use crosslane::{Error, Failure};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;

/// The origin of a library's functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// A file of the guest's language.
    File {
        /// The absolute path.
        path: PathBuf,
    },
    /// Functions of the engine's own process, which run on its threads.
    Thread {
        /// The name of the library.
        name: String,
    },
    /// Functions that the host program has serialised (for Python, by cloudpickle).
    Pickle {
        /// The name of the library.
        name: String,
        /// The serialised functions. They are sent one after the other in a memory file.
        #[serde(skip)]
        pickles: Vec<Vec<u8>>,
        /// Whether calls name the functions, as SQL does. If not, several functions may have the
        /// same name.
        #[serde(skip)]
        by_name: bool,
    },
}

impl Source {
    /// The library's name.
    pub fn name(&self) -> String {
        match self {
            Source::File { path } => path.display().to_string(),
            Source::Thread { name } | Source::Pickle { name, .. } => name.clone(),
        }
    }

    /// Refuses a file whose path is not UTF-8. Messages, settings and SQL are text, so no guest can
    /// be told the path of such a file.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Source::File { path } if path.to_str().is_none() => Err(Error::Load {
                library: self.name(),
                failure: Box::new(Failure {
                    class: "ValueError".into(),
                    message: "its path is not UTF-8; rename it".into(),
                    ..Failure::default()
                }),
            }),
            _ => Ok(()),
        }
    }

    /// A memory file with the serialised functions, positioned at its beginning.
    pub(crate) fn memory(&self) -> io::Result<Option<File>> {
        let Source::Pickle { pickles, .. } = self else { return Ok(None) };
        let mut file = File::from(rustix::fs::memfd_create("crosslane-functions", MemfdFlags::CLOEXEC)?);
        pickles.iter().try_for_each(|pickle| file.write_all(pickle))?;
        file.rewind()?;
        Ok(Some(file))
    }
}
