//! Ruby objects in the encoding for values between Ruby and V8 (`crates/crosslane-js/shim/shim.h`).
//!
//! A program may make values of any size. If there is no memory for a value, this raises an
//! exception.

use crate::class_of_v8;
use crosslane_gvl::{class_name, made, protect};
use crosslane_js::isolate::Reason;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::{Qfalse, Qtrue, ReprValue};
use magnus::{
    Error, Float, Integer, Module, RArray, RClass, RHash, RString, Ruby, Symbol, TryConvert, Value,
};
use std::ffi::{OsString, c_int};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const UNDEFINED: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const INT: u8 = 3;
const NUMBER: u8 = 4;
const TEXT: u8 = 5;
const ARRAY: u8 = 6;
const OBJECT: u8 = 7;
const DATE: u8 = 8;
const BIGINT: u8 = 9;
const BYTES: u8 = 10;
/// A pending promise.
pub(crate) const PENDING: u8 = 11;
/// The largest depth of nested values; the other side has the same limit.
const DEEPEST: u32 = 100;

pub(crate) fn ruby() -> Ruby {
    Ruby::get().expect("only called with the GVL")
}

fn refused(message: String) -> Error {
    Error::new(ruby().exception_type_error(), message)
}

/// The exception for a value without memory.
pub(crate) fn no_memory() -> Error {
    crate::error("MemoryError", &Reason::NoMemory.to_string())
}

/// Encodes an Array as `invoke` expects it: the number of elements, and the elements.
pub(crate) fn encode_all(values: RArray) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    put_count(values.len(), &mut out)?;
    for index in 0..values.len() {
        encode(values.entry(index as isize)?, 0, &mut out)?;
    }
    Ok(out)
}

fn put(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    out.try_reserve(bytes.len()).map_err(|_| no_memory())?;
    out.extend_from_slice(bytes);
    Ok(())
}

/// Writes the number of the following elements or bytes.
fn put_count(count: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    let Ok(count) = u32::try_from(count) else {
        return Err(refused(format!(
            "{count} bytes or elements are more than JavaScript can hold in one value"
        )));
    };
    put(&count.to_le_bytes(), out)
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    put_count(bytes.len(), out)?;
    put(bytes, out)
}

/// A text in UTF-8. Other encodings are converted, or raise.
fn utf8(string: RString) -> Result<RString, Error> {
    if string.is_utf8_compatible_encoding() { Ok(string) } else { string.conv_enc(ruby().utf8_encoding()) }
}

fn put_text(string: RString, out: &mut Vec<u8>) -> Result<(), Error> {
    let string = utf8(string)?;
    // SAFETY: the bytes are copied before anything else happens.
    put_bytes(unsafe { string.as_str() }?.as_bytes(), out)
}

/// A copy of the bytes.
pub(crate) fn bytes(string: RString) -> Result<Vec<u8>, Error> {
    let mut copy = Vec::new();
    // SAFETY: the bytes are copied before anything else happens.
    put(unsafe { string.as_slice() }, &mut copy)?;
    Ok(copy)
}

/// A path.
pub(crate) fn path(string: RString) -> Result<PathBuf, Error> {
    Ok(OsString::from_vec(bytes(string)?).into())
}

/// A copy of the text.
pub(crate) fn text(string: RString) -> Result<String, Error> {
    let string = utf8(string)?;
    let mut copy = String::new();
    // SAFETY: the text is copied before anything else happens.
    let text = unsafe { string.as_str() }?;
    copy.try_reserve_exact(text.len()).map_err(|_| no_memory())?;
    copy.push_str(text);
    Ok(copy)
}

/// Decodes a value from V8.
pub(crate) fn decode(encoded: &[u8]) -> Result<Value, Error> {
    made(|| Decoder(encoded).value(0))?
}

/// Decodes an argument list from V8.
pub(crate) fn decode_all(encoded: &[u8]) -> Result<RArray, Error> {
    made(|| Decoder(encoded).all(0))?
}

/// Encodes an object.
pub(crate) fn encode(value: Value, depth: u32, out: &mut Vec<u8>) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(refused(
            "an object that contains itself, or is nested more than 100 deep, cannot be passed".into(),
        ));
    }
    if let Some(integer) = Integer::from_value(value) {
        return encode_integer(integer, out);
    }
    if let Some(string) = RString::from_value(value) {
        return encode_string(string, out);
    }
    if value.is_nil() {
        put(&[UNDEFINED], out)?;
    } else if Qtrue::from_value(value).is_some() {
        put(&[TRUE], out)?;
    } else if Qfalse::from_value(value).is_some() {
        put(&[FALSE], out)?;
    } else if let Some(float) = Float::from_value(value) {
        put(&[NUMBER], out)?;
        put(&float.to_f64().to_le_bytes(), out)?;
    } else if let Some(symbol) = Symbol::from_value(value) {
        put(&[TEXT], out)?;
        put_text(symbol.funcall("name", ())?, out)?;
    } else if let Some(array) = RArray::from_value(value) {
        put(&[ARRAY], out)?;
        put_count(array.len(), out)?;
        for index in 0..array.len() {
            encode(array.entry(index as isize)?, depth + 1, out)?;
        }
    } else if let Some(hash) = RHash::from_value(value) {
        encode_hash(hash, depth, out)?;
    } else {
        encode_other(value, depth, out)?;
    }
    Ok(())
}

