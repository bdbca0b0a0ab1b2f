//! An isolate: one heap of JavaScript objects, used by one thread at a time.
//!
//! An isolate calls methods of the prelude (`src/js`), which holds the library's functions. Whoever
//! has its [`Handle`] can end what it does at any time: the call then fails as [`Thrown::Ended`], and the
//! isolate can be used again.

use crate::ffi::{self, ClHost, ClOutcome, ClText, ClValue};
use crate::snapshot::{PRELUDE, Snapshot};
use crate::url;
use crosslane::Failure;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// How much of the C++ stack JavaScript may use; the thread must have some more.
pub const STACK: usize = 4 << 20;
/// Twice the most that V8 allocates at once: a string of 2^29 characters of two bytes, an array of 2^27
/// elements. V8 plans a heap that has room for such; the limit that it keeps is `HardLimit` in `shim/shim.cc`.
pub(crate) const LARGEST_OBJECTS: usize = 2 << 30;

/// Why a call was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It used more memory than it may.
    Memory = 1,
    /// It took too long.
    Timeout = 2,
    /// Nobody waits for it any more.
    Closed = 3,
    /// The process has no memory for a value that it passes. (4 is [`ffi::PROGRAM`].)
    NoMemory = 5,
    /// V8 found no memory for its heap, and its own limit is not why.
    NoHeap = 6,
    /// V8 cannot go on, as with a value beyond its largest.
    Stuck = 7,
}

impl Reason {
    pub(crate) fn of(number: u32) -> Self {
        match number {
            1 => Reason::Memory,
            2 => Reason::Timeout,
            5 => Reason::NoMemory,
            6 => Reason::NoHeap,
            7 => Reason::Stuck,
            _ => Reason::Closed,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Memory => "the script used more memory than it may",
            Reason::Timeout => "the script took too long",
            Reason::Closed => "the script was ended",
            Reason::NoMemory => {
                "the process has no memory for a value that passes into JavaScript or out of it"
            }
            Reason::NoHeap => "V8 found no memory for its heap: the system gives the process no more",
            Reason::Stuck => "V8 cannot go on: a value may exceed its largest size",
        })
    }
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Thrown {
    /// It threw. With a ticket, if a function of the program has failed with that.
    #[error("{0}")]
    Exception(Failure),
    /// It was ended; with the stack at that moment, if it is known.
    #[error("{}", format!("{_0}\n{_1}").trim_end())]
    Ended(Reason, String),
}

/// What an isolate asks of the program around it. Called on the isolate's own thread.
pub trait Host {
    /// Takes what `console` printed; `error` for its errors and warnings.
    fn print(&mut self, error: bool, text: &str);
    /// Whether the call that [`Handle::end`] was to end is still the one that runs; asked when V8 has come to
    /// a check.
    fn confirm(&mut self, _reason: Reason) -> bool {
        true
    }
    /// V8 cannot go on, and the process ends when this returns.
    fn fatal(&mut self, reason: Reason, what: &str);
    /// The path and source of a module as seen from another.
    ///
    /// # Errors
    /// Why there is none.
    fn resolve(&mut self, specifier: &str, referrer: &str) -> Result<(String, Vec<u8>), String> {
        Err(format!("cannot import {specifier} from {referrer} here"))
    }
}

/// Starts V8, once per process.
pub(crate) fn initialize() {
    static ONCE: Once = Once::new();
    // WebAssembly and shared memory are ways to use memory that no limit sees. Collectors with threads of
    // their own take the cores from the other lanes (a tenth of the throughput of text functions). What V8
    // would add where an isolate boots from a snapshot is in the snapshot (`js/missing.js`).
    const FLAGS: &[u8] = b"--no-expose-wasm --no-harmony-sharedarraybuffer --no-harmony-atomics \
        --no-harmony-object-has-own --no-harmony-relative-indexing-methods --no-harmony-array-find-last \
        --stack-size=3900 --single-threaded-gc --no-verify-snapshot-checksum";
    // SAFETY: called once, before any other call.
    ONCE.call_once(|| unsafe { ffi::cl_initialize(ClText::new(FLAGS)) });
}

/// V8's version.
pub fn version() -> String {
    // SAFETY: a static text.
    unsafe { CStr::from_ptr(ffi::cl_version()) }.to_string_lossy().into_owned()
}

/// The host behind a thin pointer, with the answer that V8 is reading.
pub(crate) struct HostBox {
    host: Box<dyn Host>,
    answer: (String, Vec<u8>),
}

impl HostBox {
    pub(crate) fn new(host: Box<dyn Host>) -> Box<Self> {
        Box::new(Self { host, answer: Default::default() })
    }

