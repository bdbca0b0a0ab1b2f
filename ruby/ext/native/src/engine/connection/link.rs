//! An open connection, and how its queries run.
//!
//! A query runs task by task on the Ruby thread that asked for it, without the GVL, beside DuckDB's own workers.
//! Between two tasks the thread looks whether the VM wants it (see [`crate::engine::connection::session`]).

use crate::engine::connection::closing::{Raw, in_own_process};
use crate::engine::connection::handle::Handle;
use crate::engine::connection::session::{Session, failure};
use crate::errors::io_error;
use crosslane_gvl::{self as gvl, check_interrupts};
use crosslane_vectors::Chunk;
use libduckdb_sys as ffi;
use magnus::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

/// How long the query's thread rests when only the workers have something to do.
pub(super) const REST: Duration = Duration::from_micros(300);

/// An open connection. DuckDB serialises its use; a query that is begun inside of a block of another one on the
/// same connection would wait for ever, so Ruby never lets that happen.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) raw: ffi::duckdb_connection,
    pub(super) number: u64,
    pub(crate) session: Arc<Session>,
    pub(crate) database: Arc<Handle>,
    pub(super) at_work: AtomicBool,
}

// SAFETY: DuckDB's connections may be used by any thread.
unsafe impl Send for Link {}
// SAFETY: DuckDB serialises their use.
unsafe impl Sync for Link {}

/// As long as it lives, a query is at work on the connection.
pub(super) struct Work<'a>(&'a Link);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.at_work.store(false, Relaxed);
    }
}

impl Link {
    pub(super) fn work(&self) -> Work<'_> {
        self.at_work.store(true, Relaxed);
        Work(self)
    }

    /// Whether a query is at work on the connection, so that nothing else can be.
    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Relaxed)
    }

    /// Runs a part of a query without the GVL. It is begun even if the VM wants the thread, because what was begun before
    /// must come to its end; that the VM wants it ends the query.
    pub(super) fn finish<T>(&self, part: impl FnOnce() -> T) -> T {
        gvl::without_fail(part, || self.session.interrupt(), |unwind| self.session.stop(unwind))
    }

    /// Runs what plans or runs a query inside of DuckDB, and so may call blocks; it fails with DuckDB's words. It uses
    /// nothing of Ruby. It is not begun if what the VM wants of the thread raises.
    ///
    /// # Errors
    /// Those of a query.
    pub(crate) fn run(&self, work: impl FnOnce() -> Result<(), String>) -> Result<(), Error> {
        let _work = self.work();
        check_interrupts()?;
        self.session.begin();
        self.aside(work)?.map_err(|words| self.failure(&words))?;
        match self.session.left_for_good() {
            Some(left) => Err(failure(Some(left), "the query was left")),
            None => Ok(()),
        }
    }

    /// Ends a query of which not all rows were fetched, or none. DuckDB does that when the next query begins.
    pub(crate) fn end_stream(&self) {
        // No worker is to wait for a block.
        self.session.group.cancel();
        // SAFETY: the connection is open. What comes of this query is of no interest.
        unsafe { ffi::duckdb_query(self.raw, c"SELECT 1".as_ptr(), std::ptr::null_mut()) };
    }

    /// Fetches the next chunk of a stream.
    ///
    /// # Safety
    /// The result must be a stream of this connection.
    pub(crate) unsafe fn fetch(&self, result: ffi::duckdb_result) -> Result<Chunk, Error> {
        let _work = self.work();
        // SAFETY: as the caller says.
        self.aside(|| Chunk(unsafe { ffi::duckdb_fetch_chunk(result) }))
    }

    /// Has DuckDB work on a thread of its own: it works until it is done, and this thread must see what the VM wants of
    /// it meanwhile. If that raises, the work is ended, and what it gives is dropped.
    fn aside<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        /// Tells the end of the work, however it ends.
        struct End<'a>(&'a AtomicBool, &'a Session);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Release);
                self.1.interrupt();
            }
        }
        let mut interrupted = false;
        let done = AtomicBool::new(false);
        let wait = || {
            while !done.load(Acquire) && !self.session.take_interrupt() {
                self.session.rest(REST);
            }
        };
        // This thread does not touch what the work uses until that is done.
        let work = Raw(work);
        std::thread::scope(|scope| {
            let end = End(&done, &self.session);
            let work = move || {
                let Raw(work) = { work };
                let _end = end;
                Raw(work())
            };
            let working = std::thread::Builder::new().name("crosslane-query".into());
            let working = working.spawn_scoped(scope, work).map_err(io_error)?;
            while !done.load(Acquire) {
                gvl::without(wait, || self.session.interrupt());
                if let Err(unwind) = check_interrupts() {
                    self.session.stop(unwind);
                    // SAFETY: the connection is open. Its workers stop at their next check.
                    unsafe { ffi::duckdb_interrupt(self.raw) };
                    // They must be gone before the program goes on.
                    self.finish(|| {
                        while !done.load(Acquire) {
                            wait();
                        }
                    });
                    interrupted = true;
                }
            }
            let outcome = working.join();
            if interrupted {
                return Err(failure(self.session.left(), "the query was interrupted"));
            }
            match outcome {
                Ok(Raw(outcome)) => Ok(outcome),
                Err(_) => Err(failure(None, "a defect of Crosslane: please report it")),
            }
        })
    }

    /// What a query that failed with this message raises.
    pub(crate) fn failure(&self, message: &str) -> Error {
        failure(self.session.left(), message)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.database.sessions.remove(self.number);
        let (raw, database) = (Raw(self.raw), Arc::clone(&self.database));
        in_own_process(self.database.process, move || {
            let Raw(mut raw) = { raw };
            // SAFETY: the last user is gone.
            unsafe { ffi::duckdb_disconnect(&raw mut raw) };
            drop(database);
        });
    }
}
