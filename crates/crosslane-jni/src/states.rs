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

    /// Adds rows to states. Each row has a slot. The columns are those of the function's
    /// parameters, or with `saved` one column of saved states.
    ///
    /// # Errors
    /// As [`Accumulates::update`] and [`Accumulation::load`].
    ///
    /// # Safety
    /// The table must describe such columns, with a row for each slot.
    pub unsafe fn add(&mut self, slots: &[u32], table: &[u64], saved: bool) -> Result<(), Error> {
        let function = Arc::clone(&self.function);
        let parameters = function.signature.parameters.iter().map(|parameter| &parameter.data_type);
        let types = if saved { vec![&DataType::Blob] } else { parameters.collect() };
        // SAFETY: as the caller says.
        let columns = unsafe { read_table(table, types.into_iter())? };
        let rows = Arguments { rows: 0..slots.len(), columns: columns.iter().collect() };
        let addresses = self.addresses(slots);
        let states = states(&addresses);
        if saved { self.accumulation.load(&states, &rows) } else { self.accumulation.update(&states, &rows) }
    }

    /// Adds the state of a slot to that of another. The source is empty afterwards.
    ///
    /// # Errors
    /// As [`Accumulates::combine`].
    pub fn combine(&mut self, target: u32, source: u32) -> Result<(), Error> {
        let (target, source) = (self.addresses(&[target]), self.addresses(&[source]));
        self.accumulation.combine(&states(&target), &states(&source), false)
    }

    /// Puts the results of states, or with `saved` the states as bytes, into [`Slots::taken`].
    ///
    /// # Errors
    /// As [`Accumulates::finish`] and [`Accumulation::save`].
    pub fn read(&mut self, slots: &[u32], saved: bool) -> Result<(), Error> {
        let addresses = self.addresses(slots);
        let states = states(&addresses);
        let returns = if saved { &DataType::Blob } else { &self.function.signature.returns };
        let mut results = Results::new(returns.clone());
        if saved {
            self.accumulation.save(&states, &mut results)?;
        } else {
            self.accumulation.finish(&states, &mut results)?;
        }
        self.taken = Some(results);
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