    pub(crate) fn table(&mut self) -> ClHost {
        ClHost { host: std::ptr::from_mut(self).cast(), print, resolve, confirm, fatal, call, url }
    }
}

/// # Safety
/// `host` must be what [`HostBox::table`] gave, and its box alive and not in use.
unsafe fn host<'a>(host: *mut c_void) -> &'a mut HostBox {
    // SAFETY: the caller vouches for it.
    unsafe { &mut *host.cast() }
}

extern "C" fn print(data: *mut c_void, level: u32, text: ClText) {
    // SAFETY: the shim passes the table's pointer and a text that lives during the call.
    unsafe { host(data).host.print(level > 0, &text.to_text()) }
}

extern "C" fn confirm(data: *mut c_void, reason: u32) -> bool {
    // SAFETY: as above.
    unsafe { host(data).host.confirm(Reason::of(reason)) }
}

extern "C" fn fatal(data: *mut c_void, reason: u32, what: ClText) {
    // SAFETY: as above. The process ends, so nothing that was being done is done further.
    unsafe { host(data).host.fatal(Reason::of(reason), &what.to_text()) }
}

/// Functions of a program are only attached to its own contexts.
extern "C" fn call(_data: *mut c_void, _number: u32, _arguments: ClText, _result: *mut ClText) -> bool {
    false
}

extern "C" fn url(
    data: *mut c_void,
    operation: ClText,
    first: ClText,
    second: ClText,
    result: *mut ClText,
) -> bool {
    // SAFETY: the shim passes the table's pointer, texts that live during the call and a place for the answer, which
    // lives in the box until the next one.
    unsafe {
        let Some(answer) = url::answer(&operation.to_text(), &first.to_text(), &second.to_text()) else {
            return false;
        };
        let host = host(data);
        host.answer.0 = answer;
        *result = ClText::new(host.answer.0.as_bytes());
        true
    }
}

extern "C" fn resolve(
    data: *mut c_void,
    specifier: ClText,
    referrer: ClText,
    path: *mut ClText,
    source: *mut ClText,
) -> bool {
    // SAFETY: as above; the answer lives in the box until the next one.
    unsafe {
        let host = host(data);
        let found = host.host.resolve(&specifier.to_text(), &referrer.to_text());
        let exists = found.is_ok();
        host.answer = found.unwrap_or_else(|why| (why, Vec::new()));
        *path = ClText::new(host.answer.0.as_bytes());
        *source = ClText::new(&host.answer.1);
        exists
    }
}

/// Ends what an isolate does, from any thread.
pub struct Handle {
    state: Mutex<State>,
    ended: Condvar,
    /// Counts up when a call is made again, and before the pause that precedes that: odd in the pause.
    tries: AtomicU64,
}

struct State {
    /// Gone when the isolate is.
    isolate: Option<NonNull<ffi::ClIsolate>>,
    /// Why a wait is to end that is not in V8.
    reason: Option<Reason>,
}

