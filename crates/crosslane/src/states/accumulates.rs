//! What adapters do with states, whatever the lanes are.

use super::state::States;
use crate::call::{Input, Output};
use crate::error::Error;
use crate::function::Function;

/// What an adapter does with the states of one use of an aggregate.
pub trait Accumulates: Send + Sync {
    /// Adds rows to states.
    ///
    /// # Errors
    /// What the function raised, or what became of a lane; then all states of this accumulation are gone.
    fn update(&self, states: &States<'_>, input: &dyn Input) -> Result<(), Error>;

    /// Adds the sources to the targets, row by row. Sources that are not kept hold nothing afterwards.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    fn combine(&self, targets: &States<'_>, sources: &States<'_>, keep: bool) -> Result<(), Error>;

    /// The results of states.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    fn finish(&self, states: &States<'_>, output: &mut dyn Output) -> Result<(), Error>;

    /// What it uses.
    fn function(&self) -> &Function;

    /// Whether no state lives.
    fn is_idle(&self) -> bool;

    /// It is used where no state lives: by the next rows of a query, or by a prepared statement that runs again, which an earlier
    /// cancellation does not concern.
    fn renew(&self);

    /// What it has failed with, if it has: it can be used no more.
    fn failure(&self) -> Option<Error>;

    /// Gives back lanes that have no states, and had none when this was called last. Whether none is left, and nobody may ask what
    /// an accumulation before it has failed with.
    fn sweep(&self) -> bool;

    /// Ends it, with the states that still live.
    fn end(&self);
}
