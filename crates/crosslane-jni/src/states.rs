//! The states of an aggregate in one Spark task.
//!
//! Java knows a state by the number of a slot, which it takes and gives back; the slot has what the core keeps of a state. One thread, the
//! task's, uses them, and waits here for the guest. Another may cancel.

use crate::columns::given;
use crate::library::{ProcessLibrary, group};
use crate::task::Arguments;
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
    /// The results, or saved states, that were asked for last: Java reads them.
    pub taken: Option<Results>,
}

impl Slots {
    /// None yet.
    pub fn new(library: Arc<ProcessLibrary>, function: Arc<Function>) -> Self {
        let group = group();
        let accumulation = Accumulation::new(library, Arc::clone(&function), Arc::clone(&group));
        Self { group, accumulation, function, states: Vec::new(), free: Vec::new(), taken: None }
    }

    /// What ends whatever they wait for.
    pub fn group(&self) -> Arc<CallGroup> {
        Arc::clone(&self.group)
    }

    /// A slot with a state that nothing was added to.
    pub fn create(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.states.push(State::default());
            self.states.len() as u32 - 1
        })
    }

    /// The states of these slots are no more.
    pub fn destroy(&mut self, slots: &[u32]) {
        destroy(&states(&self.places(slots)));
        for slot in slots {
            self.states[*slot as usize] = State::default();
            self.free.push(*slot);
        }
    }

    fn places(&mut self, slots: &[u32]) -> Vec<*mut State> {
        slots.iter().map(|slot| &raw mut self.states[*slot as usize]).collect()
    }

    /// Adds rows to states: a slot for each row, and columns of the function's parameters.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    ///
    /// # Safety
    /// The table must tell of columns of the parameters' types with as many rows.
    pub unsafe fn update(&mut self, slots: &[u32], table: &[u64]) -> Result<(), Error> {
        let function = Arc::clone(&self.function);
        let types = function.signature.parameters.iter().map(|parameter| &parameter.data_type);
        // SAFETY: as the caller says.
        let columns = unsafe { given(table, types)? };
        let arguments = Arguments { rows: 0..slots.len(), columns: columns.iter().collect() };
        let places = self.places(slots);
        self.accumulation.update(&states(&places), &arguments)
    }

    /// Adds saved states to states.
    ///
    /// # Errors
    /// As [`Accumulation::load`].
    ///
    /// # Safety
    /// The table must tell of a column of bytes with as many rows.
    pub unsafe fn load(&mut self, slots: &[u32], table: &[u64]) -> Result<(), Error> {
        // SAFETY: as the caller says.
        let columns = unsafe { given(table, std::iter::once(&DataType::Blob))? };
        let saved = Arguments { rows: 0..slots.len(), columns: columns.iter().collect() };
        let places = self.places(slots);
        self.accumulation.load(&states(&places), &saved)
    }

    /// Adds the sources to the targets, and leaves nothing in the sources.
    ///
    /// # Errors
    /// As [`Accumulates::combine`].
    pub fn combine(&mut self, targets: &[u32], sources: &[u32]) -> Result<(), Error> {
        let (targets, sources) = (self.places(targets), self.places(sources));
        self.accumulation.combine(&states(&targets), &states(&sources), false)
    }

    /// The results of states, in [`Slots::taken`].
    ///
    /// # Errors
    /// As [`Accumulates::finish`].
    pub fn finish(&mut self, slots: &[u32]) -> Result<(), Error> {
        let mut results = Results::new(self.function.signature.returns.clone());
        let places = self.places(slots);
        self.accumulation.finish(&states(&places), &mut results)?;
        self.taken = Some(results);
        Ok(())
    }

    /// States as bytes, in [`Slots::taken`].
    ///
    /// # Errors
    /// As [`Accumulation::save`].
    pub fn save(&mut self, slots: &[u32]) -> Result<(), Error> {
        let mut saved = Results::new(DataType::Blob);
        let places = self.places(slots);
        self.accumulation.save(&states(&places), &mut saved)?;
        self.taken = Some(saved);
        Ok(())
    }
}

/// The states at these places.
fn states(places: &[*mut State]) -> States<'_> {
    // SAFETY: the places are slots of one `Slots`, which its only user holds mutably as long as these are in use.
    unsafe { States::new(places) }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.accumulation.end();
    }
}