// SAFETY: the pointer is only used for `cl_terminate`, which any thread may call while the isolate lives;
// the mutex keeps it alive.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// The isolate is no more.
    pub(crate) fn forget(&self) {
        self.lock().isolate = None;
    }

    pub(crate) fn new(isolate: NonNull<ffi::ClIsolate>) -> Arc<Self> {
        let state = State { isolate: Some(isolate), reason: None };
        Arc::new(Self { state: Mutex::new(state), ended: Condvar::new(), tries: AtomicU64::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call that runs now, or, if there is none, nothing. `stack` has V8 note the place first,
    /// which needs the code to come to a check: follow up without it.
    pub fn end(&self, reason: Reason, stack: bool) {
        let mut state = self.lock();
        state.reason = Some(reason);
        self.ended.notify_all();
        if let Some(isolate) = state.isolate {
            // SAFETY: it lives as long as the lock is held.
            unsafe { ffi::cl_terminate(isolate.as_ptr(), reason as u32, stack) };
        }
    }

    /// Why the call that runs now is to end, if it is.
    pub fn pending(&self) -> Option<Reason> {
        let state = self.lock();
        // SAFETY: the isolate lives as long as the lock is held.
        match state.isolate.map_or(0, |isolate| unsafe { ffi::cl_pending(isolate.as_ptr()) }) {
            0 => None,
            number => Some(Reason::of(number)),
        }
    }

    /// Whether the call that runs now has come to a check since this was last asked; `None` without a call.
    pub(crate) fn sign(&self) -> Option<bool> {
        let state = self.lock();
        // SAFETY: the isolate lives as long as the lock is held.
        match state.isolate.map_or(ffi::IDLE, |isolate| unsafe { ffi::cl_sign(isolate.as_ptr()) }) {
            ffi::IDLE => None,
            sign => Some(sign == ffi::HEARD),
        }
    }

    /// Distinguishes the tries at a row; `None` in the pause between two.
    pub(crate) fn attempt(&self) -> Option<u64> {
        let tries = self.tries.load(Relaxed);
        tries.is_multiple_of(2).then_some(tries)
    }

    /// Waits between two tries, which no timeout is for. False if nobody waits for the call any more.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        self.tries.fetch_add(1, Relaxed);
        let ended = self.pause(time);
        self.tries.fetch_add(1, Relaxed);
        ended != Err(Reason::Closed)
    }

    /// Waits outside of V8.
    ///
    /// # Errors
    /// Why the wait was ended.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), Reason> {
        let state = self.lock();
        let (mut state, _) = self
            .ended
            .wait_timeout_while(state, time, |state| state.reason.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.reason.take().map_or(Ok(()), Err)
    }

    pub(crate) fn begin(&self) {
        self.lock().reason = None;
    }
}

/// A value for a method.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    None,
    /// Memory that JavaScript gets a copy of.
    Bytes(&'a [u8]),
    /// Memory that the user's code does not see: a copy begins a buffer that the next call gets again.
    Reused(&'a [u8]),
    /// A word whose low half JavaScript writes.
    Word(&'a AtomicU64),
    /// The strings between the offsets that have so many bytes at least; nothing in place of others.
    Strings {
        text: &'a [u8],
        offsets: &'a [i32],
        ascii: bool,
        least: i32,
    },
    /// One text of ASCII.
    Ascii(&'a [u8]),
    /// One text.
    Text(&'a str),
}

impl Argument<'_> {
    fn raw(&self) -> ClValue {
        let bytes =
            |kind, bytes: &[u8]| ClValue { kind, data: bytes.as_ptr(), length: bytes.len(), ..ClValue::NONE };
        match *self {
            Argument::None => ClValue::NONE,
            Argument::Bytes(data) => bytes(ffi::BYTES, data),
            Argument::Reused(data) => bytes(ffi::REUSED, data),
            Argument::Word(word) => ClValue {
                kind: ffi::WORD,
                data: word.as_ptr().cast(),
                length: size_of_val(word),
                ..ClValue::NONE
            },
            Argument::Ascii(text) => bytes(ffi::LATIN1, text),
            Argument::Text(text) => bytes(ffi::TEXT, text.as_bytes()),
            Argument::Strings { text, offsets, ascii, least } => ClValue {
                offsets: offsets.as_ptr(),
                count: offsets.len() - 1,
                number: least.into(),
                ..bytes(if ascii { ffi::ASCII } else { ffi::UTF8 }, text)
            },
        }
    }
}

/// A part of a result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    None,
    Number(f64),
    Bytes(&'a [u8]),
    /// A string, with its bytes as UTF-8; [`Reply::latin1`] reads it.
    Latin1 {
        length: usize,
        utf8: usize,
    },
    /// A string that [`Reply::utf16`] reads.
    Utf16(usize),
}

/// What a method gave beside the parts of an array.
#[derive(Debug)]
pub(crate) struct Value {
    /// Whether it gave an array, whose parts are in [`Isolate::reply`].
    pub(crate) array: bool,
    pub(crate) text: String,
    pub(crate) number: f64,
}

/// The array that the last call gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply<'a> {
    isolate: &'a Isolate,
    parts: &'a [ClValue],
}

impl<'a> Reply<'a> {
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn part(&self, index: usize) -> Part<'a> {
        let Some(value) = self.parts.get(index) else { return Part::None };
        match value.kind {
            ffi::NUMBER => Part::Number(value.number),
            ffi::BYTES if value.length == 0 => Part::Bytes(&[]),
            // SAFETY: the shim keeps the array, and with it its memory, until the next call into the
            // isolate, which needs `&mut`.
            ffi::BYTES => Part::Bytes(unsafe { std::slice::from_raw_parts(value.data, value.length) }),
            ffi::LATIN1 => Part::Latin1 { length: value.length, utf8: value.count },
            ffi::UTF16 => Part::Utf16(value.length),
            _ => Part::None,
        }
    }

    /// Reads a string of one byte per character into `text`, which has its length.
    pub(crate) fn latin1(&self, index: usize, text: &mut [u8]) {
        assert!(matches!(self.part(index), Part::Latin1 { length, .. } if length == text.len()));
        // SAFETY: the part is a string of this length.
        unsafe {
            let isolate = self.isolate.raw.as_ptr();
            ffi::cl_read_string(isolate, index, text.as_mut_ptr(), std::ptr::null_mut());
        }
    }

    /// Reads a string of two bytes per character into `text`, which has its length.
    pub(crate) fn utf16(&self, index: usize, text: &mut [u16]) {
        assert!(matches!(self.part(index), Part::Utf16(length) if length == text.len()));
        // SAFETY: the part is a string of this length.
        unsafe {
            let isolate = self.isolate.raw.as_ptr();
            ffi::cl_read_string(isolate, index, std::ptr::null_mut(), text.as_mut_ptr());
        }
    }
}

/// The snapshot of the isolates that live in this process, and their number. V8 shares what is read-only in a
/// snapshot between all isolates, and crashes if they have different ones.
static TENANTS: Mutex<(usize, usize)> = Mutex::new((0, 0));

/// An isolate's part of [`TENANTS`].
#[derive(Debug)]
pub(crate) struct Tenant;

impl Tenant {
    /// # Panics
    /// If isolates of another snapshot live in this process.
    pub(crate) fn new(snapshot: ClText) -> Self {
        Self::try_new(snapshot).expect("isolates of two snapshots cannot live in one process at once")
    }

    /// `None` if isolates of another snapshot live in this process.
    pub(crate) fn try_new(snapshot: ClText) -> Option<Self> {
        let mut tenants = TENANTS.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = snapshot.data.addr();
        if tenants.1 > 0 && tenants.0 != snapshot {
            return None;
        }
        *tenants = (snapshot, tenants.1 + 1);
        Some(Self)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        TENANTS.lock().unwrap_or_else(PoisonError::into_inner).1 -= 1;
    }
}

/// An isolate that was booted from a snapshot, or builds one.
///
/// It belongs to the thread that made it.
pub struct Isolate {
    raw: NonNull<ffi::ClIsolate>,
    handle: Arc<Handle>,
    /// V8 reads from it as long as the isolate lives.
    snapshot: Option<Arc<Snapshot>>,
    /// What V8 calls back into.
    host: Box<HostBox>,
    /// The parts of the last call's result.
    parts: Vec<ClValue>,
    tenant: Tenant,
}

impl fmt::Debug for Isolate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Isolate").field("host", &std::ptr::from_ref(&*self.host)).finish_non_exhaustive()
    }
}

