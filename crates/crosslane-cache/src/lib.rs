//! Results of functions that outlive the program (`cache`), in a file of SQLite. Several programs may
//! use a file at the same time.
//!
//! # What belongs together
//! A function is known by its file, its name, its signature and its version, which is a hash of its
//! file and of the modules beside it that it imports. A result is found by a hash of the arguments'
//! types and bits. When a function is opened, the results of other versions of it are deleted. A
//! program that still runs such a version goes on: the numbers of functions are never used again.
//!
//! # Failures
//! If a file cannot be opened, the function cannot be loaded. Later, no error of the file ends a
//! query: the function is called, and the first error is written to the log. A wait for another
//! program that writes ends after [`PATIENCE`].
//!
//! # Trust
//! A result is a batch, which the caller checks as it checks that of a guest. A file of another
//! program is not touched ([`APPLICATION`]).

use crosslane::Store;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a program waits for another one that writes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Marks a file as one of this library: "xlan".
const APPLICATION: i32 = 0x786c_616e;
/// The version of the tables.
const VERSION: i32 = 1;
const TABLES: &str = "
    CREATE TABLE functions(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        file TEXT NOT NULL, name TEXT NOT NULL, signature TEXT NOT NULL, version TEXT NOT NULL,
        UNIQUE (file, name, signature, version));
    CREATE TABLE results(
        function INTEGER NOT NULL, key BLOB NOT NULL, made INTEGER NOT NULL, result BLOB NOT NULL,
        PRIMARY KEY (function, key)) WITHOUT ROWID;";

/// A function whose results are kept.
#[derive(Debug, Clone)]
pub struct Kept<'a> {
    /// The user's file.
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
    connection: Mutex<Connection>,
    function: i64,
    /// Writes a line to the user's log.
    log: fn(&str),
    /// Whether an error was written to the log.
    told: AtomicBool,
    /// The process that opened the file. SQLite's connections cannot be used in a fork.
    process: u32,
}

impl Cache {
    /// Opens the file, and makes it if it is not there.
    ///
    /// # Errors
    /// Why the file cannot be used, as a text that names it.
    pub fn open(path: &Path, kept: &Kept<'_>, log: fn(&str)) -> Result<Self, String> {
        let opened = create(path).map_err(|error| error.to_string()).and_then(|()| connect(path, kept));
        let (connection, function) =
            opened.map_err(|why| format!("the cache {} cannot be used: {why}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
            function,
            log,
            told: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    fn with<T: Default>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> T {
        if self.process != std::process::id() {
            return T::default();
        }
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut connection).unwrap_or_else(|error| {
            if !self.told.swap(true, Relaxed) {
                let path = self.path.display();
                (self.log)(&format!("the cache {path} fails, so functions are called without it: {error}"));
            }
            T::default()
        })
    }
}

impl Store for Cache {
    fn find(&self, types: &str, keys: &[&[u8]]) -> Vec<Option<(Vec<u8>, u64)>> {
        self.with(|connection| {
            // One transaction takes the file's lock once.
            let transaction = connection.transaction()?;
            let mut select = transaction
                .prepare_cached("SELECT result, made FROM results WHERE function = ? AND key = ?")?;
            let found = keys.iter().map(|key| {
                let row = params![self.function, hash(types, key)];
                select.query_row(row, |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))).optional()
            });
            found.collect()
        })
    }

