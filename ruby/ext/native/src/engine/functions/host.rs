//! The host lanes of this process: threads of the Ruby VM that run the program's blocks for
//! DuckDB's threads.
//!
//! They use the same rings, pool and calls as other lanes. Their zygote is a Ruby thread
//! (`Crosslane::Host`), which makes a thread for each lane. All databases of a process share one
//! host, so lanes outlive a query and a database.
//!
//! All blocks are in one list, by number, and no number is used twice. A block is in the list from
//! its registration until DuckDB frees the registered data. That happens after the block is dropped
//! or replaced, or its database is closed, and no query and no prepared statement uses it.

use crate::engine::connection::session::lock;
use crate::functions::callable::{self, Callable};
use crate::values::Vm;
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{Error, Function, FunctionSpec, Library, Settings};
use crosslane_gvl as gvl;
use crosslane_process::{Origin, Source, Zygote, ZygoteOptions};
use magnus::{Module, RClass, RHash, Value};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The number of idle lanes that the pool keeps at first. A query with more threads raises it.
const WARM: usize = 1;
/// The time for which idle lanes are kept. A waiting thread costs little, and making one needs the
/// GVL.
const IDLE: Duration = Duration::from_secs(3600);

/// A host and its process. A fork does not have the host's threads.
static HOST: Mutex<Option<(u32, Arc<Library<Zygote>>)>> = Mutex::new(None);
/// The numbers of blocks that can no longer be called. Ruby should forget them.
static ENDED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// The number of a block. It lives as long as the block can be called.
struct Number(u32);

impl Drop for Number {
    fn drop(&mut self) {
        lock(&ENDED).push(self.0);
    }
}

/// A block that DuckDB can call.
pub(crate) struct Block {
    pub(crate) function: Arc<Function>,
    _number: Number,
}

impl Block {
    /// A block that Ruby has added to the list (`Crosslane::Host.add`), and its declaration as JSON
    /// (docs/protocol.md).
    pub(crate) fn new(number: u32, declared: &str) -> Result<Self, magnus::Error> {
        callable::expect(number);
        let held = Number(number);
        let spec: FunctionSpec = serde_json::from_str(declared).map_err(crate::errors::argument_error)?;
        let function = Arc::new(Function::new(number, spec).map_err(crate::errors::argument_error)?);
        Ok(Self { function, _number: held })
    }
}

/// Removes the blocks that have ended since the last call from Ruby's list. With the GVL.
///
/// This is not done in Ruby: Ruby code could be interrupted after it takes the numbers, and the
/// blocks would stay forever.
pub(crate) fn forget_ended(functions: RHash) -> Result<(), magnus::Error> {
    let ended = std::mem::take(&mut *lock(&ENDED));
    ended.iter().for_each(|number| callable::forget(*number));
    ended.into_iter().try_for_each(|number| functions.delete::<_, Value>(number).map(drop))
}

/// Takes the engine's end of a host's control socket. The host already serves the other end.
pub(crate) fn start(descriptor: i32) -> Result<(), magnus::Error> {
    // SAFETY: the caller gives the descriptor away.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let settings = Settings::default();
    let options = ZygoteOptions {
        origin: Origin::thread(socket),
        source: Source::Thread { name: "the program".into() },
        types: crosslane::TypeNames::default(),
        load_timeout: settings.load_timeout,
        stuck: settings.stuck(),
        sandbox: None,
        ring_size: settings.ring_size,
        largest_batch: settings.largest_batch,
        spin: settings.spin,
        on_interrupt: Arc::new(|_| {}),
    };
    let pool = PoolOptions { warm: WARM, idle_timeout: IDLE };
    WARM_LANES.store(WARM, Relaxed);
    let start = || Pool::start(pool, move |stop| Zygote::start(options, stop));
    let (pool, _) = gvl::without_or_raise(start, || {})?.map_err(crate::errors::argument_error)?;
    let library = Library { name: "the program".into(), version: 1, functions: Vec::new(), pool };
    let old = lock(&HOST).replace((std::process::id(), Arc::new(library)));
    if let Some((process, old)) = old {
        // The old host's threads have ended. A fork never had them, so it leaks the old host.
        if process == std::process::id() {
            gvl::without(move || drop(old), || {});
        } else {
            std::mem::forget(old);
        }
    }
    Ok(())
}

/// The host, if this process has one.
pub(crate) fn current() -> Result<Arc<Library<Zygote>>, Error> {
    match &*lock(&HOST) {
        Some((process, library)) if *process == std::process::id() => Ok(Arc::clone(library)),
        _ => Err(Error::Boot(
            "this process was forked after the database was opened; open it again in the child".into(),
        )),
    }
}

/// The number of idle lanes that the pool keeps now.
static WARM_LANES: AtomicUsize = AtomicUsize::new(WARM);

/// Keeps a lane for each thread of a query, so that an expensive function finds idle lanes.
pub(crate) fn keep(host: &Library<Zygote>, threads: usize) {
    // All DuckDB threads call this for each batch. Only the first call writes.
    if WARM_LANES.load(Relaxed) < threads && WARM_LANES.fetch_max(threads, Relaxed) < threads {
        host.pool.configure(PoolOptions { warm: threads, idle_timeout: IDLE });
    }
}

/// The numbers of idle, busy, booted and discarded lanes.
pub(crate) fn statistics() -> Option<(usize, usize, u64, u64)> {
    let stats = current().ok()?.pool.stats();
    Some((stats.idle, stats.busy, stats.booted, stats.discarded))
}

/// A block for a call on this thread. `types` are the arguments' types if a parameter has the type
/// ANY. With the GVL.
pub(crate) fn callable(vm: &Vm, number: u32, types: Option<&str>) -> Result<Arc<Callable>, magnus::Error> {
    let functions: Value = gvl::constant::<RClass>("Crosslane::Host")?.const_get("FUNCTIONS")?;
    callable::callable(vm, functions, number, types)
}
