//! Databases, connections, and how a query runs.
//!
//! A query runs task by task on the Ruby thread that asked for it, without the GVL, beside DuckDB's own workers;
//! between two tasks the thread looks whether the VM wants it (see [`crate::engine::session`]).
//!
//! # Lifetime
//! A connection keeps its database open. The collector may free any of them at any time, with the GVL held, and
//! closing may wait for workers that need the GVL: so it is left to a thread of its own then. In a forked child
//! nothing is closed, because DuckDB's threads are not there.

use crate::engine::rows::Rows;
use crate::engine::session::{Session, Sessions, failure, lock};
use crate::engine::{append, bind};
use crosslane_gvl::{self as gvl, Stand, check_interrupts, stand};
use libduckdb_sys as ffi;
use magnus::{Error, RArray, RHash};
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

/// How long the query's thread rests when only the workers have something to do.
const REST: Duration = Duration::from_micros(300);
pub(crate) const OK: ffi::duckdb_state = ffi::duckdb_state_DuckDBSuccess;

/// An open database.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: ffi::duckdb_database,
    process: u32,
    pub(crate) sessions: Arc<Sessions>,
}

// SAFETY: DuckDB's databases may be used by any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let raw = Raw(self.raw);
        in_own_process(self.process, move || {
            let Raw(mut raw) = { raw };
            // SAFETY: the last user is gone.
            unsafe { ffi::duckdb_close(&raw mut raw) };
        });
    }
}

/// A pointer on its way to another thread.
pub(crate) struct Raw<T>(pub(crate) T);

// SAFETY: made for DuckDB's handles, which may be used by any thread, one at a time.
unsafe impl<T> Send for Raw<T> {}

/// Closes something: here, or on a thread of its own if this one holds the GVL, or never if this is a fork.
pub(crate) fn in_own_process(process: u32, close: impl FnOnce() + Send + 'static) {
    type Work = Box<dyn FnOnce() + Send>;
    static REAPER: OnceLock<Mutex<mpsc::Sender<Work>>> = OnceLock::new();
    if process != std::process::id() {
        return;
    }
    if stand() != Stand::Locked {
        return close();
    }
    let reaper = REAPER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Work>();
        let run = move || receiver.iter().for_each(|work| work());
        // Without a thread nothing is closed, which only costs memory.
        let _ = std::thread::Builder::new().name("crosslane-reaper".into()).spawn(run);
        Mutex::new(sender)
    });
    let _ = lock(reaper).send(Box::new(close));
}

pub(crate) fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| crate::argument_error("a text for DuckDB contains a zero byte"))
}

/// # Safety
/// The text must be a C string, or null.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Runs something of DuckDB's without the GVL. It is begun even if the VM wants the thread, because what was begun
/// before must come to its end; `unblock` tells those who look.
fn uninterrupted<T>(work: impl FnOnce() -> T, unblock: impl Fn() + Sync) -> T {
    let mut work = Some(work);
    let done = gvl::without(|| work.take().map(|work| work()), unblock).flatten();
    match (done, work) {
        (Some(done), _) => done,
        (None, Some(work)) => work(),
        (None, None) => unreachable!("the work was either done or not"),
    }
}

/// The same for what calls no functions, and is soon done.
pub(crate) fn briefly<T>(work: impl FnOnce() -> T) -> T {
    uninterrupted(work, || {})
}

/// `Crosslane::Native::Database`.
#[magnus::wrap(class = "Crosslane::Native::Database", free_immediately)]
#[derive(Debug)]
pub(crate) struct Database(Mutex<Option<Arc<Handle>>>);