fn encode_hash(hash: RHash, depth: u32, out: &mut Vec<u8>) -> Result<(), Error> {
    put(&[OBJECT], out)?;
    // Copies the keys, because their `to_s` may change the Hash.
    let keys: RArray = hash.funcall("keys", ())?;
    put_count(keys.len(), out)?;
    for index in 0..keys.len() {
        let key: Value = keys.entry(index as isize)?;
        put_text(key.funcall("to_s", ())?, out)?;
        encode(hash.aref(key)?, depth + 1, out)?;
    }
    Ok(())
}

fn encode_string(string: RString, out: &mut Vec<u8>) -> Result<(), Error> {
    use magnus::encoding::EncodingCapable;
    // SAFETY: the bytes are copied before anything else happens.
    let bytes = unsafe { string.as_slice() };
    if string.enc_get() == ruby().ascii8bit_encindex() && !bytes.is_ascii() {
        put(&[BYTES], out)?;
        return put_bytes(bytes, out);
    }
    put(&[TEXT], out)?;
    put_text(string, out)
}

fn encode_integer(integer: Integer, out: &mut Vec<u8>) -> Result<(), Error> {
    // (Magnus's `to_i32` accepts some integers of 63 bits and returns their low half.)
    if let Ok(exact) = integer.to_i64() {
        if let Ok(small) = i32::try_from(exact) {
            put(&[INT], out)?;
            return put(&small.to_le_bytes(), out);
        }
        // Integers up to 2^53 are exact as a number. Larger ones are exact only as a BigInt.
        if exact.unsigned_abs() <= 1 << 53 {
            put(&[NUMBER], out)?;
            return put(&(exact as f64).to_le_bytes(), out);
        }
    }
    let raw = integer.as_raw();
    let mut words: Vec<u64> = Vec::new();
    // SAFETY: protected; the words are as many as are passed, and nothing in the closure is to be
    // dropped.
    let sign = unsafe {
        let count = rb_sys::rb_absint_numwords(raw, 64, std::ptr::null_mut()) as usize;
        words.try_reserve_exact(count).map_err(|_| no_memory())?;
        words.resize(count, 0);
        let (start, flags) =
            (words.as_mut_ptr(), rb_sys::INTEGER_PACK_LSWORD_FIRST | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER);
        let mut sign = 0;
        protect(|| sign = rb_sys::rb_integer_pack(raw, start.cast(), count as _, 8, 0, flags as c_int))?;
        sign
    };
    put(&[BIGINT, u8::from(sign < 0)], out)?;
    put_count(words.len(), out)?;
    words.iter().try_for_each(|word| put(&word.to_le_bytes(), out))
}

fn encode_other(value: Value, depth: u32, out: &mut Vec<u8>) -> Result<(), Error> {
    let is = |name: &str| {
        let class: Option<RClass> = ruby().class_object().const_get(name).ok();
        class.is_some_and(|class| value.is_kind_of(class))
    };
    if is("Time") || is("DateTime") {
        // Time#to_time exists only with the library "date".
        let time: Value = if is("Time") { value } else { value.funcall("to_time", ())? };
        let seconds: f64 = time.funcall("to_f", ())?;
        put(&[DATE], out)?;
        return put(&(seconds * 1000.0).round().to_le_bytes(), out);
    }
    if is("Date") {
        let days: i64 = value.funcall("jd", ())?;
        put(&[DATE], out)?;
        return put(&((days - 2_440_588) as f64 * 86_400_000.0).to_le_bytes(), out);
    }
    if is("Numeric") {
        put(&[NUMBER], out)?;
        return put(&f64::try_convert(value)?.to_le_bytes(), out);
    }
    if is("Struct") {
        return encode_hash(value.funcall("to_h", ())?, depth, out);
    }
    if is("Set") {
        return encode(value.funcall("to_a", ())?, depth, out);
    }
    if class_of_v8("Bytes").is_ok_and(|class: RClass| value.is_kind_of(class)) {
        let string: RString = value.funcall("string", ())?;
        put(&[BYTES], out)?;
        // SAFETY: the bytes are copied before anything else happens.
        return put_bytes(unsafe { string.as_slice() }, out);
    }
    let class = class_name(value)?;
    Err(refused(format!("a {class} cannot be passed to JavaScript; pass its to_h, to_a or to_s")))
}

