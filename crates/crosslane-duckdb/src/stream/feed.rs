//! The query of a stream, on a connection and a thread of its own.

use crate::database::{Connection, Database};
use crosslane::call::MapInput;
use crosslane::{DataType, Error};
use crosslane_vectors::callback::guard;
use crosslane_vectors::{StreamInput, is_version, quoted};
use libduckdb_sys as ffi;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread that waits for the query checks for results, and whether it should still
/// wait.
const TICK: Duration = Duration::from_millis(1);

/// Opens a connection for a query, with the search path of the user's connection.
pub(super) fn open(database: &Database, search_path: Option<&str>) -> Result<Connection, Error> {
    let own = database.further_connection()?;
    // A database with a locked configuration refuses these settings; the query works without them.
    // With a full buffer, DuckDB 1.5 may report an interrupt in the place of the error with which
    // the query's thread failed.
    if !is_version("v1.") {
        // DuckDB returns the first chunk only when the buffer is full, and a megabyte of small rows
        // may take long.
        let _ = own.run("SET streaming_buffer_size = '1KB'");
    }
    // Python's client looks for unknown tables among the variables of the thread that binds the
    // query. It would not find them where the query runs. Other clients have no such option.
    let _ = own.run("SET SESSION python_enable_replacements = false");
    if let Some(path) = search_path {
        own.run(&format!("SET search_path = {}", quoted(path, '\'')))?;
    }
    Ok(own)
}

/// What the query's thread sends: a batch, the end, or an error.
pub(super) type Fed = Result<Option<MapInput>, Error>;

/// The query on a thread of its own. Dropping this ends the query and waits for the thread.
#[derive(Debug)]
pub(super) struct Feed {
    batches: Option<Receiver<Fed>>,
    database: Arc<Database>,
    connection: Arc<Own>,
    thread: Option<JoinHandle<()>>,
}

/// The connection of a query. One thread uses it, and another may interrupt it.
#[derive(Debug)]
struct Own {
    connection: Connection,
    /// DuckDB's number of it.
    number: u64,
}

// SAFETY: one thread runs the query; others only interrupt it, which any thread may.
unsafe impl Sync for Own {}

impl Feed {
    pub(super) fn new(
        database: &Arc<Database>,
        connection: Connection,
        query: String,
        rows: Arc<DataType>,
        lanes: usize,
    ) -> Result<Self, Error> {
        // One batch waits in the channel while the thread makes the next one.
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

    /// The next batch; `None` if it does not come within [`TICK`].
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

/// Runs the query until its end, or until its rows are not needed any more.
fn run(own: &Own, query: &str, rows: Arc<DataType>, lanes: usize, sender: &SyncSender<Fed>) {
    let send = || -> Result<(), Error> {
        // SAFETY: the connection outlives the source, and only this thread uses it. The query was
        // wrapped for these columns.
        let mut source = unsafe { StreamInput::new(own.connection.raw(), query, rows.clone(), lanes)? };
        while let Some(batch) = source.next_batch()? {
            if sender.send(Ok(Some(batch))).is_err() {
                break;
            }
        }
        Ok(())
    };
    let ended = guard(send);
    // If the rows are not needed any more, neither is the outcome.
    let _ = sender.send(ended.map(|()| None));
}

impl Drop for Feed {
    fn drop(&mut self) {
        // From now on the thread's sends fail.
        drop(self.batches.take());
        let Some(thread) = self.thread.take() else { return };
        // Repeated, because a query that begins resets an earlier interrupt.
        while !thread.is_finished() {
            // SAFETY: the connection is open.
            unsafe { ffi::duckdb_interrupt(self.connection.connection.raw()) };
            self.database.groups.cancel(self.connection.number);
            std::thread::sleep(Duration::from_micros(500));
        }
        let _ = thread.join();
    }
}
