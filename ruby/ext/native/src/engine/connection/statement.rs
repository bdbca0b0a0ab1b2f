//! Statements: they are extracted from a text, prepared, and run.

use crate::engine::connection::closing::briefly;
use crate::engine::connection::link::{Link, REST};
use crate::engine::connection::session::{Session, failure, lock};
use crate::engine::data::rows::Rows;
use crate::engine::library::text::{OK, text};
use crate::engine::parameters::bind::{self, Parameter};
use crosslane::DataType;
use crosslane_gvl::{self as gvl, check_interrupts};
use crosslane_vectors::data_type;
use libduckdb_sys as ffi;
use magnus::{Error, RArray};
use std::ffi::CStr;
use std::sync::{Arc, Mutex};

/// `Crosslane::Native::Statement`: it is prepared once and run many times.
#[magnus::wrap(class = "Crosslane::Native::Statement", free_immediately)]
pub(crate) struct Statement(pub(super) Mutex<Option<Arc<OnLink>>>);

/// A statement and its connection.
pub(super) type OnLink = (Prepared, Arc<Link>);

impl Statement {
    pub(crate) fn query(&self, parameters: RArray) -> Result<Rows, Error> {
        let statement = self.prepared()?;
        let (prepared, link) = &*statement;
        if link.database.process != std::process::id() {
            return Err(failure(None, "this process was forked after the statement was prepared"));
        }
        bind::bind(prepared.raw, &prepared.parameters, parameters)?;
        prepared.run(link, false)
    }

    fn prepared(&self) -> Result<Arc<OnLink>, Error> {
        lock(&self.0).clone().ok_or_else(|| failure(None, "the database is closed"))
    }

    /// The names and types of the parameters; nil for a type that the statement does not determine.
    pub(crate) fn parameters(&self) -> Result<Vec<(String, Option<String>)>, Error> {
        let statement = self.prepared()?;
        let described = |parameter: &Parameter| {
            (parameter.name.clone(), parameter.wanted.as_ref().map(DataType::to_string))
        };
        Ok(statement.0.parameters.iter().map(described).collect())
    }

    /// The names and types of the result's columns; nil for types that are not determined, or that
    /// Ruby cannot read.
    pub(crate) fn columns(&self) -> Result<Vec<(String, Option<String>)>, Error> {
        let statement = self.prepared()?;
        let raw = statement.0.raw;
        // SAFETY: the statement lives; names and types are freed.
        let described = |index| unsafe {
            let name = ffi::duckdb_prepared_statement_column_name(raw, index);
            let mut logical = ffi::duckdb_prepared_statement_column_logical_type(raw, index);
            let known = data_type(logical).ok();
            ffi::duckdb_destroy_logical_type(&raw mut logical);
            let described = (text(name), known.as_ref().map(DataType::to_string));
            ffi::duckdb_free(name.cast_mut().cast());
            described
        };
        // SAFETY: as above.
        let count = unsafe { ffi::duckdb_prepared_statement_column_count(raw) };
        Ok((0..count).map(described).collect())
    }

    /// Frees the statement after its last use.
    pub(crate) fn free(&self) {
        let statement = lock(&self.0).take();
        briefly(move || drop(statement));
    }
}

/// The statements of a text.
pub(super) struct Statements {
    raw: ffi::duckdb_extracted_statements,
    pub(super) count: ffi::idx_t,
}

impl Drop for Statements {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_extracted(&raw mut self.raw) };
    }
}

impl Statements {
    pub(super) fn extract(link: &Link, sql: &CStr) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        let count = briefly(|| {
            // SAFETY: the connection is open, and the text lives across the call.
            unsafe { ffi::duckdb_extract_statements(link.raw, sql.as_ptr(), &raw mut raw) }
        });
        let this = Self { raw, count };
        if count == 0 {
            // SAFETY: the statements belong to us until they are destroyed.
            let message = unsafe { text(ffi::duckdb_extract_statements_error(this.raw)) };
            let message = if message.is_empty() { "the text has no statement" } else { &message };
            return Err(failure(None, message));
        }
        Ok(this)
    }

    /// Plans a statement. The planning already calls functions that have constant arguments.
    pub(super) fn prepare(&self, link: &Link, index: ffi::idx_t) -> Result<Prepared, Error> {
        let _work = link.work();
        link.session.begin_plan();
        let mut raw = std::ptr::null_mut();
        let prepare = || {
            // SAFETY: the statements and the connection live.
            unsafe { ffi::duckdb_prepare_extracted_statement(link.raw, self.raw, index, &raw mut raw) }
        };
        let prepared = link.finish(prepare);
        let mut this = Prepared { raw, parameters: Vec::new() };
        if let Some(left) = link.session.left_for_good() {
            return Err(failure(Some(left), "the query was left while it was planned"));
        }
        check_interrupts()?;
        if prepared != OK {
            // SAFETY: the text belongs to the statement.
            let message = unsafe { text(ffi::duckdb_prepare_error(this.raw)) };
            return Err(failure(link.session.left(), &message));
        }
        // SAFETY: the statement lives.
        this.parameters = unsafe { bind::parameters(this.raw) };
        Ok(this)
    }
}

