//! Contexts and snapshots, for Ruby.
//!
//! V8 always works without the GVL, on the calling thread. Arguments are encoded before, and
//! results become Ruby objects afterwards. A block that JavaScript calls takes the GVL while it
//! runs. An interrupt, `exit`, `Thread#kill` or `Timeout` in a block also ends the JavaScript
//! around it. JavaScript can catch any other exception. If it does not, the exception is raised
//! unchanged.
//!
//! A Ruby object of these classes stays alive while its method runs, because the VM finds `self` on
//! the stack. A context that the collector frees is disposed of on a separate thread, because that
//! takes time.

use crate::codec::{self, PENDING, decode, decode_all, encode, encode_all, ruby};
use crate::place::{Made, Place};
use crate::watch::{Ends, Watched, lock};
use crate::{class_of_v8, error};
use crosslane_gvl::{self as gvl, Me, Unwind, check_interrupts, made};
use crosslane_js::embed::Program;
use crosslane_js::embed::process::Failed;
use crosslane_js::isolate::{Host, Reason, Thrown};
use magnus::error::ErrorType;
use magnus::gc::Marker;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::{Opaque, ReprValue};
use magnus::{Class, DataTypeFunctions, Error, ExceptionClass, RArray, RString, TypedData, Value};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

fn refusal(refused: &Failed) -> Error {
    match refused {
        Failed::Thrown(thrown @ Thrown::Exception(_)) => thrown_error(thrown, 0.0, 0),
        Failed::Thrown(Thrown::Ended(
            Reason::Memory | Reason::NoMemory | Reason::NoHeap | Reason::Stuck,
            _,
        )) => error("MemoryError", &refused.to_string()),
        other => error("Error", &other.to_string()),
    }
}

/// The exception for a value that JavaScript threw, with JavaScript's stack before Ruby's.
fn thrown_error(thrown: &Thrown, timeout: f64, memory: usize) -> Error {
    match thrown {
        Thrown::Exception(failure) => {
            let class = if failure.class == "SyntaxError" { "ParseError" } else { "RuntimeError" };
            let made = || -> Result<Error, Error> {
                let class: ExceptionClass = class_of_v8(class)?;
                let (name, message, stack) = (&*failure.class, &*failure.message, &*failure.traceback);
                let exception: magnus::Exception = class.new_instance((name, message, stack))?;
                Ok(exception.into())
            };
            made().unwrap_or_else(|error| error)
        }
        Thrown::Ended(Reason::Memory, _) => {
            error("MemoryError", &format!("the context used more than its max_memory of {memory} bytes"))
        }
        Thrown::Ended(Reason::Timeout, stack) => error(
            "TimeoutError",
            format!("the script ran for more than its timeout of {timeout} s\n{stack}").trim_end(),
        ),
        Thrown::Ended(Reason::Closed, _) => error("Error", "the script was ended"),
        Thrown::Ended(Reason::Lost, why) => error("Error", why),
        Thrown::Ended(reason @ (Reason::NoMemory | Reason::NoHeap | Reason::Stuck), _) => {
            error("MemoryError", &reason.to_string())
        }
    }
}

/// The exception of a call that [`Context::stop`] has ended, with JavaScript's stack if it is
/// known.
fn stopped_error(thrown: Option<Thrown>) -> Error {
    let stack = match thrown {
        Some(Thrown::Ended(_, stack)) => stack,
        _ => String::new(),
    };
    error("StoppedError", format!("the script was stopped\n{stack}").trim_end())
}

/// The reason why a promise has no value.
fn waits(is_inner: bool) -> &'static str {
    if is_inner {
        "the promise is not settled: in a block, promises go on when the call is done that has called the block"
    } else {
        "the promise is not settled, and nothing that the script has begun will settle it: only another call can"
    }
}

/// `Crosslane::V8::Native::Snapshot`.
#[magnus::wrap(class = "Crosslane::V8::Native::Snapshot", free_immediately)]
pub(crate) struct Snapshot(Made);

impl Snapshot {
    fn wrap(made: Result<Result<Made, Failed>, Unwind>) -> Result<Self, Error> {
        check_interrupts()?;
        made?.map(Self).map_err(|refused| refusal(&refused))
    }

    /// Runs a script for a snapshot. The VM can interrupt it like any call.
    fn run(
        source: RString,
        name: RString,
        blocks: Value,
        work: impl FnOnce((&str, &str), Program, &dyn Fn(Arc<dyn Ends>)) -> Result<Made, Failed>,
    ) -> Result<Self, Error> {
        let (source, name) = (codec::text(source)?, codec::text(name)?);
        let bridge = Bridge::new(blocks);
        let me = Me::get();
        let started = |handle: Arc<dyn Ends>| {
            let watched = bridge.watch(handle);
            watched.begin(me, None);
            // The VM may have needed the thread before the watch existed.
            watched.want();
        };
        let want = || {
            if let Some(watched) = bridge.watched.get() {
                watched.want();
            }
        };
        let build = || work((&source, &name), Arc::clone(&bridge) as _, &started);
        let made = gvl::without_or_raise(build, want);
        match bridge.left() {
            Some((unwind, _)) => Err(unwind.into_error()),
            None => Self::wrap(made),
        }
    }