impl Database {
    /// Opens a file, or a database in memory; `config` maps DuckDB's settings to texts.
    pub(crate) fn open(path: Option<String>, config: RHash) -> Result<Self, Error> {
        let path = path.map(|path| c_string(&path)).transpose()?;
        let mut settings = Vec::new();
        config.foreach(|name: String, value: String| {
            settings.push((c_string(&name)?, c_string(&value)?));
            Ok(magnus::r_hash::ForEach::Continue)
        })?;
        let opened = briefly(|| {
            // SAFETY: all handles and texts live across the calls; what is allocated is freed.
            unsafe {
                let mut config = std::ptr::null_mut();
                ffi::duckdb_create_config(&raw mut config);
                for (name, value) in &settings {
                    if ffi::duckdb_set_config(config, name.as_ptr(), value.as_ptr()) != OK {
                        ffi::duckdb_destroy_config(&raw mut config);
                        return Err(format!("DuckDB refuses the setting {name:?} = {value:?}"));
                    }
                }
                let (mut raw, mut error) = (std::ptr::null_mut(), std::ptr::null_mut());
                let path = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
                let state = ffi::duckdb_open_ext(path, &raw mut raw, config, &raw mut error);
                ffi::duckdb_destroy_config(&raw mut config);
                if state == OK {
                    return Ok(Raw(raw));
                }
                let message = text(error);
                ffi::duckdb_free(error.cast());
                Err(message)
            }
        });
        let Raw(raw) = opened.map_err(|message| failure(None, &message))?;
        let handle = Handle { raw, process: std::process::id(), sessions: Arc::default() };
        Ok(Self(Mutex::new(Some(Arc::new(handle)))))
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        let Some(handle) = lock(&self.0).clone() else {
            return Err(failure(None, "the database is closed"));
        };
        if handle.process != std::process::id() {
            return Err(failure(
                None,
                "this process was forked after the database was opened; open it again in the child",
            ));
        }
        let opened = briefly(|| {
            // SAFETY: the database is open; the context is destroyed.
            unsafe {
                let mut raw = std::ptr::null_mut();
                if ffi::duckdb_connect(handle.raw, &raw mut raw) != OK {
                    return None;
                }
                let mut context = std::ptr::null_mut();
                ffi::duckdb_connection_get_client_context(raw, &raw mut context);
                let number = ffi::duckdb_client_context_get_connection_id(context);
                ffi::duckdb_destroy_client_context(&raw mut context);
                Some((Raw(raw), number))
            }
        });
        let Some((Raw(raw), number)) = opened else {
            return Err(failure(None, "DuckDB refused a connection"));
        };
        let session = handle.sessions.add(number);
        Ok(Connection(Mutex::new(Some(Arc::new(Link { raw, number, session, database: handle })))))
    }

    /// Closes the database as soon as its connections are closed.
    pub(crate) fn close(&self) {
        let handle = lock(&self.0).take();
        briefly(move || drop(handle));
    }
}

/// An open connection. DuckDB serialises its use; a query that is begun inside of a block of another one on the
/// same connection would wait for ever, so Ruby never lets that happen.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) raw: ffi::duckdb_connection,
    number: u64,
    pub(crate) session: Arc<Session>,
    pub(crate) database: Arc<Handle>,
}

// SAFETY: DuckDB's connections may be used by any thread.
unsafe impl Send for Link {}
// SAFETY: DuckDB serialises their use.
unsafe impl Sync for Link {}

impl Link {
    /// What a query that failed with this message raises.
    fn failure(&self, message: &str) -> Error {
        failure(self.session.left().or_else(|| self.database.sessions.stray(message)), message)
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

/// `Crosslane::Native::Connection`.
#[magnus::wrap(class = "Crosslane::Native::Connection", free_immediately)]
#[derive(Debug)]
pub(crate) struct Connection(Mutex<Option<Arc<Link>>>);

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

    /// Runs all statements of a text, the last with parameters, and returns its rows.
    pub(crate) fn query(&self, sql: String, parameters: RArray) -> Result<Rows, Error> {
        let link = self.link()?;
        let sql = c_string(&sql)?;
        let statements = Statements::extract(&link, &sql)?;
        let mut rows = None;
        for index in 0..statements.count {
            let statement = statements.prepare(&link, index)?;
            if index + 1 == statements.count {
                bind::bind(&statement, parameters)?;
            }
            rows = Some(statement.run(&link)?);
        }
        rows.ok_or_else(|| failure(None, "the text has no statement"))
    }

    /// Prepares one statement.
    pub(crate) fn prepare(&self, sql: String) -> Result<Statement, Error> {
        let link = self.link()?;
        let sql = c_string(&sql)?;
        let statements = Statements::extract(&link, &sql)?;
        if statements.count != 1 {
            return Err(failure(None, "prepare takes one statement"));
        }
        let prepared = statements.prepare(&link, 0)?;
        Ok(Statement { prepared, link })
    }

    /// An appender for a table.
    pub(crate) fn appender(&self, schema: Option<String>, table: String) -> Result<append::Appender, Error> {
        append::Appender::new(self.link()?, schema, &table)
    }
}

/// `Crosslane::Native::Statement`: prepared once, run many times.
#[magnus::wrap(class = "Crosslane::Native::Statement", free_immediately)]
pub(crate) struct Statement {
    prepared: Prepared,
    link: Arc<Link>,
}

impl Statement {
    pub(crate) fn query(&self, parameters: RArray) -> Result<Rows, Error> {
        if self.link.database.process != std::process::id() {
            return Err(failure(None, "this process was forked after the statement was prepared"));
        }
        bind::bind(&self.prepared, parameters)?;
        self.prepared.run(&self.link)
    }
}

/// The statements of a text.
struct Statements {
    raw: ffi::duckdb_extracted_statements,
    count: ffi::idx_t,
}

impl Drop for Statements {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_extracted(&raw mut self.raw) };
    }
}

