//! The states that a use of an aggregate has.

use super::bind_data::{all_uses, use_of};
use super::version::{is_deferred, unknown};
use crate::function::Client;
use crosslane::states::Accumulates;
use crosslane::{Error, Function, lock};
use std::sync::Arc;

/// What an adapter knows of a registered aggregate.
pub trait Aggregate: Send + Sync + 'static {
    /// A client's query begins to use the aggregate. The client lives as long as queries of its
    /// connection run. If the last use at this place in the query has `failed`, this may be another
    /// thread of that query, which then fails with the same error.
    ///
    /// # Errors
    /// If there is no such function any more.
    fn begin(&self, client: Client, failed: Option<Error>) -> Result<Arc<dyn Accumulates>, Error>;

    /// Whether a query that begins now would use this function.
    fn is_current(&self, function: &Function) -> bool;
}

/// The extra info of a registered aggregate.
pub(super) struct Registered {
    pub(super) function: Function,
    pub(super) aggregate: Box<dyn Aggregate>,
}

impl Registered {
    /// The use of the aggregate that bind data belongs to.
    pub(super) fn accumulation(&self, bound: usize, adds: bool) -> Result<Arc<dyn Accumulates>, Error> {
        let shared = use_of(bound).ok_or_else(|| unknown("the bind data"))?;
        let mut current = lock(&shared.current);
        // Without a state, the rows may belong to the next run of a prepared statement.
        let is_idle = |known: &mut Arc<dyn Accumulates>| Arc::strong_count(known) == 1 && known.is_idle();
        if let Some(known) = current.take_if(|known| adds && is_idle(known) && known.failure().is_none()) {
            if self.aggregate.is_current(known.function()) {
                known.renew();
                *current = Some(known);
            } else {
                known.end();
            }
        }
        let failure = current.as_ref().and_then(|known| known.failure());
        match (&*current, &failure) {
            (Some(known), None) => return Ok(Arc::clone(known)),
            (_, Some(failure)) if is_deferred() => {
                let failure = failure.clone();
                if !adds {
                    // DuckDB gets the error now. Other threads of the query may still come with its
                    // states.
                    *current = self.aggregate.begin(shared.client, Some(failure.clone())).ok();
                }
                return Err(failure);
            }
            _ => {}
        }
        let new = self.aggregate.begin(shared.client, failure)?;
        *current = Some(Arc::clone(&new));
        Ok(new)
    }
}

/// Gives back lanes without states, which uses of prepared statements may keep for long. Call this
/// from time to time.
pub fn sweep() {
    for shared in all_uses() {
        let mut current = lock(&shared.current);
        // A running callback holds a reference too. Without lanes there are no states, so the next
        // rows may use another version of the function.
        let idle = |known: &Arc<dyn Accumulates>| Arc::strong_count(known) == 1 && known.failure().is_none();
        if current.as_ref().is_some_and(|known| idle(known) && known.sweep()) {
            *current = None;
        }
    }
}
