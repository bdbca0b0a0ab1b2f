//! The end of the process: it stops the watchdogs before static data is destroyed, and lets
//! functions clean up.

use super::state::Database;
use crosslane::lock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

/// The databases of the process that is `OWNER`.
static DATABASES: Mutex<Vec<Weak<Database>>> = Mutex::new(Vec::new());
/// The process that opened a database last: this process, or an ancestor from which it was forked.
/// 0 before the first.
static OWNER: AtomicU32 = AtomicU32::new(0);

pub(crate) fn stop_at_exit(database: Arc<Database>) {
    let mut databases = lock(&DATABASES);
    databases.retain(|database| database.strong_count() > 0);
    let owner = OWNER.swap(std::process::id(), Relaxed);
    if owner == 0 {
        // SAFETY: the hook is a plain function of this library, which is never unloaded.
        unsafe { libc::atexit(hook) };
    } else if owner != std::process::id() {
        databases.clear();
    }
    databases.push(Arc::downgrade(&database));
}

extern "C" fn hook() {
    // A fork has no watchdogs for databases that were open before it. A lock that such a watchdog
    // held stays locked.
    if OWNER.load(Relaxed) != std::process::id() {
        return;
    }
    for database in lock(&DATABASES).iter().filter_map(Weak::upgrade) {
        // From now on the watchdog waits for this lock until the process ends.
        std::mem::forget(lock(&database.connection));
        database.tear_down();
        std::mem::forget(database);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::Settings;

    fn database() -> Arc<Database> {
        let database = Arc::new(Database::new(None, None, Settings::default()));
        stop_at_exit(Arc::clone(&database));
        database
    }

    /// A fork may happen while a watchdog holds the lock.
    #[test]
    fn a_fork_stops_its_own_databases_whatever_was_locked_when_it_was_made() {
        let parents = database();
        let looks = lock(&parents.connection);
        for own in [false, true] {
            // SAFETY: the fork runs nothing but this module, and ends without the rest of this
            // program.
            unsafe {
                let fork = libc::fork();
                if fork == 0 {
                    libc::alarm(10);
                    let own = own.then(database);
                    hook();
                    let stopped = own.is_none_or(|own| own.connection.try_lock().is_err());
                    libc::_exit(i32::from(!stopped));
                }
                let mut status = -1;
                assert_eq!(libc::waitpid(fork, &raw mut status, 0), fork);
                assert_eq!(status, 0, "a fork {}", if own { "with a database" } else { "without one" });
            }
        }
        drop(looks);
    }
}
