//! The arguments and results of an isolate's calls.

use super::ffi::{self, ClValue};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// An argument of a method.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    None,
    /// Bytes. JavaScript gets a copy of them.
    Bytes(&'a [u8]),
    /// Bytes that the user's code does not see. They are copied to the start of a buffer, and the
    /// next call reuses the buffer.
    Reused(&'a [u8]),
    /// A word. JavaScript may write to its low half.
    Word(&'a AtomicU64),
    /// The strings between the offsets. A string of fewer than `least` bytes becomes `undefined`.
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
    pub(super) fn raw(&self) -> ClValue {
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
    /// A string of `length` Latin-1 characters, and its size in UTF-8. [`Reply::latin1`] reads it.
    Latin1 {
        length: usize,
        utf8: usize,
    },
    /// A string, as its number of UTF-16 units. [`Reply::utf16`] reads it.
    Utf16(usize),
}

/// The result of a method, except the parts of an array.
#[derive(Debug)]
pub(crate) struct Value {
    /// Whether the result is an array. Then its parts are in [`super::Isolate::reply`].
    pub(crate) array: bool,
    pub(crate) text: String,
    pub(crate) number: f64,
}

/// The array that the last call returned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply<'a> {
    /// The isolate owns the parts, so it lives as long as they do.
    isolate: NonNull<ffi::ClIsolate>,
    parts: &'a [ClValue],
}

impl<'a> Reply<'a> {
    /// The parts of an isolate's last call.
    pub(super) fn new(isolate: NonNull<ffi::ClIsolate>, parts: &'a [ClValue]) -> Self {
        Self { isolate, parts }
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn part(&self, index: usize) -> Part<'a> {
        let Some(value) = self.parts.get(index) else { return Part::None };
        match value.kind {
            ffi::NUMBER => Part::Number(value.number),
            ffi::BYTES if value.length == 0 => Part::Bytes(&[]),
            // SAFETY: the shim keeps the array and its memory until the next call into the isolate,
            // and that call needs `&mut`.
            ffi::BYTES => Part::Bytes(unsafe { std::slice::from_raw_parts(value.data, value.length) }),
            ffi::LATIN1 => Part::Latin1 { length: value.length, utf8: value.count },
            ffi::UTF16 => Part::Utf16(value.length),
            _ => Part::None,
        }
    }

    /// Returns a part that is a count, or 0.
    pub(crate) fn count(&self, index: usize) -> usize {
        match self.part(index) {
            Part::Number(number) => number as usize,
            _ => 0,
        }
    }

    /// Reads a string of one byte per character into `text`. `text` must have the string's length.
    pub(crate) fn latin1(&self, index: usize, text: &mut [u8]) {
        assert!(matches!(self.part(index), Part::Latin1 { length, .. } if length == text.len()));
        // SAFETY: the part is a string of this length.
        unsafe {
            let isolate = self.isolate.as_ptr();
            ffi::cl_read_string(isolate, index, text.as_mut_ptr(), std::ptr::null_mut());
        }
    }

    /// Reads a string of two bytes per character into `text`. `text` must have the string's length.
    pub(crate) fn utf16(&self, index: usize, text: &mut [u16]) {
        assert!(matches!(self.part(index), Part::Utf16(length) if length == text.len()));
        // SAFETY: the part is a string of this length.
        unsafe {
            let isolate = self.isolate.as_ptr();
            ffi::cl_read_string(isolate, index, std::ptr::null_mut(), text.as_mut_ptr());
        }
    }
}