    /// Runs a script in a context of this program, or in a process that runs `host`.
    pub(crate) fn build(
        source: RString,
        name: RString,
        blocks: Value,
        host: Option<RString>,
    ) -> Result<Self, Error> {
        let host = host.map(codec::path).transpose()?;
        Self::run(source, name, blocks, |script, program, started| Made::of(script, program, host, started))
    }

    pub(crate) fn warm_up(&self, source: RString, name: RString, blocks: Value) -> Result<Self, Error> {
        Self::run(source, name, blocks, |script, program, started| self.0.warmed_up(script, program, started))
    }

    pub(crate) fn load(dumped: RString, host: Option<RString>) -> Result<Self, Error> {
        let (bytes, host) = (codec::bytes(dumped)?, host.map(codec::path).transpose()?);
        Self::wrap(gvl::without_or_raise(|| Made::load(bytes, host), || {}))
    }

    pub(crate) fn dump(&self) -> Result<RString, Error> {
        let dumped = self.0.dump().map_err(|refused| refusal(&refused))?;
        Ok(made(|| ruby().str_from_slice(&dumped))?)
    }

    pub(crate) fn size(&self) -> usize {
        self.0.size()
    }
}

/// The callbacks of V8.
struct Bridge {
    /// The Ruby object that has the attached blocks (`Crosslane::V8::Context`). It is pinned while
    /// this object lives.
    blocks: Opaque<Value>,
    watched: OnceLock<Arc<Watched>>,
    /// The way in which a block, or the VM, left the script.
    left: Mutex<Option<Left>>,
}

/// An exception or jump that is not raised yet.
struct Left {
    way: Way,
    /// Whether JavaScript cannot catch it.
    last: bool,
}

/// For `Raise`, the Ruby object has the exception.
enum Way {
    Raise,
    Jump(i64),
}

impl Bridge {
    fn new(blocks: Value) -> Arc<Self> {
        Arc::new(Self { blocks: Opaque::from(blocks), watched: OnceLock::new(), left: Mutex::new(None) })
    }

    /// Starts to watch the scripts of the handle's context.
    fn watch(&self, handle: Arc<dyn Ends>) -> &Arc<Watched> {
        self.watched.get_or_init(|| Watched::new(handle))
    }

    /// Runs Ruby code for a script. Without a watch, no Ruby code runs.
    fn with<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let watched = self.watched.get()?;
        watched.enter_ruby();
        let result = gvl::with(work, |unwind| self.leave(unwind, true));
        watched.leave_ruby();
        result
    }

    /// Whether an exception or jump has left the script that JavaScript cannot catch.
    fn has_left(&self) -> bool {
        lock(&self.left).as_ref().is_some_and(|left| left.last)
    }

    /// Stores an exception or jump. The first one that is `last` is kept, and ends the script. With
    /// the GVL.
    fn leave(&self, unwind: Unwind, last: bool) {
        if self.has_left() {
            return;
        }
        let way = match unwind {
            Unwind::Raise(exception) => {
                // SAFETY: the exception was just caught, and lies on this stack.
                let exception = unsafe { Value::from_raw(exception) };
                let _ = ruby().get_inner(self.blocks).funcall::<_, _, Value>("left=", (exception,));
                Way::Raise
            }
            Unwind::Jump(state) => Way::Jump(state),
        };
        *lock(&self.left) = Some(Left { way, last });
        if last && let Some(watched) = self.watched.get() {
            watched.end_now();
        }
    }

    /// The text that JavaScript gets of an error: its name and its message, one line each. With the
    /// GVL.
    fn told(&self, error: &Error) -> String {
        let blocks = ruby().get_inner(self.blocks);
        match error.error_type() {
            ErrorType::Exception(exception) => blocks
                .funcall("told", (*exception,))
                .and_then(codec::text)
                .unwrap_or_else(|_| "ProgramError\n(its message cannot be told)".into()),
            _ => format!("ProgramError\n{error}"),
        }
    }

    /// Adds JavaScript's frames to the backtrace of the exception that passes. With the GVL.
    fn passed(&self, frames: &str) {
        let _ = ruby().get_inner(self.blocks).funcall::<_, _, Value>("passed", (frames,));
    }

    /// Takes the stored exception or jump, and whether it is `last`. With the GVL.
    fn left(&self) -> Option<(Unwind, bool)> {
        let Left { way, last } = lock(&self.left).take()?;
        let unwind = match way {
            Way::Raise => match ruby().get_inner(self.blocks).funcall::<_, _, Value>("left", ()) {
                Ok(exception) => Unwind::Raise(exception.as_raw()),
                Err(error) => error.into(),
            },
            Way::Jump(state) => Unwind::Jump(state),
        };
        Some((unwind, last))
    }
}

