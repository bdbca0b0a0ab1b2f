//! The sandbox of a function, in addition to that of its library.

use crate::calls::{Filters, LaneFilter};
use crate::files;
use crate::machine::Machine;
use crate::privileges;
use crate::{Runtime, Sandbox};
use landlock::RulesetCreated;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// What the lanes of one function enter, in place of a [`LaneFilter`]. It is prepared once, since to look
/// at the folders of sources may take longer than a fork.
#[derive(Debug)]
pub struct Narrower {
    rules: RulesetCreated,
    filters: Filters,
    lane: LaneFilter,
    /// Whether the process has its privileges: it is in no sandbox yet.
    has_privileges: bool,
}

impl Narrower {
    /// Prepares the sandbox of a function, in the process that has loaded its library in the sandbox
    /// `library`. `runtime` is what the language needs.
    ///
    /// # Errors
    /// What is missing or wrong, for the user to read.
    pub fn new(own: &Sandbox, library: Option<&Sandbox>, runtime: &Runtime) -> Result<Self, String> {
        let machine = Machine::look()?;
        let missing = |path: std::path::PathBuf| format!("{} is not there", path.display());
        // A library describes its functions itself, and could ask for lanes that are only recorded.
        let own = Sandbox { recorded: false, ..own.clone() }.resolved().map_err(missing)?;
        if let Some(library) = library {
            let beyond = own.beyond(&library.clone().resolved().map_err(missing)?);
            if !beyond.is_empty() {
                let beyond = beyond.join(", ");
                return Err(format!("it asks for {beyond}, which the sandbox of its file does not allow"));
            }
        }
        crate::know_page_size();
        Ok(Self {
            rules: files::rules(&own, runtime, machine)?,
            filters: Filters::new(&own, machine)?,
            lane: LaneFilter::new(&own)?,
            has_privileges: library.is_none(),
        })
    }

    /// Restricts this process for good: a lane after its fork.
    ///
    /// # Errors
    /// What the kernel refuses, or if the process has several threads: hooks of the fork may have started
    /// some, and Landlock reaches one. The process must not go on then.
    pub fn enter(&self) -> io::Result<()> {
        if threads("self")? != 1 {
            return Err(io::Error::other(
                "a hook of its fork has started a thread, which the sandbox of the function would not reach",
            ));
        }
        if self.has_privileges {
            privileges::drop_all()?;
        }
        files::restrict(self.rules.try_clone()?).map_err(io::Error::other)?;
        self.filters.enter()?;
        self.lane.enter()
    }
}

/// The number of threads of a process, by its number, or of this one (`self`). A process in a sandbox cannot
/// list them, but the kernel counts them as links of the folder in which they are, beside the two of each
/// folder.
///
/// # Errors
/// If there is no such process.
pub fn threads(process: impl std::fmt::Display) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/{process}/task"))?.nlink().saturating_sub(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_are_counted() {
        // More than other tests have at the same time. Theirs may end meanwhile.
        const MANY: u64 = 50;
        assert!(threads("self").unwrap() < MANY);
        let barrier = Barrier::new(MANY as usize);
        let counted = std::thread::scope(|scope| {
            for _ in 1..MANY {
                scope.spawn(|| barrier.wait());
            }
            let counted = threads("self");
            barrier.wait();
            counted
        });
        assert!(counted.unwrap() >= MANY);
    }
}
