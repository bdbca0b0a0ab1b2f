//! Closes DuckDB's objects: never on a thread that holds the GVL, and never in a fork.

use crate::engine::connection::session::lock;
use crosslane_gvl::{self as gvl, Stand, stand};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

/// A pointer that is passed to another thread.
pub(crate) struct Raw<T>(pub(crate) T);

// SAFETY: made for DuckDB's handles, which may be used by any thread, one at a time.
unsafe impl<T> Send for Raw<T> {}

type Closing = Box<dyn FnOnce() + Send>;

/// The thread that closes objects for threads that hold the GVL, and its process. A fork does not
/// have this thread.
static REAPER: OnceLock<(u32, Mutex<mpsc::Sender<Closing>>)> = OnceLock::new();

/// Closes an object. If this thread holds the GVL, another thread closes it. In a fork, it is never
/// closed.
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
        // Without the thread, the objects are not closed. This only costs memory.
        let _ = std::thread::Builder::new().name("crosslane-reaper".into()).spawn(run);
        (std::process::id(), Mutex::new(sender))
    });
    let _ = lock(reaper).send(Box::new(close));
}

/// Waits until the thread of [`in_own_process`] has closed its objects, so that the process does
/// not end before. The closing may wait for other Ruby threads, and this thread may hold the GVL.
/// So the wait is short.
pub(crate) fn await_closed() {
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

/// Runs short work that calls no functions. It runs without the GVL, unless the VM needs the
/// thread.
pub(crate) fn briefly<T>(work: impl FnOnce() -> T) -> T {
    let mut work = Some(work);
    let done = gvl::without(|| work.take().map(|work| work()), || {}).flatten();
    match (done, work) {
        (Some(done), _) => done,
        (None, Some(work)) => work(),
        (None, None) => unreachable!("the work was either done or not"),
    }
}