impl Host for Bridge {
    fn print(&self, error: bool, text: &str) {
        self.with(|| {
            let print = || -> Result<Value, Error> {
                let line = made(|| ruby().str_new(text))?;
                ruby().get_inner(self.blocks).funcall("print", (error, line))
            };
            if let Err(error) = print() {
                let unwind = Unwind::from(error);
                let last = unwind.is_final();
                self.leave(unwind, last);
            }
        });
    }

    fn call(&self, number: u32, arguments: &[u8]) -> Result<Vec<u8>, String> {
        let called = self.with(|| {
            let call = || -> Result<Vec<u8>, Error> {
                let blocks = ruby().get_inner(self.blocks);
                let arguments = decode_all(arguments)?;
                let result: Value = blocks.funcall("call_block", (number, arguments))?;
                let mut out = Vec::new();
                encode(result, 0, &mut out)?;
                Ok(out)
            };
            call().map_err(|error| {
                let told = self.told(&error);
                let unwind = Unwind::from(error);
                let last = unwind.is_final();
                self.leave(unwind, last);
                told
            })
        });
        called.unwrap_or_else(|| Err("ProgramError\nthe program could not be called".into()))
    }

    fn fatal(&self, _: Reason, what: &str) {
        eprintln!("V8 cannot go on: {what}");
    }

    fn confirm(&self, reason: Reason) -> bool {
        if reason != Reason::Closed {
            return true;
        }
        let Some(watched) = self.watched.get() else { return false };
        // Whether the script must end: because of an exception or jump, or because the program has
        // stopped it.
        let is_over = || self.has_left() || watched.is_stopped();
        if !is_over() && watched.take_wanted() {
            self.with(|| {});
        }
        is_over()
    }
}

struct Inner {
    context: Place,
    bridge: Arc<Bridge>,
    watched: Arc<Watched>,
}

/// `Crosslane::V8::Native::Context`. The Ruby code calls it from one thread at a time.
#[derive(TypedData)]
#[magnus(class = "Crosslane::V8::Native::Context", free_immediately, mark)]
pub(crate) struct Context {
    blocks: Opaque<Value>,
    inner: RwLock<Option<Inner>>,
    timeout: Option<Duration>,
    memory: usize,
}

impl DataTypeFunctions for Context {
    fn mark(&self, marker: &Marker) {
        // This also prevents that the collector moves the object.
        marker.mark(self.blocks);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(inner) = inner.filter(|inner| inner.context.is_here()) {
            // The collector frees the context while it holds the GVL.
            let _ = std::thread::Builder::new().name("crosslane-v8-end".into()).spawn(move || drop(inner));
        }
    }
}

impl Context {
    /// Boots a context, in a process that runs `host` or in this one. V8's callbacks call `blocks`. With
    /// `locked`, it holds the GVL meanwhile; this serves only for comparison.
    pub(crate) fn boot(
        snapshot: Option<magnus::typed_data::Obj<Snapshot>>,
        timeout: Option<f64>,
        memory: usize,
        blocks: Value,
        locked: bool,
        host: Option<RString>,
    ) -> Result<Self, Error> {
        let snapshot = snapshot.map(|snapshot| snapshot.0.clone());
        let host = host.map(codec::path).transpose()?;
        let bridge = Bridge::new(blocks);
        let program: Program = Arc::clone(&bridge) as _;
        let me = Me::get();
        let started = |ends: Arc<dyn Ends>| _ = bridge.watch(ends).begin(me, None);
        let boot = || Place::boot(snapshot, program, memory, host, &started);
        let want = || bridge.watched.get().into_iter().for_each(|watched| watched.want());
        let booted = if locked { Ok(boot()) } else { gvl::without_or_raise(boot, want) };
        if let Some(watched) = bridge.watched.get() {
            watched.end(None);
        }
        let context = booted?.map_err(|refused| refusal(&refused))?;
        let watched = Arc::clone(bridge.watch(context.ends()));
        let inner = RwLock::new(Some(Inner { context, bridge, watched }));
        Ok(Self {
            blocks: Opaque::from(blocks),
            inner,
            timeout: timeout.map(Duration::from_secs_f64),
            memory,
        })
    }

