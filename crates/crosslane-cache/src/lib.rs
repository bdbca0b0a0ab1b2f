//! Results of functions that outlive the program (`cache`), in a file of SQLite. Several programs may
//! use a file at the same time.
//!
//! # What belongs together
//! A function is known by its name, its signature and its version, which is a hash of its file and of
//! the modules that were imported when it was loaded. Copies of a file elsewhere have the same
//! version. A result is found by a hash of the arguments' types and bits. Programs may use several
//! versions of a function at the same time. A version that no program has opened for [`FORGOTTEN`] is
//! deleted when another one is opened.
//!
//! # Speed
//! Keys are as good as random, so each new one changes another page of their index. All that is
//! written for a page is the page. So the index has only keys, and short ones, and the results are
//! appended to a table of their own.
//!
//! # Failures
//! If a file cannot be opened, the function cannot be loaded. Later, no error of the file ends a
//! query: the function is called, and the error is written to the log. If another program writes for
//! longer than [`PATIENCE`], nothing is read or written for the time [`PAUSE`], because an engine's
//! thread cannot be cancelled in such a wait.
//!
//! # Trust
//! A result is a batch, which the caller checks as it checks that of a guest. A file that another
//! user may write is refused, and so is a file of another program ([`APPLICATION`]).
//!
//! # Descriptors
//! The kernel drops all locks that a process has on a file when the process closes any of its
//! descriptors of that file. So this library opens the file with SQLite only. It makes a new file
//! under another name, and closes it before it gets its name.

use crosslane::Store;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, TransactionBehavior, params};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a query waits for another program that writes.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a load waits for it.
const PATIENCE_OF_LOADS: Duration = Duration::from_secs(2);
/// For how long nothing is read or written after an error.
const PAUSE: Duration = Duration::from_secs(5);
/// For how long a version of a function is kept that no program opens.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many old results are deleted at once, while others cannot write.
const AT_ONCE: u32 = 10_000;
/// How many pages of 4 KiB a connection keeps in memory.
const CACHED_PAGES: i32 = 2_000;
/// How many changed pages wait in the log until they are written to the file.
const WAITING_PAGES: i32 = 4_000;
/// Marks a file as one of this library: "xlan".
const APPLICATION: i32 = 0x786c_616e;
/// The version of the tables.
const VERSION: i32 = 1;
const TABLES: &str = "
    CREATE TABLE functions(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        file TEXT NOT NULL, name TEXT NOT NULL, signature TEXT NOT NULL, version TEXT NOT NULL,
        opened INTEGER NOT NULL,
        UNIQUE (name, signature, version));
    CREATE TABLE results(
        function INTEGER NOT NULL, key BLOB NOT NULL, made INTEGER NOT NULL, result BLOB NOT NULL);
    CREATE UNIQUE INDEX keys ON results(function, key);
    CREATE INDEX times ON results(function, made);";

/// A function whose results are kept.
#[derive(Debug, Clone)]
pub struct Kept<'a> {
    /// The user's file, for people who look at the cache.
    pub file: &'a str,
    /// The name of the function.
    pub name: &'a str,
    /// Its signature.
    pub signature: &'a str,
    /// Changes whenever the results may change.
    pub version: &'a str,
    /// How long a result holds.
    pub ttl: Option<Duration>,
}

/// The results of one function in a file.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// Always there, until the drop.
    connection: Option<Mutex<Connection>>,
    function: i64,
    /// Writes a line to the user's log.
    log: fn(&str),
    /// The time until which nothing is read or written after an error, in milliseconds since `begun`. It
    /// is 0 after a success.
    pauses_until: AtomicU64,
    begun: Instant,
    process: u32,
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A fork must not close it: SQLite's connections cannot be used there.
            std::mem::forget(self.connection.take());
        }
    }
}

