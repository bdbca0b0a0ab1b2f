//! The functions of the host that V8 calls.

use super::engine::{Host, Reason};
use super::ffi::{ClHost, ClText};
use super::url;
use crosslane::lock;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// The host behind a thin pointer, and the answer that V8 is reading.
pub(crate) struct HostBox {
    host: Arc<dyn Host>,
    answer: Mutex<(Vec<u8>, Vec<u8>)>,
}

impl HostBox {
    pub(crate) fn new(host: Arc<dyn Host>) -> Box<Self> {
        Box::new(Self { host, answer: Mutex::default() })
    }

    pub(crate) fn table(&self) -> ClHost {
        let host = std::ptr::from_ref(self).cast_mut().cast();
        ClHost { host, print, resolve, confirm, fatal, call, url }
    }

    /// Keeps the answer until the next one.
    fn answer(&self, first: impl Into<Vec<u8>>, second: Vec<u8>) -> (ClText, ClText) {
        let mut answer = lock(&self.answer);
        *answer = (first.into(), second);
        (ClText::new(&answer.0), ClText::new(&answer.1))
    }
}

/// # Safety
/// `host` must be the pointer of [`HostBox::table`], and its box alive.
unsafe fn host<'a>(host: *mut c_void) -> &'a HostBox {
    // SAFETY: the caller guarantees this, and there are only shared references to a host.
    unsafe { &*host.cast() }
}

extern "C" fn print(data: *mut c_void, level: u32, text: ClText) {
    // SAFETY: the shim passes the table's pointer and a text that lives during the call.
    unsafe { host(data).host.print(level > 0, &text.text()) }
}

extern "C" fn confirm(data: *mut c_void, reason: u32) -> bool {
    // SAFETY: as above.
    unsafe { host(data).host.confirm(Reason::of(reason)) }
}

extern "C" fn fatal(data: *mut c_void, reason: u32, what: ClText) {
    // SAFETY: as above. The process ends, so the interrupted work does not go on.
    unsafe { host(data).host.fatal(Reason::of(reason), &what.text()) }
}

extern "C" fn call(data: *mut c_void, number: u32, arguments: ClText, result: *mut ClText) -> bool {
    // SAFETY: the shim passes the table's pointer, bytes that live during the call and a place for
    // the answer.
    unsafe {
        let host = host(data);
        let called = host.host.call(number, arguments.bytes());
        let is_done = called.is_ok();
        *result = host.answer(called.unwrap_or_else(String::into_bytes), Vec::new()).0;
        is_done
    }
}

extern "C" fn url(
    data: *mut c_void,
    operation: ClText,
    first: ClText,
    second: ClText,
    result: *mut ClText,
) -> bool {
    // SAFETY: as above.
    unsafe {
        let Some(answer) = url::answer(&operation.text(), &first.text(), &second.text()) else {
            return false;
        };
        *result = host(data).answer(answer, Vec::new()).0;
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
    // SAFETY: as above.
    unsafe {
        let host = host(data);
        let found = host.host.resolve(&specifier.text(), &referrer.text());
        let exists = found.is_ok();
        let (first, second) = found.unwrap_or_else(|why| (why, Vec::new()));
        (*path, *source) = host.answer(first, second);
        exists
    }
}
