//! The query of a stream, on a connection and a thread of its own.

use crate::database::{Connection, Database};
use crosslane::call::MapInput;
use crosslane::{DataType, Error};
use crosslane_vectors::callback::guard;
use crosslane_vectors::{StreamInput, is_version};
use libduckdb_sys as ffi;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often who waits for the query looks for results, and whether it is still to wait.
const TICK: Duration = Duration::from_millis(1);

/// Opens a connection for a query, which looks for tables where the user's does.
pub(super) fn open(database: &Database, search_path: Option<&str>) -> Result<Connection, Error> {
    let own = database.further_connection()?;
    // What a database with a locked configuration refuses, the query does without.
    // With a full buffer, DuckDB 1.5 may report an interrupt in the place of the error with which the query's thread failed.
    if !is_version("v1.") {
        // A full buffer stops the query, but DuckDB gives its first chunk only when the buffer is full, and a MB of small rows
        // may take long.
        let _ = own.run("SET streaming_buffer_size = '1KB'");
    }
    // The client for Python would look for unknown tables among the variables of the thread that binds the query, and not find
    // them where it runs. Other clients have no such option.
    let _ = own.run("SET SESSION python_enable_replacements = false");
    if let Some(path) = search_path {
        own.run(&format!("SET search_path = '{}'", path.replace('\'', "''")))?;
    }
    Ok(own)
}

/// What the query's thread gives: a batch, the end, or an error.
pub(super) type Fed = Result<Option<MapInput>, Error>;

/// The query, on a thread of its own. It ends when this is dropped.
pub(super) struct Feed {
    batches: Option<Receiver<Fed>>,
    database: Arc<Database>,
    connection: Arc<Own>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

/// The connection of a query. One thread uses it, and another may interrupt it.
struct Own {
    connection: Connection,
    /// DuckDB's number of it.
    number: u64,
}

// SAFETY: beside the thread that runs the query others only interrupt it, which any thread may.
unsafe impl Sync for Own {}

impl Feed {
    pub(super) fn new(
        database: &Arc<Database>,
        connection: Connection,
        query: String,
        rows: Arc<DataType>,
        lanes: usize,
    ) -> Result<Self, Error> {
        // One batch waits here, and the next is made meanwhile.
        let (sender, batches) = sync_channel(1);
        let own = Arc::new(Own { number: connection.number_of_its_own(), connection });
        let runs = Arc::clone(&own);
        let run = move || run(&runs, &query, rows, lanes, &sender);
        let thread = std::thread::Builder::new().name("crosslane-query".into()).spawn(run);
        let thread = thread.map_err(|error| Error::Engine(format!("no thread: {error}")))?;
        Ok(Self {
            batches: Some(batches),
            database: Arc::clone(database),
            connection: own,
            thread: Some(thread),
        })
    }

    /// The next batch; `None` if it is not there after a moment.
    pub(super) fn next(&self) -> Option<Fed> {
        match self.batches.as_ref()?.recv_timeout(TICK) {
            Ok(fed) => Some(fed),
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Error::Engine("the query's thread has ended".into())))
            }
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

/// Runs the query as long as its rows are wanted.
fn run(own: &Own, query: &str, rows: Arc<DataType>, lanes: usize, sender: &SyncSender<Fed>) {
    let send = || -> Result<(), Error> {
        // SAFETY: the connection outlives the source, and this thread alone uses it. The query was made for these
        // columns.
        let mut source = unsafe { StreamInput::new(own.connection.raw(), query, rows.clone(), lanes)? };
        while let Some(batch) = source.next_batch()? {
            if sender.send(Ok(Some(batch))).is_err() {
                break;
            }
        }
        Ok(())
    };
    let ended = guard(send);
    // Whoever does not want rows any more does not want to know, either.
    let _ = sender.send(ended.map(|()| None));
}

impl Drop for Feed {
    fn drop(&mut self) {
        // What the thread sends finds nobody.
        drop(self.batches.take());
        let Some(thread) = self.thread.take() else { return };
        // A query that has just begun forgets that it was interrupted before.
        while !thread.is_finished() {
            // SAFETY: the connection is open.
            unsafe { ffi::duckdb_interrupt(self.connection.connection.raw()) };
            self.database.groups.cancel(self.connection.number);
            std::thread::sleep(Duration::from_micros(500));
        }
        let _ = thread.join();
    }
}
