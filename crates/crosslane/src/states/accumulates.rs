//! The operations of adapters on states, for all kinds of lanes.

use super::state::States;
use crate::call::{Input, Output};
use crate::error::Error;
use crate::function::Function;

/// The operations of an adapter on the states of one use of an aggregate.
pub trait Accumulates: Send + Sync {
    /// Adds rows to states.
    ///
    /// # Errors
    /// The exception of the function, or the loss of a lane. After an error, all states of this
    /// accumulation are gone.
    fn update(&self, states: &States<'_>, input: &dyn Input) -> Result<(), Error>;

    /// Adds the sources to the targets, row by row. Unless `keep` is set, the sources are empty
    /// afterwards.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    fn combine(&self, targets: &States<'_>, sources: &States<'_>, keep: bool) -> Result<(), Error>;

    /// Returns the results of states.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    fn finish(&self, states: &States<'_>, output: &mut dyn Output) -> Result<(), Error>;

    /// The aggregate.
    fn function(&self) -> &Function;

    /// Whether no state is alive.
    fn is_idle(&self) -> bool;

    /// Tells the accumulation that it is used again while no state is alive. The next rows of a
    /// query may use it, or a prepared statement that runs again. An earlier cancellation does not
    /// apply to that new use.
    fn renew(&self);

    /// The error of the accumulation, if it has failed. A failed accumulation must not be used
    /// again.
    fn failure(&self) -> Option<Error>;

    /// Gives lanes back that have no states now, and had none at the last call of this method.
    /// Returns whether the accumulation can be removed: it has no lanes left, and no thread can
    /// still ask for the failure of an earlier accumulation.
    fn sweep(&self) -> bool;

    /// Ends the accumulation, with the states that are still alive.
    fn end(&self);
}