    fn keep(&self, types: &str, results: &[(&[u8], &[u8])], made: u64) {
        if results.is_empty() {
            return;
        }
        self.with(|connection| {
            let transaction = connection.transaction()?;
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

/// The key of some arguments in the file. Arguments of other types may have the same bits.
fn hash(types: &str, key: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((types.len() as u64).to_le_bytes());
    hash.update(types);
    hash.update(key);
    hash.finalize().into()
}

/// Makes the file, which only its user may read: results may be secret.
fn create(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::metadata(path)?.is_file() => Ok(()),
        made => made.map(drop),
    }
}

/// Opens the file. Returns the number of the function there.
fn connect(path: &Path, kept: &Kept<'_>) -> Result<(Connection, i64), String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let text = |error: rusqlite::Error| error.to_string();
    let mut connection = Connection::open_with_flags(path, flags).map_err(text)?;
    connection.busy_timeout(PATIENCE).map_err(text)?;
    prepare(&mut connection)?;
    let function = enter(&mut connection, kept).map_err(text)?;
    Ok((connection, function))
}

/// Makes the tables of a new file, and refuses a file of others.
fn prepare(connection: &mut Connection) -> Result<(), String> {
    let text = |error: rusqlite::Error| error.to_string();
    let number = |connection: &Connection, name: &str| -> rusqlite::Result<i32> {
        connection.pragma_query_value(None, name, |row| row.get(0))
    };
    // A file in the mode WAL can be read while it is written. A result may be lost if the machine
    // stops, but the file stays correct.
    let known = number(connection, "application_id").map_err(text)?;
    if known != APPLICATION {
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(text)?;
        // Another program may have made the tables meanwhile.
        if number(&transaction, "application_id").map_err(text)? != APPLICATION {
            let tables: i64 = transaction
                .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
                .map_err(text)?;
            if tables > 0 {
                return Err("it is a database of something else".into());
            }
            transaction.execute_batch(TABLES).map_err(text)?;
            transaction.pragma_update(None, "application_id", APPLICATION).map_err(text)?;
            transaction.pragma_update(None, "user_version", VERSION).map_err(text)?;
        }
        transaction.commit().map_err(text)?;
    }
    let version = number(connection, "user_version").map_err(text)?;
    if version != VERSION {
        return Err(format!("it has version {version}, and this Crosslane reads version {VERSION}"));
    }
    connection.pragma_update(None, "journal_mode", "wal").map_err(text)?;
    connection.pragma_update(None, "synchronous", "normal").map_err(text)
}

/// The number of a function. Deletes its results that do not hold any more.
fn enter(connection: &mut Connection, kept: &Kept<'_>) -> rusqlite::Result<i64> {
    let Kept { file, name, signature, version, ttl } = kept;
    let known = "SELECT id FROM functions WHERE file = ? AND name = ? AND signature = ? AND version = ?";
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute(
        "INSERT OR IGNORE INTO functions(file, name, signature, version) VALUES (?, ?, ?, ?)",
        [file, name, signature, version],
    )?;
    let function = transaction.query_row(known, [file, name, signature, version], |row| row.get(0))?;
    // Functions of one name may have several signatures, which have the same version.
    transaction.execute(
        "DELETE FROM functions WHERE file = ? AND name = ? AND version <> ?",
        [file, name, version],
    )?;
    transaction.execute("DELETE FROM results WHERE function NOT IN (SELECT id FROM functions)", [])?;
    if let Some(ttl) = ttl {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let oldest = now.saturating_sub(*ttl).as_millis() as i64;
        transaction
            .execute("DELETE FROM results WHERE function = ? AND made < ?", params![function, oldest])?;
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
        let cache = Cache::open(&folder.path(), &kept("1"), silent).unwrap();
        cache.keep("(BIGINT)", &[(b"one", b"1"), (b"two", b"2")], 5);
        cache.keep("(BIGINT)", &[(b"one", b"I")], 6);
        let again = Cache::open(&folder.path(), &kept("1"), silent).unwrap();
        for cache in [&cache, &again] {
            let found = cache.find("(BIGINT)", &[b"two", b"three", b"one"]);
            assert_eq!(found, [Some((b"2".to_vec(), 5)), None, Some((b"I".to_vec(), 6))]);
            assert_eq!(cache.find("(DOUBLE)", &[b"one"]), [None]);
        }
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(folder.path()).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn another_version_has_other_results() {
        let folder = Folder::new("version");
        let old = Cache::open(&folder.path(), &kept("1"), silent).unwrap();
        old.keep("()", &[(b"key", b"old")], 0);
        let new = Cache::open(&folder.path(), &kept("2"), silent).unwrap();
        assert_eq!(new.find("()", &[b"key"]), [None]);
        // A program that still runs the old version does not disturb the new one.
        old.keep("()", &[(b"key", b"old")], 0);
        assert_eq!(new.find("()", &[b"key"]), [None]);
        let other = Kept { name: "g", ..kept("1") };
        let other = Cache::open(&folder.path(), &other, silent).unwrap();
        assert_eq!(other.find("()", &[b"key"]), [None]);
        let count = |table: &str| -> i64 {
            let connection = new.connection.lock().unwrap();
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("functions"), count("results")), (2, 0));
    }

    #[test]
    fn old_results_are_deleted() {
        let folder = Folder::new("old");
        let cache = Cache::open(&folder.path(), &kept("1"), silent).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        cache.keep("()", &[(b"old", b"1")], now - 100_000);
        cache.keep("()", &[(b"new", b"2")], now - 10_000);
        let kept = Kept { ttl: Some(Duration::from_secs(60)), ..kept("1") };
        let cache = Cache::open(&folder.path(), &kept, silent).unwrap();
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
                    let cache = Cache::open(path, &kept("1"), silent).unwrap();
                    for number in 0..50u8 {
                        cache.keep("()", &[(&[thread, number], &[number])], 1);
                        assert_eq!(cache.find("()", &[&[thread, number]]), [Some((vec![number], 1))]);
                    }
                });
            }
        });
        let cache = Cache::open(&path, &kept("1"), silent).unwrap();
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
        assert!(refusal(&folder.0).contains("cannot be used"));
    }

    #[test]
    fn a_broken_file_ends_nothing() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let folder = Folder::new("broken");
        let log = |line: &str| SAID.lock().unwrap().push(line.to_owned());
        let cache = Cache::open(&folder.path(), &kept("1"), log).unwrap();
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
