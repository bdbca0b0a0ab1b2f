//! Registers functions, and calls them as DuckDB's scalar functions.
//!
//! DuckDB cannot forget a registered function. So each registration holds an entry of the catalog,
//! which has the current function.

use crate::database::Connection;
use crate::database::library::{AnyLibrary, Entry};
use crate::signals;
use crosslane::call::{CallGroup, CallGroups, Caller, Spent, call};
use crosslane::catalog::Current;
use crosslane::stats::now;
use crosslane::{Error, Function, Kind};
use crosslane_vectors::{Arguments, Callee, Context, Results, Scalar, register_scalar, register_table};
use std::sync::Arc;

/// The extra info of a registered function.
pub(crate) struct Registered {
    pub(crate) entry: Arc<Entry>,
    pub(crate) groups: Arc<CallGroups>,
}

/// Makes a function callable on all connections of the database, from the next statement on.
///
/// # Safety
/// The connection must be open.
pub(crate) unsafe fn register(
    connection: &Connection,
    function: &Function,
    registered: Registered,
) -> Result<(), Error> {
    // SAFETY: as the caller says.
    unsafe {
        match function.spec.kind {
            Kind::Table => register_table(connection.raw(), function, registered),
            _ => register_scalar(connection.raw(), function, registered),
        }
    }
}

/// What one worker needs for one occurrence of a function in a query.
pub(crate) struct State {
    current: Result<(Arc<AnyLibrary>, Callee), Error>,
    /// The calls of the query's connection.
    group: Arc<CallGroup>,
    /// When the query began on this worker. A cancel ends calls of queries that began before it.
    begun: u64,
    /// The number of the engine's threads.
    width: usize,
}

impl Scalar for Registered {
    type State = State;

    fn begin(&self, context: Context) -> Result<State, Error> {
        let current = self.entry.current();
        Ok(State {
            current: current.map(|Current { library, function }| (library, Callee::new(function))),
            group: signals::group_of(&self.groups, context.client),
            begun: now(),
            width: context.threads,
        })
    }

    fn callee(state: &State) -> Result<&Callee, Error> {
        state.current.as_ref().map(|(_, callee)| callee).map_err(Error::clone)
    }

    fn call(
        state: &State,
        function: &Function,
        spent: &Spent,
        arguments: &Arguments<'_>,
        results: &mut Results<'_>,
    ) -> Result<(), Error> {
        let (library, _) = state.current.as_ref().map_err(Error::clone)?;
        let caller = Caller::since(&state.group, state.width, state.begun).spending(spent);
        call(library, function, caller, arguments, results)
    }
}