impl Isolate {
    /// Boots from a snapshot. `memory` is the limit for the heap and array buffers together, in bytes;
    /// `most` the highest that [`Isolate::limit_memory`] will set.
    ///
    /// # Errors
    /// If the process has no room for it.
    pub fn boot(
        snapshot: &Arc<Snapshot>,
        host: Box<dyn Host>,
        memory: usize,
        most: usize,
    ) -> Result<Self, Thrown> {
        Self::start(Some(Arc::clone(snapshot)), host, memory, most)
    }

    /// Boots without a library.
    pub(crate) fn start(
        snapshot: Option<Arc<Snapshot>>,
        host: Box<dyn Host>,
        memory: usize,
        most: usize,
    ) -> Result<Self, Thrown> {
        initialize();
        let mut host = HostBox::new(host);
        let most = most.max(memory);
        let hard = most.saturating_add(most / 2).saturating_add(LARGEST_OBJECTS);
        let blob = snapshot.as_ref().map_or(ClText::EMPTY, |snapshot| snapshot.text());
        let prelude = ClText::new(PRELUDE.as_bytes());
        let mut outcome = ClOutcome::EMPTY;
        let tenant = Tenant::new(blob);
        // SAFETY: the snapshot lives as long as the isolate, and so does the host.
        let raw =
            unsafe { ffi::cl_boot(false, blob, prelude, &host.table(), memory, hard, STACK, &mut outcome) };
        let this = Self::new(booted(raw, &outcome)?, snapshot, host, tenant);
        // SAFETY: nothing was called since.
        unsafe { check(&outcome)? };
        Ok(this)
    }

    pub(crate) fn new(
        raw: NonNull<ffi::ClIsolate>,
        snapshot: Option<Arc<Snapshot>>,
        host: Box<HostBox>,
        tenant: Tenant,
    ) -> Self {
        Self { raw, handle: Handle::new(raw), snapshot, host, parts: Vec::new(), tenant }
    }

    /// What ends its calls.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Bytes of the heap and of array buffers, the dead among them.
    pub fn memory(&self) -> usize {
        // SAFETY: the isolate lives.
        unsafe { ffi::cl_memory_used(self.raw.as_ptr()) }
    }

