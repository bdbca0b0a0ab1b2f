//! Connections, for Ruby.

use crate::engine::connection::closing::briefly;
use crate::engine::connection::link::Link;
use crate::engine::connection::session::{failure, lock};
use crate::engine::connection::statement::{Statement, Statements};
use crate::engine::data::append;
use crate::engine::data::rows::Rows;
use crate::engine::library::text::c_string;
use crate::engine::parameters::bind;
use crosslane::{Signature, TypeNames};
use crosslane_vectors::type_names;
use libduckdb_sys as ffi;
use magnus::{Error, RArray};
use std::sync::{Arc, Mutex};

/// `Crosslane::Native::Connection`.
#[magnus::wrap(class = "Crosslane::Native::Connection", free_immediately)]
#[derive(Debug)]
pub(crate) struct Connection(pub(super) Mutex<Option<Arc<Link>>>);

impl Connection {
    pub(crate) fn link(&self) -> Result<Arc<Link>, Error> {
        let Some(link) = lock(&self.0).clone() else {
            return Err(failure(None, "the connection is closed"));
        };
        if link.database.process != std::process::id() {
            return Err(failure(
                None,
                "this process was forked after the database was opened; open it again in the child",
            ));
        }
        Ok(link)
    }

    pub(crate) fn close(&self) {
        let link = lock(&self.0).take();
        briefly(move || drop(link));
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_none()
    }

    /// The part of a signature after the name. Names of the database's own types are replaced by
    /// their definitions. Returns `None` for an invalid signature.
    pub(crate) fn resolve(&self, signature: String) -> Result<Option<String>, Error> {
        let link = self.link()?;
        let mut names = TypeNames::default();
        link.run(|| {
            // SAFETY: the connection is open, and lent to this thread alone.
            names = unsafe { type_names(link.raw) }.map_err(|error| error.to_string())?;
            Ok(())
        })?;
        let signature = names.within(|| signature.parse::<Signature>()).ok();
        Ok(signature.map(|signature| format!("({}) -> {}", signature.declared(), signature.result())))
    }

    /// Runs all statements of a text, the last one with the parameters. Returns the rows of the
    /// last one.
    pub(crate) fn query(&self, sql: String, parameters: RArray) -> Result<Rows, Error> {
        self.run(sql, parameters, false)
    }

    /// Like `query`, but the rows are made while they are fetched. The connection
    /// belongs to them until they are freed.
    pub(crate) fn stream(&self, sql: String, parameters: RArray) -> Result<Rows, Error> {
        self.run(sql, parameters, true)
    }

    fn run(&self, sql: String, parameters: RArray, streamed: bool) -> Result<Rows, Error> {
        let link = self.link()?;
        let sql = c_string(&sql)?;
        let statements = Statements::extract(&link, &sql)?;
        let mut rows = None;
        for index in 0..statements.count {
            let statement = statements.prepare(&link, index)?;
            let last = index + 1 == statements.count;
            if last {
                bind::bind(statement.raw, &statement.parameters, parameters)?;
            }
            rows = Some(statement.run(&link, streamed && last)?);
        }
        rows.ok_or_else(|| failure(None, "the text has no statement"))
    }

    /// Prepares a single statement.
    pub(crate) fn prepare(&self, sql: String) -> Result<Statement, Error> {
        let link = self.link()?;
        let sql = c_string(&sql)?;
        let statements = Statements::extract(&link, &sql)?;
        if statements.count != 1 {
            return Err(failure(None, "prepare takes one statement"));
        }
        let prepared = statements.prepare(&link, 0)?;
        Ok(Statement(Mutex::new(Some(Arc::new((prepared, link))))))
    }

    /// An appender for columns of a table.
    pub(crate) fn appender(
        &self,
        catalog: Option<String>,
        schema: Option<String>,
        table: String,
        columns: Vec<String>,
    ) -> Result<append::Appender, Error> {
        append::Appender::of_table(self.link()?, (catalog, schema, table), &columns)
    }

    /// An appender for a query. The columns are pairs of name and type.
    pub(crate) fn query_appender(
        &self,
        sql: String,
        columns: Vec<(String, String)>,
    ) -> Result<append::Appender, Error> {
        append::Appender::of_query(self.link()?, &sql, &columns)
    }

    /// The progress of the running query in percent; nil if it is unknown.
    pub(crate) fn progress(&self) -> Result<Option<f64>, Error> {
        let link = self.link()?;
        // SAFETY: the connection is open; others may ask it while it is at work.
        let percent = unsafe { ffi::duckdb_query_progress(link.raw) }.percentage;
        Ok((percent >= 0.0).then_some(percent))
    }
}
