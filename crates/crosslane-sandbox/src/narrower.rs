//! The sandbox of a function, in addition to that of its library.

use crate::calls::{Filters, LaneFilter};
use crate::files;
use crate::machine::Machine;
use crate::privileges;
use crate::{Runtime, Sandbox};
use landlock::RulesetCreated;
use std::io;

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
        let own = own.clone().resolved().map_err(missing)?;
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

    /// Restricts this process for good. It is a lane that has one thread, and has not run anything of the
    /// library since its fork.
    ///
    /// # Errors
    /// What the kernel refuses. The process must not go on then.
    pub fn enter(&self) -> io::Result<()> {
        if self.has_privileges {
            privileges::drop_all()?;
        }
        files::restrict(self.rules.try_clone()?).map_err(io::Error::other)?;
        self.filters.enter()?;
        self.lane.enter()
    }
}
