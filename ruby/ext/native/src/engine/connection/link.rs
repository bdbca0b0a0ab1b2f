//! Open connections, and how their queries run.
//!
//! A query runs task by task on the Ruby thread that called it, without the GVL, in parallel with
//! DuckDB's own threads. Between two tasks, the thread checks whether the VM needs it (see
//! [`crate::engine::connection::session`]).

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

/// The time for which the query's thread sleeps when only DuckDB's threads have work.
pub(super) const REST: Duration = Duration::from_micros(300);

/// An open connection. DuckDB runs its queries one after the other. A query that a block of another
/// query starts on the same connection would wait forever. The Ruby code prevents this.
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

/// A query uses the connection while this object lives.
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

    /// Whether a query uses the connection. Then nothing else can use it.
    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Relaxed)
    }

    /// Runs a part of a query without the GVL. The part runs even if the VM needs the thread,
    /// because an earlier part must be completed. An exception of the VM's interrupts ends the
    /// query.
    pub(super) fn finish<T>(&self, part: impl FnOnce() -> T) -> T {
        gvl::without_fail(part, || self.session.interrupt(), |unwind| self.session.stop(unwind))
    }

    /// Runs work that plans or runs a query inside DuckDB, and so may call blocks. The work uses
    /// nothing of Ruby. Its errors have DuckDB's messages. If an interrupt of the VM raises before
    /// the start, the work does not run.
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

    /// Ends a query of which not all rows were fetched. DuckDB ends it when the next query begins.
    pub(crate) fn end_stream(&self) {
        // No DuckDB thread may wait for a block now.
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

    /// Runs DuckDB's work on a separate thread. The work cannot be left before it is done, and this
    /// thread must handle the VM's interrupts meanwhile. If an interrupt raises, the work is ended
    /// and its result is dropped.
    fn aside<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        /// Reports the end of the work, also after a panic.
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
        // This thread does not use the work's data until the work is done.
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
                    // They must stop before the program continues.
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

    /// The exception for a query that failed with this message.
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
