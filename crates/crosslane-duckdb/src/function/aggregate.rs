//! Functions as DuckDB's aggregates.
//!
//! DuckDB cannot replace an aggregate: its name keeps its types as long as the database is open.

use crate::database::Connection;
use crate::database::library::Entry;
use crate::database::names::Names;
use crate::signals;
use crosslane::call::CallGroups;
use crosslane::catalog::Current;
use crosslane::states::{Accumulates, Accumulation};
use crosslane::{Error, Function};
use crosslane_vectors::{Client, register_aggregate};
use std::collections::HashMap;
use std::sync::Arc;

/// The extra info of a registered aggregate.
struct Registered {
    entry: Arc<Entry>,
    groups: Arc<CallGroups>,
}

impl crosslane_vectors::Aggregate for Registered {
    fn begin(&self, client: Client, failed: Option<Error>) -> Result<Arc<dyn Accumulates>, Error> {
        let Current { library, function } = self.entry.current()?;
        let group = signals::group_of(&self.groups, client);
        Ok(Arc::new(Accumulation::new(library, function, group).after(failed)))
    }

    fn is_current(&self, function: &Function) -> bool {
        self.entry.current().is_ok_and(|current| std::ptr::eq(&*current.function, function))
    }
}

/// The types of each aggregate that is registered with DuckDB, by its name in lower case.
pub(crate) type Known = HashMap<String, String>;

/// Makes a function callable on all connections of the database, from the next statement on.
///
/// # Safety
/// The connection must be open.
pub(crate) unsafe fn register(
    connection: &Connection,
    names: &Names,
    function: &Function,
    entry: Arc<Entry>,
    groups: &Arc<CallGroups>,
    known: &mut Known,
) -> Result<(), Error> {
    let name = function.name().to_lowercase();
    let types = format!("{}, NULL: {}", function.signature, function.admits_null());
    if names.has_aggregate(&name) {
        if known.get(&name) == Some(&types) {
            return Ok(());
        }
        return Err(Error::Engine(format!(
            "this version of DuckDB cannot change an aggregate: {} has other types in this database; nothing was loaded. \
             Give the function another name, or open the database again",
            function.name()
        )));
    }
    let registered = Registered { entry, groups: Arc::clone(groups) };
    // SAFETY: as the caller says.
    unsafe { register_aggregate(connection.raw(), function, registered)? };
    known.insert(name, types);
    Ok(())
}
