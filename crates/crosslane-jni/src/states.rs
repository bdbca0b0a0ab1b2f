//! The states of an aggregate in one Spark task.
//!
//! Java knows a state by the number of its slot, which Java takes and gives back. A slot has the
//! core's part of a state. Only the task's thread uses the slots, and it waits here for the guest.
//! Another thread may cancel that wait.

use crate::columns::{Arguments, read_table};
use crate::library::{ProcessLibrary, group};
use crosslane::call::{CallGroup, Results};
use crosslane::states::{Accumulates, Accumulation, State, States, destroy};
use crosslane::{DataType, Error, Function};
use crosslane_process::Zygote;
use std::sync::Arc;

/// States and their slots.
#[derive(Debug)]
pub struct Slots {
    group: Arc<CallGroup>,
    accumulation: Accumulation<Zygote>,
    function: Arc<Function>,
    states: Vec<State>,
    /// Slots that can be used again.
    free: Vec<u32>,
    /// The last results or saved states. Java reads them.
    pub taken: Option<Results>,
}

impl Slots {
    /// No states yet.
    pub fn new(library: Arc<ProcessLibrary>, function: Arc<Function>) -> Self {
        let group = group();
        let accumulation = Accumulation::new(library, Arc::clone(&function), Arc::clone(&group));
        Self { group, accumulation, function, states: Vec::new(), free: Vec::new(), taken: None }
    }

    /// Cancels the calls of these states.
    pub fn group(&self) -> Arc<CallGroup> {
        Arc::clone(&self.group)
    }

    /// A slot with an empty state.
    pub fn create(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.states.push(State::default());
            self.states.len() as u32 - 1
        })
    }

    /// Ends the states of these slots.
    pub fn destroy(&mut self, slots: &[u32]) {
        destroy(&states(&self.addresses(slots)));
        for slot in slots {
            self.states[*slot as usize] = State::default();
            self.free.push(*slot);
        }
    }

    fn addresses(&mut self, slots: &[u32]) -> Vec<*mut State> {
        slots.iter().map(|slot| &raw mut self.states[*slot as usize]).collect()
    }

    /// Adds rows to states. Each row has a slot, and the columns are those of the function's
    /// parameters.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    ///
    /// # Safety
    /// The table must describe columns of the parameters' types, with a row for each slot.
    pub unsafe fn update(&mut self, slots: &[u32], table: &[u64]) -> Result<(), Error> {
        let function = Arc::clone(&self.function);
        let types = function.signature.parameters.iter().map(|parameter| &parameter.data_type);
        // SAFETY: as the caller says.
        let columns = unsafe { read_table(table, types)? };
        let arguments = Arguments { rows: 0..slots.len(), columns: columns.iter().collect() };
        let addresses = self.addresses(slots);
        self.accumulation.update(&states(&addresses), &arguments)
    }

    /// Adds saved states to states.
    ///
    /// # Errors
    /// As [`Accumulation::load`].
    ///
    /// # Safety
    /// The table must describe a column of bytes, with a row for each slot.
    pub unsafe fn load(&mut self, slots: &[u32], table: &[u64]) -> Result<(), Error> {
        // SAFETY: as the caller says.
        let columns = unsafe { read_table(table, std::iter::once(&DataType::Blob))? };
        let saved = Arguments { rows: 0..slots.len(), columns: columns.iter().collect() };
        let addresses = self.addresses(slots);
        self.accumulation.load(&states(&addresses), &saved)
    }

    /// Adds the sources to the targets. The sources are empty afterwards.
    ///
    /// # Errors
    /// As [`Accumulates::combine`].
    pub fn combine(&mut self, targets: &[u32], sources: &[u32]) -> Result<(), Error> {
        let (targets, sources) = (self.addresses(targets), self.addresses(sources));
        self.accumulation.combine(&states(&targets), &states(&sources), false)
    }

    /// Puts the results of states into [`Slots::taken`].
    ///
    /// # Errors
    /// As [`Accumulates::finish`].
    pub fn finish(&mut self, slots: &[u32]) -> Result<(), Error> {
        let mut results = Results::new(self.function.signature.returns.clone());
        let addresses = self.addresses(slots);
        self.accumulation.finish(&states(&addresses), &mut results)?;
        self.taken = Some(results);
        Ok(())
    }

    /// Puts states as bytes into [`Slots::taken`].
    ///
    /// # Errors
    /// As [`Accumulation::save`].
    pub fn save(&mut self, slots: &[u32]) -> Result<(), Error> {
        let mut saved = Results::new(DataType::Blob);
        let addresses = self.addresses(slots);
        self.accumulation.save(&states(&addresses), &mut saved)?;
        self.taken = Some(saved);
        Ok(())
    }
}

/// The states at these addresses.
fn states(addresses: &[*mut State]) -> States<'_> {
    // SAFETY: the addresses are those of slots in one `Slots`, which its only user borrows mutably
    // meanwhile.
    unsafe { States::new(addresses) }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.accumulation.end();
    }
}
