//! `crosslane_map` in a query that runs.

use super::feed::{Feed, open};
use crate::database::Database;
use crate::database::library::Entry;
use crate::signals;
use crosslane::call::{CallGroup, Caller, Map, MapOptions, MapStep};
use crosslane::stats::now;
use crosslane::{DataType, Error, Function};
use crosslane_remote::AnyZygote;
use crosslane_vectors::{Context, PendingRows, Projection};
use libduckdb_sys as ffi;
use std::sync::Arc;

/// One use of `crosslane_map` in a statement.
pub(super) struct Bound {
    /// The query, wrapped to return the columns of the function's input.
    pub(super) query: String,
    /// The schemas in which it looks for tables.
    pub(super) search_path: Option<String>,
    pub(super) entry: Arc<Entry>,
    pub(super) function: Arc<Function>,
    pub(super) options: MapOptions,
    /// The estimated number of result rows.
    pub(super) cardinality: i64,
    pub(super) context: Context,
}

/// A use of `crosslane_map` in a query that runs.
pub(super) struct Scan {
    database: Arc<Database>,
    query: String,
    search_path: Option<String>,
    function: Arc<Function>,
    /// The calls, which are cancelled with those of the user's connection.
    group: Arc<CallGroup>,
    begun: u64,
    options: MapOptions,
    projection: Projection,
    pending: PendingRows,
    state: State,
}

enum State {
    /// No row was requested yet.
    Begun(Map<AnyZygote>),
    Open(Map<AnyZygote>, Feed),
    Over,
}

impl Scan {
    pub(super) fn new(
        database: &Arc<Database>,
        bound: &Bound,
        projection: Projection,
    ) -> Result<Self, Error> {
        let current = bound.entry.current()?;
        if current.function.signature != bound.function.signature {
            return Err(Error::Engine(format!(
                "{} has other columns than when the statement was prepared; prepare it again",
                current.function.signature
            )));
        }
        let begun = now();
        let users = signals::group_of(&database.groups, bound.context.client);
        let group = CallGroup::with_stop(move || users.should_end(begun));
        Ok(Self {
            database: Arc::clone(database),
            query: bound.query.clone(),
            search_path: bound.search_path.clone(),
            function: Arc::clone(&current.function),
            group: Arc::new(group),
            begun,
            options: bound.options,
            projection,
            pending: PendingRows::default(),
            state: State::Begun(Map::new(current.library, current.function, bound.options)?),
        })
    }

    /// Puts the next rows into a chunk. Returns how many; 0 if there are no more.
    ///
    /// # Safety
    /// The chunk must be an empty one of the projection's columns.
    pub(super) unsafe fn next(&mut self, output: ffi::duckdb_data_chunk) -> Result<usize, Error> {
        // SAFETY: as the caller says.
        let rows = unsafe { self.pending.next(output) }?;
        if rows > 0 {
            return Ok(rows);
        }
        self.open()?;
        let State::Open(map, feed) = &mut self.state else { return Ok(0) };
        loop {
            let caller = Caller::since(&self.group, 1, self.begun);
            match map.next(caller)? {
                MapStep::Done => return Ok(0),
                MapStep::Output(batch, first) => {
                    // SAFETY: as above; the batch has the columns of the function's table.
                    return unsafe { self.pending.begin(&batch, first, &self.projection, output) };
                }
                MapStep::Wants => {}
            }
            match feed.next() {
                Some(Ok(Some(batch))) => map.put(batch),
                Some(Ok(None)) => map.end(),
                Some(Err(error)) => return Err(error),
                None if self.group.should_end(self.begun) => {
                    return Err(Error::Cancelled { function: self.function.name().into() });
                }
                None => {
                    // The query may be slower than the function.
                    if let Some((batch, first)) = map.ready(caller)? {
                        // SAFETY: as above.
                        return unsafe { self.pending.begin(&batch, first, &self.projection, output) };
                    }
                }
            }
        }
    }

    /// Ends the query and the lanes' work for it.
    pub(super) fn end(&mut self) {
        self.state = State::Over;
    }

    fn open(&mut self) -> Result<(), Error> {
        if let State::Begun(_) = self.state {
            let own = open(&self.database, self.search_path.as_deref())?;
            let rows = self.function.signature.parameters.first().map(|table| table.data_type.clone());
            let rows = Arc::new(rows.unwrap_or(DataType::Any));
            let feed = Feed::new(&self.database, own, self.query.clone(), rows, self.options.lanes)?;
            if let State::Begun(map) = std::mem::replace(&mut self.state, State::Over) {
                self.state = State::Open(map, feed);
            }
        }
        Ok(())
    }
}