    /// Bytes of the heap and of array buffers that are alive: what is dead is collected.
    pub(crate) fn memory_kept(&mut self) -> usize {
        // SAFETY: the isolate lives, and nothing runs in it.
        unsafe { ffi::cl_memory_kept(self.raw.as_ptr()) }
    }

    /// Changes the limit for the heap and array buffers together, in bytes.
    pub fn limit_memory(&mut self, bytes: usize) {
        // SAFETY: the isolate lives, and nothing runs in it.
        unsafe { ffi::cl_set_memory_limit(self.raw.as_ptr(), bytes) };
    }

    pub(crate) fn load(&mut self, path: &str, source: &[u8]) -> Result<(), Thrown> {
        let mut outcome = ClOutcome::EMPTY;
        self.handle.begin();
        // SAFETY: the isolate lives, as do the texts.
        unsafe {
            let raw = self.raw.as_ptr();
            ffi::cl_load(raw, ClText::new(path.as_bytes()), ClText::new(source), &mut outcome);
            check(&outcome)
        }
    }

    /// Calls a method of the prelude.
    pub(crate) fn call(
        &mut self,
        method: &CStr,
        numbers: &[f64],
        arguments: &[Argument<'_>],
    ) -> Result<Value, Thrown> {
        let values: Vec<ClValue> = arguments.iter().map(Argument::raw).collect();
        let mut outcome = ClOutcome::EMPTY;
        self.parts.clear();
        self.handle.begin();
        // SAFETY: the isolate lives, as do the arguments, of which JavaScript gets copies; the word, which it
        // does not, outlives the last call.
        unsafe {
            let raw = self.raw.as_ptr();
            let count = ffi::cl_call(
                raw,
                method.as_ptr(),
                numbers.as_ptr(),
                numbers.len(),
                values.as_ptr(),
                values.len(),
                &mut outcome,
            );
            // What ended this call is not to end the next wait.
            self.handle.begin();
            check(&outcome)?;
            self.parts.resize(count, ClValue::NONE);
            if count > 0 {
                ffi::cl_results(raw, self.parts.as_mut_ptr(), count);
            }
            Ok(Value { array: count > 0, text: outcome.value.to_text(), number: outcome.number })
        }
    }

    /// The array that the last call gave.
    pub(crate) fn reply(&self) -> Reply<'_> {
        Reply { isolate: self, parts: &self.parts }
    }

    /// Takes the bytes that were passed last away from JavaScript; results stay.
    pub(crate) fn detach(&self) {
        // SAFETY: the isolate lives, and nothing runs in it.
        unsafe { ffi::cl_detach(self.raw.as_ptr()) };
    }

    /// Makes a snapshot of a builder.
    pub(crate) fn into_snapshot(self) -> ClText {
        self.handle.lock().isolate = None;
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the isolate lives, and is consumed; the host is dropped after it.
        unsafe {
            let blob = ffi::cl_snapshot(this.raw.as_ptr());
            drop(std::ptr::read(&this.host));
            drop(std::ptr::read(&this.handle));
            drop(std::ptr::read(&this.snapshot));
            drop(std::ptr::read(&this.parts));
            drop(std::ptr::read(&this.tenant));
            blob
        }
    }
}

impl Drop for Isolate {
    fn drop(&mut self) {
        self.handle.lock().isolate = None;
        // SAFETY: nobody else has the pointer any more.
        unsafe { ffi::cl_dispose(self.raw.as_ptr()) };
    }
}

/// What the shim has booted.
///
/// # Errors
/// Why there is none.
pub(crate) fn booted(
    raw: *mut ffi::ClIsolate,
    outcome: &ClOutcome,
) -> Result<NonNull<ffi::ClIsolate>, Thrown> {
    NonNull::new(raw).ok_or_else(|| Thrown::Ended(Reason::of(outcome.reason), String::new()))
}

/// # Safety
/// The outcome's texts must be alive.
pub(crate) unsafe fn check(outcome: &ClOutcome) -> Result<(), Thrown> {
    // SAFETY: the caller vouches for the texts.
    let text = |text: ClText| unsafe { text.to_text() };
    match outcome.status {
        ffi::OK => Ok(()),
        ffi::EXCEPTION if outcome.reason == Reason::Memory as u32 => {
            Err(Thrown::Ended(Reason::Memory, text(outcome.stack)))
        }
        ffi::EXCEPTION => Err(Thrown::Exception(Failure {
            class: text(outcome.name),
            message: text(outcome.message),
            traceback: text(outcome.stack),
            ticket: u64::from(outcome.reason == ffi::PROGRAM),
            ..Failure::default()
        })),
        _ => Err(Thrown::Ended(Reason::of(outcome.reason), text(outcome.stack))),
    }
}