impl Statements {
    fn extract(link: &Link, sql: &CStr) -> Result<Self, Error> {
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

    /// Plans a statement; functions with constant arguments are called here already.
    fn prepare(&self, link: &Link, index: ffi::idx_t) -> Result<Prepared, Error> {
        link.session.begin();
        let mut raw = std::ptr::null_mut();
        let prepare = || {
            // SAFETY: the statements and the connection live.
            unsafe { ffi::duckdb_prepare_extracted_statement(link.raw, self.raw, index, &raw mut raw) }
        };
        let prepared = uninterrupted(prepare, || link.session.interrupt());
        let this = Prepared(raw);
        check_interrupts()?;
        if prepared != OK {
            // SAFETY: the text belongs to the statement.
            let message = unsafe { text(ffi::duckdb_prepare_error(this.0)) };
            return Err(failure(link.session.left(), &message));
        }
        Ok(this)
    }
}

/// A prepared statement.
#[derive(Debug)]
pub(crate) struct Prepared(pub(crate) ffi::duckdb_prepared_statement);

// SAFETY: a statement may be used by any thread, one at a time.
unsafe impl Send for Prepared {}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_prepare(&raw mut self.0) };
    }
}

impl Prepared {
    /// Runs the statement to its end.
    fn run(&self, link: &Arc<Link>) -> Result<Rows, Error> {
        link.session.begin();
        let mut pending = Pending(std::ptr::null_mut());
        // SAFETY: the statement lives.
        let state = briefly(|| unsafe { ffi::duckdb_pending_prepared(self.0, &raw mut pending.0) });
        if state != OK {
            // SAFETY: the text belongs to the pending result.
            let message = unsafe { text(ffi::duckdb_pending_error(pending.0)) };
            return Err(failure(link.session.left(), &message));
        }
        loop {
            let finished =
                gvl::without(|| pending.work(&link.session), || link.session.interrupt()).unwrap_or(false);
            if let Err(unwind) = check_interrupts() {
                link.session.leave(unwind);
                // SAFETY: the connection is open. Its workers stop at their next check.
                unsafe { ffi::duckdb_interrupt(link.raw) };
                // They must be gone before the program goes on.
                briefly(|| while !pending.work(&link.session) {});
                briefly(|| drop(pending));
                return Err(failure(link.session.left(), "the query was interrupted"));
            }
            if finished {
                break;
            }
        }
        // SAFETY: the text belongs to the pending result.
        let failed = unsafe { text(ffi::duckdb_pending_error(pending.0)) };
        if !failed.is_empty() {
            briefly(|| drop(pending));
            return Err(link.failure(&failed));
        }
        let mut result = Rows::empty();
        let complete = || {
            // SAFETY: the pending result is ready, and the place for the result is valid.
            unsafe { ffi::duckdb_execute_pending(pending.0, result.raw_mut()) }
        };
        let state = uninterrupted(complete, || link.session.interrupt());
        briefly(|| drop(pending));
        if state != OK {
            // SAFETY: the text belongs to the result.
            let message = unsafe { text(ffi::duckdb_result_error(result.raw_mut())) };
            return Err(link.failure(&message));
        }
        // An exception that the query has swallowed is nobody's.
        link.session.left();
        result.describe(Arc::clone(link))?;
        Ok(result)
    }
}

/// A query that is being run.
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
    /// Works on the query until it is done, or the VM wants this thread. Whether it is done.
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
            if session.take_interrupt() {
                return false;
            }
        }
    }
}