/// Reads the values that V8's side has encoded. Ruby's own exceptions may jump out of it (see
/// [`made`]).
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) =
            self.0.split_first_chunk::<N>().ok_or_else(|| refused("a value that is cut off".into()))?;
        self.0 = rest;
        Ok(*head)
    }

    fn count(&mut self) -> Result<usize, Error> {
        Ok(u32::from_le_bytes(self.take()?) as usize)
    }

    fn part(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (head, rest) =
            self.0.split_at_checked(length).ok_or_else(|| refused("a value that is cut off".into()))?;
        self.0 = rest;
        Ok(head)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = self.count()?;
        self.part(length)
    }

    fn text(&mut self) -> Result<RString, Error> {
        Ok(ruby().enc_str_new(self.bytes()?, ruby().utf8_encoding()))
    }

    /// Makes an Integer from its sign and words.
    fn integer(&mut self) -> Result<Integer, Error> {
        let [negative] = self.take()?;
        let count = self.count()?;
        let head = self.part(count * size_of::<u64>())?;
        let mut words: Vec<u64> = Vec::new();
        words.try_reserve_exact(count).map_err(|_| no_memory())?;
        words.extend(head.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        let mut flags =
            rb_sys::INTEGER_PACK_LSWORD_FIRST as c_int | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER as c_int;
        if negative != 0 {
            flags |= rb_sys::INTEGER_PACK_NEGATIVE as c_int;
        }
        let start = words.as_ptr().cast();
        let mut raw = ruby().qnil().as_raw();
        // SAFETY: protected; the words are as many as are passed, and nothing in the closure is to
        // be dropped.
        protect(|| raw = unsafe { rb_sys::rb_integer_unpack(start, count as _, 8, 0, flags) })?;
        // SAFETY: the Integer lies on this stack.
        Integer::try_convert(unsafe { Value::from_raw(raw) })
    }

    /// Reads the elements of an argument list.
    pub(crate) fn all(&mut self, depth: u32) -> Result<RArray, Error> {
        let count = self.count()?;
        // Each element has a byte at least.
        let array = ruby().ary_new_capa(count.min(self.0.len()));
        for _ in 0..count {
            array.push(self.value(depth)?)?;
        }
        Ok(array)
    }

    /// Reads a value that is in `depth` others.
    pub(crate) fn value(&mut self, depth: u32) -> Result<Value, Error> {
        if depth > DEEPEST {
            return Err(refused("a value that is nested more than 100 deep".into()));
        }
        let ruby = ruby();
        let [tag] = self.take()?;
        Ok(match tag {
            TRUE => ruby.qtrue().as_value(),
            FALSE => ruby.qfalse().as_value(),
            INT => ruby.integer_from_i64(i32::from_le_bytes(self.take()?).into()).as_value(),
            NUMBER => {
                let number = f64::from_le_bytes(self.take()?);
                // A whole number is an Integer, as in JSON. -0 and numbers beyond a double's exact
                // range are Floats.
                if number.fract() == 0.0
                    && number.abs() <= 9_007_199_254_740_992.0
                    && number.to_bits() != 1 << 63
                {
                    ruby.integer_from_i64(number as i64).as_value()
                } else {
                    ruby.float_from_f64(number).as_value()
                }
            }
            TEXT => self.text()?.as_value(),
            ARRAY => self.all(depth + 1)?.as_value(),
            OBJECT => {
                let count = self.count()?;
                let hash = ruby.hash_new();
                for _ in 0..count {
                    let name = self.text()?;
                    hash.aset(name, self.value(depth + 1)?)?;
                }
                hash.as_value()
            }
            DATE => {
                let millis = f64::from_le_bytes(self.take()?);
                if millis.is_nan() {
                    return Ok(ruby.qnil().as_value());
                }
                let (seconds, rest) = ((millis / 1000.0).floor(), millis.rem_euclid(1000.0));
                let at = rb_sys::timespec { tv_sec: seconds as i64, tv_nsec: rest as i64 * 1_000_000 };
                let mut time = ruby.qnil().as_raw();
                // SAFETY: protected, and nothing in the closure needs to be dropped. The offset
                // says UTC.
                protect(|| unsafe { time = rb_sys::rb_time_timespec_new(&at, c_int::MAX - 1) })?;
                // SAFETY: the Time lies on this stack.
                unsafe { Value::from_raw(time) }
            }
            BIGINT => self.integer()?.as_value(),
            BYTES => ruby.str_from_slice(self.bytes()?).as_value(),
            PENDING => ruby.hash_new().as_value(),
            _ => ruby.qnil().as_value(),
        })
    }
}
