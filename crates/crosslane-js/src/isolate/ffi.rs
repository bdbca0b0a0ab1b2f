//! Declares the shim's functions, as in `shim/shim.h`.

use std::borrow::Cow;
use std::ffi::{c_char, c_void};

/// An isolate, or a builder of a snapshot.
#[repr(C)]
pub(crate) struct ClIsolate {
    _private: [u8; 0],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClText {
    pub(crate) data: *const u8,
    pub(crate) length: usize,
}

impl ClText {
    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), length: 0 };

    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), length: bytes.len() }
    }

    /// # Safety
    /// The text must be alive, as long as the result.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the shim passes a pointer to `length` bytes.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }

    /// The text, which is copied only if it is no UTF-8.
    ///
    /// # Safety
    /// As [`ClText::bytes`].
    pub(crate) unsafe fn text<'a>(self) -> Cow<'a, str> {
        // SAFETY: the caller guarantees this.
        String::from_utf8_lossy(unsafe { self.bytes() })
    }
}

#[repr(C)]
pub(crate) struct ClHost {
    pub(crate) host: *mut c_void,
    pub(crate) print: extern "C" fn(*mut c_void, u32, ClText),
    pub(crate) resolve: extern "C" fn(*mut c_void, ClText, ClText, *mut ClText, *mut ClText) -> bool,
    pub(crate) confirm: extern "C" fn(*mut c_void, u32) -> bool,
    pub(crate) fatal: extern "C" fn(*mut c_void, u32, ClText),
    pub(crate) call: extern "C" fn(*mut c_void, u32, ClText, *mut ClText) -> bool,
    pub(crate) url: extern "C" fn(*mut c_void, ClText, ClText, ClText, *mut ClText) -> bool,
}

pub(crate) const OK: u32 = 0;
pub(crate) const EXCEPTION: u32 = 1;
/// The reason of an exception that a function of the program caused.
pub(crate) const PROGRAM: u32 = 4;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ClOutcome {
    pub(crate) status: u32,
    pub(crate) reason: u32,
    pub(crate) name: ClText,
    pub(crate) message: ClText,
    pub(crate) stack: ClText,
    pub(crate) value: ClText,
    pub(crate) number: f64,
}

impl ClOutcome {
    pub(crate) const EMPTY: Self = Self {
        status: OK,
        reason: 0,
        name: ClText::EMPTY,
        message: ClText::EMPTY,
        stack: ClText::EMPTY,
        value: ClText::EMPTY,
        number: 0.0,
    };
}

pub(crate) const IDLE: u32 = 0;
pub(crate) const HEARD: u32 = 1;

pub(crate) const NONE: u32 = 0;
pub(crate) const BYTES: u32 = 1;
pub(crate) const ASCII: u32 = 2;
pub(crate) const UTF8: u32 = 3;
pub(crate) const NUMBER: u32 = 4;
pub(crate) const LATIN1: u32 = 5;
pub(crate) const UTF16: u32 = 6;
pub(crate) const WORD: u32 = 7;
pub(crate) const REUSED: u32 = 8;
pub(crate) const TEXT: u32 = 9;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClValue {
    pub(crate) kind: u32,
    pub(crate) data: *const u8,
    pub(crate) length: usize,
    pub(crate) offsets: *const i32,
    pub(crate) count: usize,
    pub(crate) number: f64,
}

impl ClValue {
    pub(crate) const NONE: Self = Self {
        kind: NONE,
        data: std::ptr::null(),
        length: 0,
        offsets: std::ptr::null(),
        count: 0,
        number: 0.0,
    };
}

unsafe extern "C" {
    pub(crate) fn cl_initialize(flags: ClText);
    pub(crate) fn cl_know_time_zone();
    pub(crate) fn cl_version() -> *const c_char;
    #[cfg(node)]
    pub(crate) fn cl_built_for() -> *const c_char;
    pub(crate) fn cl_builder(
        blob: ClText,
        prelude: ClText,
        host: *const ClHost,
        memory_limit: usize,
        outcome: *mut ClOutcome,
    ) -> *mut ClIsolate;
    pub(crate) fn cl_load(isolate: *mut ClIsolate, path: ClText, source: ClText, outcome: *mut ClOutcome);
    pub(crate) fn cl_snapshot(isolate: *mut ClIsolate) -> ClText;
    pub(crate) fn cl_free_blob(blob: ClText);
    pub(crate) fn cl_boot(
        shared: bool,
        blob: ClText,
        prelude: ClText,
        host: *const ClHost,
        memory_limit: usize,
        hard_limit: usize,
        stack: usize,
        outcome: *mut ClOutcome,
    ) -> *mut ClIsolate;
    pub(crate) fn cl_eval(
        isolate: *mut ClIsolate,
        source: ClText,
        name: ClText,
        stack: usize,
        outcome: *mut ClOutcome,
    );
    pub(crate) fn cl_invoke(
        isolate: *mut ClIsolate,
        path: ClText,
        arguments: ClText,
        stack: usize,
        outcome: *mut ClOutcome,
    );
    pub(crate) fn cl_attach(
        isolate: *mut ClIsolate,
        path: ClText,
        number: u32,
        stack: usize,
        outcome: *mut ClOutcome,
    );
    pub(crate) fn cl_collect(isolate: *mut ClIsolate, stack: usize, outcome: *mut ClOutcome);
    pub(crate) fn cl_heap_stats(isolate: *mut ClIsolate, stack: usize, outcome: *mut ClOutcome);
    pub(crate) fn cl_dispose(isolate: *mut ClIsolate) -> bool;
    pub(crate) fn cl_set_memory_limit(isolate: *mut ClIsolate, bytes: usize);
    pub(crate) fn cl_memory_used(isolate: *mut ClIsolate) -> usize;
    pub(crate) fn cl_memory_kept(isolate: *mut ClIsolate) -> usize;
    pub(crate) fn cl_call(
        isolate: *mut ClIsolate,
        method: *const c_char,
        numbers: *const f64,
        number_count: usize,
        values: *const ClValue,
        value_count: usize,
        outcome: *mut ClOutcome,
    ) -> usize;
    pub(crate) fn cl_results(isolate: *mut ClIsolate, results: *mut ClValue, count: usize);
    pub(crate) fn cl_detach(isolate: *mut ClIsolate);
    pub(crate) fn cl_read_string(isolate: *mut ClIsolate, result: usize, latin1: *mut u8, utf16: *mut u16);
    pub(crate) fn cl_pending(isolate: *mut ClIsolate) -> u32;
    pub(crate) fn cl_sign(isolate: *mut ClIsolate) -> u32;
    pub(crate) fn cl_terminate(isolate: *mut ClIsolate, reason: u32, stack: bool);
}
