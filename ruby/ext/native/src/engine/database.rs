//! Databases, connections, and how a query runs.
//!
//! A query runs task by task on the Ruby thread that asked for it, without the GVL, beside DuckDB's own workers;
//! between two tasks the thread looks whether the VM wants it (see [`crate::engine::session`]).
//!
//! # Files
//! A file that this process has open already is not opened again: DuckDB's lock on it is one between processes, and two
//! instances would overwrite each other's rows. They share one instance, and so what its connections tell each other.
//!
//! # Lifetime
//! A connection keeps its database open. The collector may free any of them at any time, with the GVL held, and
//! closing may wait for workers that need the GVL: so it is left to a thread of its own then. In a forked child
//! nothing is closed, because DuckDB's threads are not there.

use crate::engine::bind::Parameter;
use crate::engine::rows::Rows;
use crate::engine::session::{Session, Sessions, failure, lock};
use crate::engine::{append, bind};
use crosslane::{DataType, Signature, TypeNames};
use crosslane_gvl::{self as gvl, Stand, check_interrupts, stand};
use crosslane_vectors::{Chunk, data_type, type_names};
use libduckdb_sys as ffi;
use magnus::{Error, RArray, RHash};
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
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

/// DuckDB's instances by their files, and the process that they belong to: a fork has files of its own.
static INSTANCES: Mutex<Option<(u32, Raw<ffi::duckdb_instance_cache>)>> = Mutex::new(None);

fn instances() -> Raw<ffi::duckdb_instance_cache> {
    let mut instances = lock(&INSTANCES);
    match &*instances {
        Some((process, Raw(cache))) if *process == std::process::id() => Raw(*cache),
        _ => {
            // SAFETY: it lives as long as the process.
            let cache = unsafe { ffi::duckdb_create_instance_cache() };
            *instances = Some((std::process::id(), Raw(cache)));
            Raw(cache)
        }
    }
}

/// What the connections of an instance share, by its file.
fn sessions(path: Option<&CString>) -> Arc<Sessions> {
    static SHARED: Mutex<Vec<(CString, Weak<Sessions>)>> = Mutex::new(Vec::new());
    let Some(path) = path else { return Arc::default() };
    let mut shared = lock(&SHARED);
    shared.retain(|(_, sessions)| sessions.strong_count() > 0);
    let known = shared.iter().find(|(other, _)| other == path).and_then(|(_, sessions)| sessions.upgrade());
    known.unwrap_or_else(|| {
        let sessions = Arc::default();
        shared.push((path.clone(), Arc::downgrade(&sessions)));
        sessions
    })
}

/// A pointer on its way to another thread.
pub(crate) struct Raw<T>(pub(crate) T);

// SAFETY: made for DuckDB's handles, which may be used by any thread, one at a time.
unsafe impl<T> Send for Raw<T> {}

type Closing = Box<dyn FnOnce() + Send>;

/// The thread that closes things for those that hold the GVL, and its process: a fork has no such thread.
static REAPER: OnceLock<(u32, Mutex<mpsc::Sender<Closing>>)> = OnceLock::new();

/// Closes something: here, or on a thread of its own if this one holds the GVL, or never if this is a fork.
pub(crate) fn in_own_process(process: u32, close: impl FnOnce() + Send + 'static) {
    if process != std::process::id() {
        return;
    }
    if stand() != Stand::Locked {
        return close();
    }
    let (_, reaper) = REAPER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Closing>();
        let run = move || receiver.iter().for_each(|work| work());
        // Without a thread nothing is closed, which only costs memory.
        let _ = std::thread::Builder::new().name("crosslane-reaper".into()).spawn(run);
        (std::process::id(), Mutex::new(sender))
    });
    let _ = lock(reaper).send(Box::new(close));
}

/// Waits until the thread of [`in_own_process`] has closed what it was given, so that the process does not end before. That may
/// wait for other threads of Ruby, and this one may hold the GVL: so not for long.
fn await_closed() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let Some((_, reaper)) = REAPER.get().filter(|(process, _)| *process == std::process::id()) else {
        return;
    };
    let (done, closed) = mpsc::channel();
    let _ = lock(reaper).send(Box::new(move || {
        let _ = done.send(());
    }));
    let _ = closed.recv_timeout(PATIENCE);
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

/// Runs what is soon done and calls no functions, without the GVL if the VM does not want the thread.
pub(crate) fn briefly<T>(work: impl FnOnce() -> T) -> T {
    let mut work = Some(work);
    let done = gvl::without(|| work.take().map(|work| work()), || {}).flatten();
    match (done, work) {
        (Some(done), _) => done,
        (None, Some(work)) => work(),
        (None, None) => unreachable!("the work was either done or not"),
    }
}

/// `Crosslane::Native::Database`.
#[magnus::wrap(class = "Crosslane::Native::Database", free_immediately)]
#[derive(Debug)]
pub(crate) struct Database(Mutex<Option<Arc<Handle>>>);

