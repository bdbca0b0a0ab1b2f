//! Where DuckDB's things are closed: never by a thread that holds the GVL, and never in a fork.

use crate::engine::connection::session::lock;
use crosslane_gvl::{self as gvl, Stand, stand};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

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
