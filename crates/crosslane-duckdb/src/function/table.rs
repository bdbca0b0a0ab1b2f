//! Functions as DuckDB's table functions.
//!
//! DuckDB keeps the first table function of a name, and can neither replace nor overload it. So a
//! registration stands for the catalog's current function. Its columns may change; only its
//! parameters stay the same.

use super::scalar::Registered;
use crate::database::library::AnyLibrary;
use crate::signals;
use crosslane::call::CallGroup;
use crosslane::catalog::Current;
use crosslane::{Error, Function};
use crosslane_remote::AnyZygote;
use crosslane_vectors::{Context, Query, Table};
use std::sync::Arc;

/// A table function in a query that runs.
pub(crate) struct Scanned {
    current: Current<AnyZygote>,
    /// The calls of the query's connection.
    group: Arc<CallGroup>,
}

impl Table for Registered {
    type Zygote = AnyZygote;
    type Query = Scanned;

    fn function(&self) -> Result<Arc<Function>, Error> {
        Ok(self.entry.current()?.function)
    }

    fn begin(&self, context: Context) -> Result<Scanned, Error> {
        Ok(Scanned { current: self.entry.current()?, group: signals::group_of(&self.groups, context.client) })
    }
}

impl Query<AnyZygote> for Scanned {
    fn library(&self) -> &Arc<AnyLibrary> {
        &self.current.library
    }

    fn function(&self) -> &Arc<Function> {
        &self.current.function
    }

    fn group(&self) -> &CallGroup {
        &self.group
    }
}