impl Cache {
    /// Opens the file, and makes it if it is not there. `None` if another program writes for so long
    /// that nothing can be kept now, which the log says.
    ///
    /// # Errors
    /// Why the file cannot be used, as a text that names it.
    pub fn open(path: &Path, kept: &Kept<'_>, log: fn(&str)) -> Result<Option<Self>, String> {
        let wrong = |why: &dyn fmt::Display| format!("the cache {} cannot be used: {why}", path.display());
        let path = create(path).map_err(|error| wrong(&error))?;
        let (connection, function) = match connect(&path, kept) {
            Ok(opened) => opened,
            Err(Wrong::Sqlite(error)) if is_busy(&error) => {
                let path = path.display();
                log(&format!("another program writes to the cache {path}, so nothing is kept there now"));
                return Ok(None);
            }
            Err(error) => return Err(wrong(&error)),
        };
        Ok(Some(Self {
            path,
            connection: Some(Mutex::new(connection)),
            function,
            log,
            pauses_until: AtomicU64::new(0),
            begun: Instant::now(),
            process: std::process::id(),
        }))
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn with<T: Default>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> T {
        if self.process != std::process::id() || self.now() < self.pauses_until.load(Relaxed) {
            return T::default();
        }
        let mut connection = self.connection();
        // Another thread may have waited in vain meanwhile.
        if self.now() < self.pauses_until.load(Relaxed) {
            return T::default();
        }
        match work(&mut connection) {
            Ok(done) => {
                self.pauses_until.store(0, Relaxed);
                done
            }
            Err(error) => {
                // One line for all errors until a success.
                if self.pauses_until.swap(self.now() + PAUSE.as_millis() as u64, Relaxed) == 0 {
                    let path = self.path.display();
                    (self.log)(&format!(
                        "the cache {path} fails, so functions are called without it: {error}"
                    ));
                }
                T::default()
            }
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        let connection = self.connection.as_ref().expect("it is there until the drop");
        connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

impl Store for Cache {
    fn find(&self, types: &str, keys: &[&[u8]]) -> Vec<Option<(Vec<u8>, u64)>> {
        self.with(|connection| {
            // One transaction takes the file's lock once.
            let transaction = connection.transaction()?;
            let mut select = transaction
                .prepare_cached("SELECT result, made FROM results WHERE function = ? AND key = ?")?;
            let found = keys.iter().map(|key| {
                // Another program may have written values of other types.
                let read = |row: &Row<'_>| {
                    let made = row.get::<_, i64>(1).ok().and_then(|made| u64::try_from(made).ok());
                    Ok(row.get(0).ok().zip(made))
                };
                let found = select.query_row(params![self.function, hash(types, key)], read).optional()?;
                Ok(found.flatten())
            });
            found.collect()
        })
    }

    fn keep(&self, types: &str, results: &[(&[u8], &[u8])], made: u64) {
        if results.is_empty() {
            return;
        }
        self.with(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut insert = transaction.prepare_cached(
                "INSERT INTO results VALUES (?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET made = excluded.made, result = excluded.result",
            )?;
            for (key, result) in results {
                insert.execute(params![self.function, hash(types, key), made as i64, result])?;
            }
            drop(insert);
            transaction.commit()
        });
    }
}

/// The key of some arguments in the file: half of a SHA-256, of which no two are equal in practice.
/// Arguments of other types may have the same bits.
fn hash(types: &str, key: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update((types.len() as u64).to_le_bytes());
    hash.update(types);
    hash.update(key);
    hash.finalize()[..16].try_into().expect("a SHA-256 has 32 bytes")
}

/// Why a file cannot be used.
#[derive(Debug)]
enum Wrong {
    Sqlite(rusqlite::Error),
    Other(String),
}

impl From<rusqlite::Error> for Wrong {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => error.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Makes the file, if it is not there. Only its user may read it: results may be secret. Returns its
/// path without symbolic links.
fn create(path: &Path) -> io::Result<PathBuf> {
    let (folder, name) = (path.parent().unwrap_or(Path::new("")), path.file_name());
    let name = name.ok_or_else(|| io::Error::other("it is no file"))?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = folder.canonicalize()?.join(name);
    if fs::symlink_metadata(&path).is_err() {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}.{}", std::process::id(), NUMBER.fetch_add(1, Relaxed)));
        drop(OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?);
        // Another program may have made the file meanwhile. A link does not replace it.
        let linked = fs::hard_link(&new, &path);
        fs::remove_file(&new)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let file = fs::symlink_metadata(&path)?;
    if !file.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    if file.uid() != rustix::process::geteuid().as_raw() || file.mode() & 0o022 != 0 {
        return Err(io::Error::other("other users may write it"));
    }
    Ok(path)
}

/// Opens the file. Returns the number of the function there.
fn connect(path: &Path, kept: &Kept<'_>) -> Result<(Connection, i64), Wrong> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE_OF_LOADS)?;
    prepare(&mut connection)?;
    let function = enter(&mut connection, kept)?;
    connection.busy_timeout(PATIENCE)?;
    Ok((connection, function))
}

/// Makes the tables of a new file, and refuses a file of others.
fn prepare(connection: &mut Connection) -> Result<(), Wrong> {
    let number = |connection: &Connection, name: &str| -> rusqlite::Result<i32> {
        connection.pragma_query_value(None, name, |row| row.get(0))
    };
    if number(connection, "application_id")? != APPLICATION {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another program may have made the tables meanwhile.
        if number(&transaction, "application_id")? != APPLICATION {
            let tables: i64 =
                transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if tables > 0 {
                return Err(Wrong::Other("it is a database of something else".into()));
            }
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        transaction.commit()?;
    }
    let version = number(connection, "user_version")?;
    if version != VERSION {
        return Err(Wrong::Other(format!(
            "it has version {version}, and this Crosslane reads version {VERSION}"
        )));
    }
    // A file in the mode WAL can be read while it is written. A result may be lost if the machine
    // stops, but the file stays correct.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "cache_size", CACHED_PAGES)?;
    connection.pragma_update(None, "wal_autocheckpoint", WAITING_PAGES)?;
    Ok(())
}

/// The number of a function. Deletes what does not hold any more.
fn enter(connection: &mut Connection, kept: &Kept<'_>) -> rusqlite::Result<i64> {
    let Kept { file, name, signature, version, ttl } = kept;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = |time: Duration| now.saturating_sub(time).as_millis() as i64;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute(
        "INSERT INTO functions(file, name, signature, version, opened) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET opened = excluded.opened, file = excluded.file",
        params![file, name, signature, version, before(Duration::ZERO)],
    )?;
    let function = transaction.query_row(
        "SELECT id FROM functions WHERE name = ? AND signature = ? AND version = ?",
        [name, signature, version],
        |row| row.get(0),
    )?;
    transaction.execute(
        "DELETE FROM functions WHERE opened < ? AND NOT EXISTS (SELECT 1 FROM results WHERE function = id)",
        [before(FORGOTTEN)],
    )?;
    let forgotten = transaction
        .query_row("SELECT id FROM functions WHERE opened < ? LIMIT 1", [before(FORGOTTEN)], |row| row.get(0))
        .optional()?;
    let oldest = ttl.map(before);
    for (function, oldest) in [(forgotten, Some(i64::MAX)), (Some(function), oldest)] {
        if let (Some(function), Some(oldest)) = (function, oldest) {
            transaction.execute(
                "DELETE FROM results WHERE rowid IN
                 (SELECT rowid FROM results WHERE function = ? AND made < ? LIMIT ?)",
                params![function, oldest, AT_ONCE],
            )?;
        }
    }
    transaction.commit()?;
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(version: &'static str) -> Kept<'static> {
        Kept { file: "/f.py", name: "f", signature: "f(x BIGINT) -> BIGINT", version, ttl: None }
    }

    fn silent(line: &str) {
        panic!("{line}");
    }

    /// A path in a folder of its own, which is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("crosslane-cache-{}-{name}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn path(&self) -> PathBuf {
            self.0.join("below/results.db")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn results_are_found_again() {
        let folder = Folder::new("again");
        let cache = Cache::open(&folder.path(), &kept("1"), silent).unwrap().unwrap();
        cache.keep("(BIGINT)", &[(b"one", b"1"), (b"two", b"2")], 5);
        cache.keep("(BIGINT)", &[(b"one", b"I")], 6);
        let again = Cache::open(&folder.path(), &kept("1"), silent).unwrap().unwrap();
        for cache in [&cache, &again] {
            let found = cache.find("(BIGINT)", &[b"two", b"three", b"one"]);
            assert_eq!(found, [Some((b"2".to_vec(), 5)), None, Some((b"I".to_vec(), 6))]);
            assert_eq!(cache.find("(DOUBLE)", &[b"one"]), [None]);
        }
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o600);
        // Making the file has left no other file.
        let names = fs::read_dir(folder.0.join("below")).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.into_iter().all(|name| name.to_string_lossy().starts_with("results.db")));
    }

    #[test]
    fn another_version_has_other_results() {
        let folder = Folder::new("version");
        let old = Cache::open(&folder.path(), &kept("1"), silent).unwrap().unwrap();
        old.keep("()", &[(b"key", b"old")], 0);
        let new = Cache::open(&folder.path(), &kept("2"), silent).unwrap().unwrap();
        assert_eq!(new.find("()", &[b"key"]), [None]);
        // A program that still runs the old version keeps its results.
        assert_eq!(old.find("()", &[b"key"]), [Some((b"old".to_vec(), 0))]);
        let other = Kept { name: "g", ..kept("1") };
        let other = Cache::open(&folder.path(), &other, silent).unwrap().unwrap();
        assert_eq!(other.find("()", &[b"key"]), [None]);
        let run = |text: &str| new.connection().execute_batch(text).unwrap();
        let count = |table: &str| -> i64 {
            let connection = new.connection();
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("functions"), count("results")), (3, 1));
        // If no program has opened a version for a long time, the version is deleted.
        run("UPDATE functions SET opened = 0 WHERE version = '1' AND name = 'f'");
        for _ in 0..2 {
            drop(Cache::open(&folder.path(), &kept("2"), silent).unwrap());
        }
        assert_eq!((count("functions"), count("results")), (2, 0));
    }

    #[test]
    fn a_program_that_writes_for_long_costs_little_time() {
        static SAID: AtomicU64 = AtomicU64::new(0);
        let folder = Folder::new("busy");
        let log = |_: &str| {
            SAID.fetch_add(1, Relaxed);
        };
        let cache = Cache::open(&folder.path(), &kept("1"), log).unwrap().unwrap();
        cache.keep("()", &[(b"key", b"1")], 0);
        let connection = Connection::open(folder.path()).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        // The cache can still be read.
        assert_eq!(cache.find("()", &[b"key"]), [Some((b"1".to_vec(), 0))]);
        (0..1000).for_each(|_| cache.keep("()", &[(b"key", b"2")], 0));
        assert!(cache.pauses_until.load(Relaxed) > 0);
        assert_eq!(SAID.load(Relaxed), 1);
        // A load goes on without the cache.
        assert!(Cache::open(&folder.path(), &kept("1"), log).unwrap().is_none());
        assert_eq!(SAID.load(Relaxed), 2);
    }

    #[test]
    fn values_of_other_types_are_no_results() {
        let folder = Folder::new("types");
        let cache = Cache::open(&folder.path(), &kept("1"), silent).unwrap().unwrap();
        cache.keep("()", &[(b"one", b"1"), (b"two", b"2"), (b"three", b"3")], 7);
        let run = |text: &str| cache.connection().execute_batch(text).unwrap();
        run("UPDATE results SET result = 'text' WHERE result = x'31'");
        run("UPDATE results SET made = -1 WHERE result = x'32'");
        assert_eq!(cache.find("()", &[b"one", b"two", b"three"]), [None, None, Some((b"3".to_vec(), 7))]);
    }

    #[test]
    fn old_results_are_deleted() {
        let folder = Folder::new("old");
        let cache = Cache::open(&folder.path(), &kept("1"), silent).unwrap().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        cache.keep("()", &[(b"old", b"1")], now - 100_000);
        cache.keep("()", &[(b"new", b"2")], now - 10_000);
        let kept = Kept { ttl: Some(Duration::from_secs(60)), ..kept("1") };
        let cache = Cache::open(&folder.path(), &kept, silent).unwrap().unwrap();
        assert_eq!(cache.find("()", &[b"old", b"new"]), [None, Some((b"2".to_vec(), now - 10_000))]);
    }

    #[test]
    fn threads_and_programs_write_at_the_same_time() {
        let folder = Folder::new("threads");
        let path = folder.path();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    let cache = Cache::open(path, &kept("1"), silent).unwrap().unwrap();
                    for number in 0..50u8 {
                        cache.keep("()", &[(&[thread, number], &[number])], 1);
                        assert_eq!(cache.find("()", &[&[thread, number]]), [Some((vec![number], 1))]);
                    }
                });
            }
        });
        let cache = Cache::open(&path, &kept("1"), silent).unwrap().unwrap();
        let keys: Vec<[u8; 2]> =
            (0..4).flat_map(|thread| (0..50).map(move |number| [thread, number])).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        assert!(cache.find("()", &keys).iter().all(Option::is_some));
    }

    #[test]
    fn files_of_others_are_refused_and_not_changed() {
        let folder = Folder::new("others");
        let refusal = |path: &Path| Cache::open(path, &kept("1"), silent).unwrap_err();
        let path = folder.0.join("notes.txt");
        fs::write(&path, "some notes, which are no database at all").unwrap();
        assert!(refusal(&path).contains("not a database"), "{}", refusal(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "some notes, which are no database at all");
        let path = folder.0.join("other.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
        let before = fs::read(&path).unwrap();
        assert!(refusal(&path).ends_with("it is a database of something else"), "{}", refusal(&path));
        assert_eq!(fs::read(&path).unwrap(), before);
        assert!(refusal(&folder.0).contains("it is no file"));
        let path = folder.0.join("open.db");
        drop(Cache::open(&path, &kept("1"), silent).unwrap());
        let link = folder.0.join("link.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refusal(&link).contains("it is no file"), "{}", refusal(&link));
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        assert!(refusal(&path).contains("other users may write it"), "{}", refusal(&path));
    }

    #[test]
    fn a_broken_file_ends_nothing() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let folder = Folder::new("broken");
        let log = |line: &str| SAID.lock().unwrap().push(line.to_owned());
        let cache = Cache::open(&folder.path(), &kept("1"), log).unwrap().unwrap();
        cache.keep("()", &[(b"key", b"1")], 0);
        let connection = Connection::open(folder.path()).unwrap();
        connection.execute_batch("DROP TABLE results").unwrap();
        for _ in 0..2 {
            assert!(cache.find("()", &[b"key"]).is_empty());
            cache.keep("()", &[(b"key", b"1")], 0);
        }
        let said = SAID.lock().unwrap();
        assert!(
            matches!(&said[..], [line] if line.contains("fails, so functions are called without it")),
            "{said:?}"
        );
    }
}