/// A prepared statement.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) raw: ffi::duckdb_prepared_statement,
    pub(crate) parameters: Vec<Parameter>,
}

// SAFETY: a statement may be used by any thread, one at a time.
unsafe impl Send for Prepared {}
// SAFETY: it is run by the thread that has its connection.
unsafe impl Sync for Prepared {}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_prepare(&raw mut self.raw) };
    }
}

impl Prepared {
    /// Runs the statement to its end. If its rows are streamed, it runs until the first rows are
    /// ready.
    pub(super) fn run(&self, link: &Arc<Link>, streamed: bool) -> Result<Rows, Error> {
        let mut rows = self.execute(link, streamed)?;
        if streamed {
            rows.stream();
        }
        Ok(rows)
    }

    fn execute(&self, link: &Arc<Link>, streamed: bool) -> Result<Rows, Error> {
        let _work = link.work();
        link.session.begin();
        let mut pending = Pending(std::ptr::null_mut());
        let begin =
            if streamed { ffi::duckdb_pending_prepared_streaming } else { ffi::duckdb_pending_prepared };
        // The parts of the plan that depend on parameters are planned again.
        // SAFETY: the statement lives.
        let plan = || unsafe { begin(self.raw, &raw mut pending.0) };
        let state = link.finish(plan);
        if state != OK {
            // SAFETY: the text belongs to the pending result.
            let message = unsafe { text(ffi::duckdb_pending_error(pending.0)) };
            return Err(failure(link.session.left(), &message));
        }
        loop {
            let finished =
                gvl::without(|| pending.work(&link.session), || link.session.interrupt()).unwrap_or(false);
            if let Err(unwind) = check_interrupts() {
                link.session.stop(unwind);
            }
            if link.session.is_stopped() {
                // SAFETY: the connection is open. Its workers stop at their next check.
                unsafe { ffi::duckdb_interrupt(link.raw) };
                // They must stop before the program continues.
                link.finish(|| while !pending.work(&link.session) {});
                link.finish(|| drop(pending));
                // If the query was completed meanwhile, it has not failed, and the connection would
                // keep it until its next query.
                link.finish(|| link.end_stream());
                return Err(failure(link.session.left(), "the query was interrupted"));
            }
            if finished {
                break;
            }
        }
        // SAFETY: the text belongs to the pending result.
        let failed = unsafe { text(ffi::duckdb_pending_error(pending.0)) };
        if !failed.is_empty() {
            link.finish(|| drop(pending));
            return Err(link.failure(&failed));
        }
        let mut result = Rows::empty();
        let complete = || {
            // SAFETY: the pending result is ready, and the place for the result is valid.
            unsafe { ffi::duckdb_execute_pending(pending.0, result.raw_mut()) }
        };
        let state = link.finish(complete);
        link.finish(|| drop(pending));
        if state != OK {
            // SAFETY: the text belongs to the result.
            let message = unsafe { text(ffi::duckdb_result_error(result.raw_mut())) };
            return Err(link.failure(&message));
        }
        // Any other exception that DuckDB has ignored is dropped.
        if let Some(left) = link.session.left_for_good() {
            if streamed {
                drop(result);
                link.finish(|| link.end_stream());
            }
            return Err(failure(Some(left), "the query was left while it was planned"));
        }
        result.describe(Arc::clone(link))?;
        Ok(result)
    }
}

/// A running query.
struct Pending(ffi::duckdb_pending_result);

// SAFETY: used by one thread at a time.
unsafe impl Send for Pending {}

impl Drop for Pending {
    fn drop(&mut self) {
        // SAFETY: ours; destroying null does nothing.
        unsafe { ffi::duckdb_destroy_pending(&raw mut self.0) };
    }
}

impl Pending {
    /// Works on the query until it is done, or must end, or the VM needs this thread. Returns
    /// whether it is done.
    fn work(&mut self, session: &Session) -> bool {
        loop {
            // SAFETY: the pending result lives.
            let finished = unsafe {
                let state = ffi::duckdb_pending_execute_task(self.0);
                if state == ffi::duckdb_pending_state_DUCKDB_PENDING_NO_TASKS_AVAILABLE {
                    session.rest(REST);
                }
                ffi::duckdb_pending_execution_is_finished(state)
            };
            if finished {
                return true;
            }
            // A query that must end may continue: TRY turns the errors of its calls into NULL.
            if session.take_interrupt() || session.is_stopped() {
                return false;
            }
        }
    }
}
