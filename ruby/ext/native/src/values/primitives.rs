//! Small operations on Ruby values, for reading and writing.
//!
//! # Longjmps
//! The `unsafe` functions here and in [`crate::values::columns`] may raise. A raise is a longjmp to
//! the `rb_protect` in [`crosslane_gvl`]. So the functions' frames hold nothing that must be
//! dropped while they call into Ruby.

use crosslane_gvl::{Unwind, made};
use magnus::Value;
use magnus::value::BoxValue;
use rb_sys::VALUE;
use std::ffi::{CStr, c_int};
use std::fmt;

/// The value that means "UTC" for `rb_time_timespec_new`.
pub(crate) const UTC: c_int = c_int::MAX - 1;
/// Julian day number of 1970-01-01.
pub(crate) const EPOCH: i64 = 2_440_588;

/// Classes and names. They are looked up once and pinned, because the collector may move unpinned
/// objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) kernel: VALUE,
    pub(crate) date: VALUE,
    pub(crate) datetime: VALUE,
    pub(crate) big_decimal: VALUE,
    pub(crate) json: VALUE,
    pub(crate) interval: VALUE,
    pub(crate) time_of_day: VALUE,
    pub(crate) tagged: VALUE,
    pub(crate) gregorian: VALUE,
    pub(crate) uncaught_throw: VALUE,
}

// SAFETY: the values are pinned constants, used with the GVL only.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

static KNOWN: std::sync::OnceLock<Known> = std::sync::OnceLock::new();

/// The constants; [`prepare`] was called when the library was loaded.
#[inline]
pub(crate) fn known() -> &'static Known {
    KNOWN.get().expect("the library is prepared")
}

/// Looks up the constants.
///
/// # Safety
/// With the GVL, protected; the gem's Ruby code is loaded.
pub(crate) unsafe fn prepare() {
    // SAFETY: as the caller says; each value is pinned.
    unsafe {
        let pinned = |path: &CStr| {
            let value = rb_sys::rb_path2class(path.as_ptr());
            rb_sys::rb_gc_register_mark_object(value);
            value
        };
        let date = pinned(c"Date");
        let gregorian = rb_sys::rb_const_get(date, intern(c"GREGORIAN"));
        rb_sys::rb_gc_register_mark_object(gregorian);
        let known = Known {
            kernel: rb_sys::rb_mKernel,
            date,
            datetime: pinned(c"DateTime"),
            big_decimal: pinned(c"BigDecimal"),
            json: pinned(c"JSON"),
            interval: pinned(c"Crosslane::Interval"),
            time_of_day: pinned(c"Crosslane::TimeOfDay"),
            tagged: pinned(c"Crosslane::Tagged"),
            gregorian,
            uncaught_throw: pinned(c"UncaughtThrowError"),
        };
        let _ = KNOWN.set(known);
    }
}

/// The ID of a name.
///
/// # Safety
/// With the GVL, protected: there may be no memory for a new name.
pub(crate) unsafe fn intern(name: &CStr) -> rb_sys::ID {
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_intern(name.as_ptr()) }
}

/// Calls a method.
///
/// # Safety
/// With the GVL, protected: it may raise.
pub(crate) unsafe fn send(receiver: VALUE, name: &CStr, arguments: &[VALUE]) -> VALUE {
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_funcallv(receiver, intern(name), arguments.len() as c_int, arguments.as_ptr()) }
}

/// Makes an Integer.
///
/// # Safety
/// With the GVL.
#[inline(always)]
pub(crate) unsafe fn integer(value: i64) -> VALUE {
    // A small integer is stored in the value itself, shifted, with a tag.
    if value << 1 >> 1 == value {
        return (value << 1 | 1) as VALUE;
    }
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_ll2inum(value) }
}

/// A String's encoding, which its header has as an index, and the known properties of its bytes.
pub(crate) mod header {
    use rb_sys::{RBasic, VALUE};

    /// The indices of Ruby's first three encodings, which are built in (`encindex.h`).
    pub(crate) const BINARY: VALUE = 0;
    pub(crate) const UTF_8: VALUE = 1;
    pub(crate) const US_ASCII: VALUE = 2;
    const SHIFT: u32 = rb_sys::ruby_encoding_consts::RUBY_ENCODING_SHIFT as u32;
    const MASK: VALUE = rb_sys::ruby_encoding_consts::RUBY_ENCODING_MASK as VALUE;
    const RANGES: VALUE = rb_sys::ruby_coderange_type::RUBY_ENC_CODERANGE_MASK as VALUE;
    pub(crate) const UNKNOWN: VALUE = 0;
    pub(crate) const ASCII: VALUE = rb_sys::ruby_coderange_type::RUBY_ENC_CODERANGE_7BIT as VALUE;
    pub(crate) const VALID: VALUE = rb_sys::ruby_coderange_type::RUBY_ENC_CODERANGE_VALID as VALUE;

    /// The index of a String's encoding. If the index is larger than 126, this is another number.
    ///
    /// # Safety
    /// The value must be a String.
    #[inline(always)]
    pub(crate) unsafe fn encoding(string: VALUE) -> VALUE {
        // SAFETY: a String is on the heap, and begins with its flags.
        unsafe { ((*(string as *const RBasic)).flags & MASK) >> SHIFT }
    }

    /// The known properties of a String's bytes.
    ///
    /// # Safety
    /// The value must be a String.
    #[inline(always)]
    pub(crate) unsafe fn known_range(string: VALUE) -> VALUE {
        // SAFETY: as above.
        unsafe { (*(string as *const RBasic)).flags & RANGES }
    }

    /// The properties of a String's bytes. Unknown ones are determined.
    ///
    /// # Safety
    /// The value must be a String; with the GVL.
    pub(crate) unsafe fn range(string: VALUE) -> VALUE {
        // SAFETY: as the caller says.
        unsafe {
            match known_range(string) {
                UNKNOWN => rb_sys::rb_enc_str_coderange(string) as VALUE,
                known => known,
            }
        }
    }

    /// Makes a new, binary String a UTF-8 String, and sets the known properties of its bytes.
    ///
    /// # Safety
    /// The value must be a String that `rb_str_new` made, and its bytes as said.
    #[inline(always)]
    pub(crate) unsafe fn set_utf8(string: VALUE, range: VALUE) {
        // SAFETY: as above.
        unsafe { (*(string as *mut RBasic)).flags |= UTF_8 << SHIFT | range }
    }
}

/// Makes a String of bytes that are valid UTF-8 (and ASCII, if `ascii`). These properties are set
/// in its header, so Ruby's methods need not check them again.
///
/// # Safety
/// With the GVL, protected.
#[inline(always)]
pub(crate) unsafe fn utf8(bytes: &[u8], ascii: bool) -> VALUE {
    // SAFETY: as the caller says; a new string is binary, and nothing is known of it yet.
    unsafe {
        let string = rb_sys::rb_str_new(bytes.as_ptr().cast(), bytes.len() as i64);
        header::set_utf8(string, if ascii { header::ASCII } else { header::VALID });
        string
    }
}

/// Keeps an object alive and prevents its move. It is made and dropped with the GVL.
pub(crate) struct Held(BoxValue<Value>);

// SAFETY: made, used and dropped with the GVL only.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(object: Value) -> Result<Self, Unwind> {
        made(|| Self(BoxValue::new(object)))
    }

    /// The object. With the GVL.
    pub(crate) fn get(&self) -> Value {
        *self.0
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}