    fn inner(&self) -> Result<RwLockReadGuard<'_, Option<Inner>>, Error> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        match &*inner {
            None => Err(error("Error", "the context was disposed of")),
            Some(used) if !used.context.is_here() => Err(error("Error", used.context.forked())),
            Some(_) => Ok(inner),
        }
    }

    /// Runs work in the context, and decodes its value. With `settled`, a pending promise is an
    /// error.
    fn run(
        &self,
        settled: bool,
        work: impl FnOnce(&Place) -> Result<Vec<u8>, Thrown>,
    ) -> Result<Value, Error> {
        let inner = self.inner()?;
        let Some(inner) = &*inner else { return Ok(ruby().qnil().as_value()) };
        let watched = &*inner.watched;
        let outer = watched.begin(Me::get(), self.timeout);
        let is_inner = outer.is_some();
        let outcome = gvl::without_or_raise(|| work(&inner.context), || watched.want());
        let stopped = watched.end(outer);
        let outcome = outcome?;
        if let Err(Thrown::Exception(failure)) = &outcome
            && failure.ticket != 0
        {
            inner.bridge.passed(&failure.traceback);
        }
        match (outcome, inner.bridge.left()) {
            (_, Some((unwind, true))) => Err(unwind.into_error()),
            (Err(thrown @ Thrown::Ended(reason, _)), _) if reason != Reason::Closed => {
                check_interrupts()?;
                Err(self.thrown(&thrown))
            }
            (outcome, _) if stopped => {
                check_interrupts()?;
                Err(stopped_error(outcome.err()))
            }
            (Err(Thrown::Exception(failure)), Some((unwind, _))) if failure.ticket != 0 => {
                Err(unwind.into_error())
            }
            // JavaScript has caught all other exceptions.
            (Ok(value), _) if settled && value == [PENDING] => Err(error("Error", waits(is_inner))),
            (Ok(value), _) => decode(&value),
            (Err(thrown), _) => {
                check_interrupts()?;
                Err(self.thrown(&thrown))
            }
        }
    }

    /// Ends the running call and the calls around it. Returns false if no call runs.
    pub(crate) fn stop(&self) -> bool {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        // In a fork, the copied call does not run, and its locks may never be released.
        inner.as_ref().is_some_and(|inner| inner.context.is_here() && inner.watched.stop())
    }

    fn thrown(&self, thrown: &Thrown) -> Error {
        thrown_error(thrown, self.timeout.map_or(0.0, |timeout| timeout.as_secs_f64()), self.memory)
    }

    /// Runs a script. With `settled`, a promise that is pending at the end is an error.
    pub(crate) fn eval(&self, source: RString, name: RString, settled: bool) -> Result<Value, Error> {
        let (source, name) = (codec::text(source)?, codec::text(name)?);
        self.run(settled, |context| context.eval(&source, &name))
    }

    /// Calls a function. `settled` has the same meaning as in [`Context::eval`].
    pub(crate) fn invoke(&self, path: RString, arguments: RArray, settled: bool) -> Result<Value, Error> {
        let (path, arguments) = (codec::text(path)?, encode_all(arguments)?);
        self.run(settled, |context| context.invoke(&path, &arguments))
    }

    pub(crate) fn attach(&self, path: RString, number: u32) -> Result<(), Error> {
        let path = codec::text(path)?;
        self.run(false, |context| context.attach(&path, number).map(|()| vec![0]))?;
        Ok(())
    }

    /// Makes V8 free all memory that it can free.
    pub(crate) fn collect(&self) -> Result<(), Error> {
        self.run(false, |context| context.collect().map(|()| vec![0]))?;
        Ok(())
    }

    pub(crate) fn heap_stats(&self) -> Result<Value, Error> {
        self.run(false, Place::heap_stats)
    }

    pub(crate) fn memory(&self) -> Result<usize, Error> {
        let inner = self.inner()?;
        let Some(inner) = &*inner else { return Ok(0) };
        let watched = &*inner.watched;
        let outer = watched.begin(Me::get(), self.timeout);
        let asked = gvl::without_or_raise(|| inner.context.memory(), || watched.want());
        watched.end(outer);
        asked?.map_err(|thrown| self.thrown(&thrown))
    }

    /// Returns whether its process runs.
    pub(crate) fn is_alive(&self) -> bool {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.as_ref().is_some_and(|inner| inner.context.is_alive())
    }

    pub(crate) fn dispose(&self) -> Result<(), Error> {
        let inner = match self.inner.try_write() {
            Ok(mut inner) => inner.take(),
            Err(TryLockError::Poisoned(inner)) => inner.into_inner().take(),
            Err(TryLockError::WouldBlock) => {
                return Err(error(
                    "Error",
                    "the context is in the middle of a call; dispose of it after the call",
                ));
            }
        };
        if let Some(inner) = inner.filter(|inner| inner.context.is_here()) {
            gvl::without_or_raise(move || drop(inner), || {})?;
        }
        Ok(())
    }
}
