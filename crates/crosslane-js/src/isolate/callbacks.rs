//! The functions of the host that V8 calls.

use super::engine::{Host, Reason};
use super::ffi::{ClHost, ClText};
use super::url;
use std::ffi::c_void;

/// The host behind a thin pointer, and the answer that V8 is reading.
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
/// `host` must be the pointer of [`HostBox::table`], and its box alive and not in use.
unsafe fn host<'a>(host: *mut c_void) -> &'a mut HostBox {
    // SAFETY: the caller guarantees this.
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
    // SAFETY: as above. The process ends, so the interrupted work does not go on.
    unsafe { host(data).host.fatal(Reason::of(reason), &what.to_text()) }
}

/// Returns false, because only the contexts of a program ([`crate::embed`]) have such functions.
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
    // SAFETY: the shim passes the table's pointer, texts that live during the call and a place for
    // the answer. The answer lives in the box until the next call.
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
    // SAFETY: as above. The answer lives in the box until the next call.
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