impl Database {
    /// Opens a file, of which the path is absolute and without links, or a database in memory; `config` maps DuckDB's
    /// settings to texts.
    pub(crate) fn open(path: Option<String>, config: RHash) -> Result<Self, Error> {
        let path = path.map(|path| c_string(&path)).transpose()?;
        let mut settings = Vec::new();
        config.foreach(|name: String, value: String| {
            settings.push((c_string(&name)?, c_string(&value)?));
            Ok(magnus::r_hash::ForEach::Continue)
        })?;
        let sessions = sessions(path.as_ref());
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
                let error_place = &raw mut error;
                let state = match &path {
                    None => ffi::duckdb_open_ext(std::ptr::null(), &raw mut raw, config, error_place),
                    Some(path) => {
                        let Raw(cache) = instances();
                        ffi::duckdb_get_or_create_from_cache(
                            cache,
                            path.as_ptr(),
                            &raw mut raw,
                            config,
                            error_place,
                        )
                    }
                };
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
        let handle = Handle { raw, process: std::process::id(), sessions };
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
        Ok(Connection(Mutex::new(Some(Arc::new(Link {
            raw,
            number,
            session,
            database: handle,
            at_work: AtomicBool::new(false),
        })))))
    }

    /// Closes the database as soon as its connections are closed.
    pub(crate) fn close(&self) {
        let handle = lock(&self.0).take();
        briefly(move || drop(handle));
        briefly(await_closed);
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
    at_work: AtomicBool,
}

// SAFETY: DuckDB's connections may be used by any thread.
unsafe impl Send for Link {}
// SAFETY: DuckDB serialises their use.
unsafe impl Sync for Link {}

/// As long as it lives, a query is at work on the connection.
struct Work<'a>(&'a Link);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.at_work.store(false, Relaxed);
    }
}

impl Link {
    fn work(&self) -> Work<'_> {
        self.at_work.store(true, Relaxed);
        Work(self)
    }

    /// Whether a query is at work on the connection, so that nothing else can be.
    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Relaxed)
    }

    /// Runs a part of a query without the GVL. It is begun even if the VM wants the thread, because what was begun before
    /// must come to its end; that the VM wants it ends the query.
    fn finish<T>(&self, part: impl FnOnce() -> T) -> T {
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
            let working = working.spawn_scoped(scope, work).map_err(crate::serve::io_error)?;
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

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0).is_none()
    }

    /// The part of a signature behind the name, in which names of the database's own types are what these stand for. None if it
    /// cannot be understood.
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

    /// Runs all statements of a text, the last with parameters, and returns its rows.
    pub(crate) fn query(&self, sql: String, parameters: RArray) -> Result<Rows, Error> {
        self.run(sql, parameters, false)
    }

    /// The same, but the rows are made as they are fetched. The connection is theirs until they are freed.
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
                bind::bind(&statement, parameters)?;
            }
            rows = Some(statement.run(&link, streamed && last)?);
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

    /// An appender for a query; the columns are pairs of name and type.
    pub(crate) fn query_appender(
        &self,
        sql: String,
        columns: Vec<(String, String)>,
    ) -> Result<append::Appender, Error> {
        append::Appender::of_query(self.link()?, &sql, &columns)
    }

    /// How much of the query that runs is done, in percent; nil if that is not known.
    pub(crate) fn progress(&self) -> Result<Option<f64>, Error> {
        let link = self.link()?;
        // SAFETY: the connection is open; others may ask it while it is at work.
        let percent = unsafe { ffi::duckdb_query_progress(link.raw) }.percentage;
        Ok((percent >= 0.0).then_some(percent))
    }
}

/// `Crosslane::Native::Statement`: prepared once, run many times.
#[magnus::wrap(class = "Crosslane::Native::Statement", free_immediately)]
pub(crate) struct Statement(Mutex<Option<Arc<OnLink>>>);

/// A statement and its connection.
type OnLink = (Prepared, Arc<Link>);

impl Statement {
    pub(crate) fn query(&self, parameters: RArray) -> Result<Rows, Error> {
        let statement = self.prepared()?;
        let (prepared, link) = &*statement;
        if link.database.process != std::process::id() {
            return Err(failure(None, "this process was forked after the statement was prepared"));
        }
        bind::bind(prepared, parameters)?;
        prepared.run(link, false)
    }

    fn prepared(&self) -> Result<Arc<OnLink>, Error> {
        lock(&self.0).clone().ok_or_else(|| failure(None, "the database is closed"))
    }

    /// The parameters' names and types; nil for a type that the statement leaves open.
    pub(crate) fn parameters(&self) -> Result<Vec<(String, Option<String>)>, Error> {
        let statement = self.prepared()?;
        let described = |parameter: &Parameter| {
            (parameter.name.clone(), parameter.wanted.as_ref().map(DataType::to_string))
        };
        Ok(statement.0.parameters.iter().map(described).collect())
    }

    /// The names and types of the columns that its rows will have; nil for types that are open, or that Ruby cannot
    /// have.
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

    /// Frees it, as soon as it is not at work.
    pub(crate) fn free(&self) {
        let statement = lock(&self.0).take();
        briefly(move || drop(statement));
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
    /// Runs the statement to its end, or, if its rows are streamed, until the first are there.
    fn run(&self, link: &Arc<Link>, streamed: bool) -> Result<Rows, Error> {
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
        // Plans again what depends on parameters.
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
                // They must be gone before the program goes on.
                link.finish(|| while !pending.work(&link.session) {});
                link.finish(|| drop(pending));
                // One that came to its end meanwhile has not failed: the connection would keep it until its next query.
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
        // Any other exception that the query has swallowed is nobody's.
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
    /// Works on the query until it is done, or is to end, or the VM wants this thread. Whether it is done.
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
            // A query that is to end may go on all the same: TRY makes NULL of what its calls say.
            if session.take_interrupt() || session.is_stopped() {
                return false;
            }
        }
    }
}
