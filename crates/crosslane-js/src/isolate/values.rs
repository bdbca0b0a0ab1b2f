//! Values that pass into an isolate and out of it.

use super::ffi::{self, ClValue};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

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
    /// Whether it gave an array, whose parts are in [`super::Isolate::reply`].
    pub(crate) array: bool,
    pub(crate) text: String,
    pub(crate) number: f64,
}

/// The array that the last call gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply<'a> {
    /// It lives as long as its parts, which the isolate lends.
    isolate: NonNull<ffi::ClIsolate>,
    parts: &'a [ClValue],
}

impl<'a> Reply<'a> {
    /// The parts that an isolate lends, of its last call.
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
            let isolate = self.isolate.as_ptr();
            ffi::cl_read_string(isolate, index, text.as_mut_ptr(), std::ptr::null_mut());
        }
    }

    /// Reads a string of two bytes per character into `text`, which has its length.
    pub(crate) fn utf16(&self, index: usize, text: &mut [u16]) {
        assert!(matches!(self.part(index), Part::Utf16(length) if length == text.len()));
        // SAFETY: the part is a string of this length.
        unsafe {
            let isolate = self.isolate.as_ptr();
            ffi::cl_read_string(isolate, index, std::ptr::null_mut(), text.as_mut_ptr());
        }
    }
}
