//! Ruby objects in the encoding that travels to V8 and back (`crates/crosslane-js/shim/shim.h`).

use crate::class_of_v8;
use crosslane_gvl::protect;
use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::{Qfalse, Qtrue, ReprValue};
use magnus::{
    Error, Float, Integer, Module, RArray, RClass, RHash, RString, Ruby, Symbol, TryConvert, Value,
};
use std::ffi::c_int;

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
/// A promise that nothing has settled.
pub(crate) const PENDING: u8 = 11;
/// As on the other side.
const DEEPEST: u32 = 100;

fn ruby() -> Ruby {
    Ruby::get().expect("only called with the GVL")
}

fn refused(message: String) -> Error {
    Error::new(ruby().exception_type_error(), message)
}

/// An Array, as `invoke` takes it: the number of elements, and these.
pub(crate) fn encode_all(values: RArray) -> Result<Vec<u8>, Error> {
    let mut out = (values.len() as u32).to_le_bytes().to_vec();
    for index in 0..values.len() {
        encode(values.entry(index as isize)?, 0, &mut out)?;
    }
    Ok(out)
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

/// One object.
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
        out.push(UNDEFINED);
    } else if Qtrue::from_value(value).is_some() {
        out.push(TRUE);
    } else if Qfalse::from_value(value).is_some() {
        out.push(FALSE);
    } else if let Some(float) = Float::from_value(value) {
        out.push(NUMBER);
        out.extend_from_slice(&float.to_f64().to_le_bytes());
    } else if let Some(symbol) = Symbol::from_value(value) {
        out.push(TEXT);
        put_text(symbol.name()?.as_bytes(), out);
    } else if let Some(array) = RArray::from_value(value) {
        out.push(ARRAY);
        out.extend_from_slice(&(array.len() as u32).to_le_bytes());
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
    out.push(OBJECT);
    out.extend_from_slice(&(hash.len() as u32).to_le_bytes());
    let keys: RArray = hash.funcall("keys", ())?;
    for index in 0..keys.len() {
        let key: Value = keys.entry(index as isize)?;
        let name: String = key.funcall("to_s", ())?;
        put_text(name.as_bytes(), out);
        encode(hash.aref(key)?, depth + 1, out)?;
    }
    Ok(())
}

fn encode_string(string: RString, out: &mut Vec<u8>) -> Result<(), Error> {
    use magnus::encoding::EncodingCapable;
    // SAFETY: the bytes are copied before anything else happens.
    let bytes = unsafe { string.as_slice() };
    if string.enc_get() == ruby().ascii8bit_encindex() && !bytes.is_ascii() {
        out.push(BYTES);
        put_text(bytes, out);
        return Ok(());
    }
    out.push(TEXT);
    // What is no UTF-8 is converted, or raises.
    match std::str::from_utf8(bytes) {
        Ok(text) if string.is_utf8_compatible_encoding() => put_text(text.as_bytes(), out),
        _ => put_text(string.to_string()?.as_bytes(), out),
    }
    Ok(())
}

fn encode_integer(integer: Integer, out: &mut Vec<u8>) -> Result<(), Error> {
    // (Magnus takes the low half of some integers of 63 bits for what `to_i32` asks for.)
    if let Ok(exact) = integer.to_i64() {
        if let Ok(small) = i32::try_from(exact) {
            out.push(INT);
            out.extend_from_slice(&small.to_le_bytes());
            return Ok(());
        }
        // Up to 2^53 a number is exact; beyond that only a BigInt is.
        if exact.unsigned_abs() <= 1 << 53 {
            out.push(NUMBER);
            out.extend_from_slice(&(exact as f64).to_le_bytes());
            return Ok(());
        }
    }
    let raw = integer.as_raw();
    let mut words: Vec<u64> = Vec::new();
    // SAFETY: protected; the words are as many as are passed, and nothing in the closure is to be dropped.
    let sign = unsafe {
        let count = rb_sys::rb_absint_numwords(raw, 64, std::ptr::null_mut()) as usize;
        words.resize(count, 0);
        let (start, flags) =
            (words.as_mut_ptr(), rb_sys::INTEGER_PACK_LSWORD_FIRST | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER);
        let mut sign = 0;
        protect(|| sign = rb_sys::rb_integer_pack(raw, start.cast(), count as _, 8, 0, flags as c_int))?;
        sign
    };
    out.push(BIGINT);
    out.push(u8::from(sign < 0));
    out.extend_from_slice(&(words.len() as u32).to_le_bytes());
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    Ok(())
}

fn encode_other(value: Value, depth: u32, out: &mut Vec<u8>) -> Result<(), Error> {
    if class_of_v8("Bytes").is_ok_and(|class: RClass| value.is_kind_of(class)) {
        let string: RString = value.funcall("string", ())?;
        out.push(BYTES);
        // SAFETY: the bytes are copied before anything else happens.
        put_text(unsafe { string.as_slice() }, out);
        return Ok(());
    }
    let is = |name: &str| {
        let class: Option<RClass> = ruby().class_object().const_get(name).ok();
        class.is_some_and(|class| value.is_kind_of(class))
    };
    if is("Time") || is("DateTime") {
        // Time#to_time comes with the library "date" only.
        let time: Value = if is("Time") { value } else { value.funcall("to_time", ())? };
        let seconds: f64 = time.funcall("to_f", ())?;
        out.push(DATE);
        out.extend_from_slice(&(seconds * 1000.0).round().to_le_bytes());
        return Ok(());
    }
    if is("Date") {
        let days: i64 = value.funcall("jd", ())?;
        out.push(DATE);
        out.extend_from_slice(&((days - 2_440_588) as f64 * 86_400_000.0).to_le_bytes());
        return Ok(());
    }
    if is("Numeric") {
        out.push(NUMBER);
        out.extend_from_slice(&f64::try_convert(value)?.to_le_bytes());
        return Ok(());
    }
    if is("Struct") {
        return encode_hash(value.funcall("to_h", ())?, depth, out);
    }
    if is("Set") {
        return encode(value.funcall("to_a", ())?, depth, out);
    }
    // SAFETY: the name is copied at once.
    let class = unsafe { value.classname() }.into_owned();
    Err(refused(format!("a {class} cannot be passed to JavaScript; pass its to_h, to_a or to_s")))
}

/// Reads encoded values. V8's side wrote them.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl Decoder<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) =
            self.0.split_first_chunk::<N>().ok_or_else(|| refused("a value that is cut off".into()))?;
        self.0 = rest;
        Ok(*head)
    }

    fn count(&mut self) -> Result<usize, Error> {
        Ok(u32::from_le_bytes(self.take()?) as usize)
    }

    fn bytes(&mut self) -> Result<&[u8], Error> {
        let length = self.count()?;
        let (head, rest) =
            self.0.split_at_checked(length).ok_or_else(|| refused("a value that is cut off".into()))?;
        self.0 = rest;
        Ok(head)
    }

    fn text(&mut self) -> Result<RString, Error> {
        Ok(ruby().str_new(&String::from_utf8_lossy(self.bytes()?)))
    }

    /// The elements of an argument list.
    pub(crate) fn all(&mut self) -> Result<RArray, Error> {
        let count = self.count()?;
        let array = ruby().ary_new_capa(count);
        for _ in 0..count {
            array.push(self.value()?)?;
        }
        Ok(array)
    }

    pub(crate) fn value(&mut self) -> Result<Value, Error> {
        let ruby = ruby();
        let [tag] = self.take()?;
        Ok(match tag {
            TRUE => ruby.qtrue().as_value(),
            FALSE => ruby.qfalse().as_value(),
            INT => ruby.integer_from_i64(i32::from_le_bytes(self.take()?).into()).as_value(),
            NUMBER => {
                let number = f64::from_le_bytes(self.take()?);
                // What is whole is an Integer, as in JSON; -0 and what a double cannot tell apart are not.
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
            ARRAY => self.all()?.as_value(),
            OBJECT => {
                let count = self.count()?;
                let hash = ruby.hash_new();
                for _ in 0..count {
                    let name = self.text()?;
                    hash.aset(name, self.value()?)?;
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
                // SAFETY: protected, and nothing in the closure is to be dropped. The offset says UTC.
                protect(|| unsafe { time = rb_sys::rb_time_timespec_new(&at, c_int::MAX - 1) })?;
                // SAFETY: the Time lies on this stack.
                unsafe { Value::from_raw(time) }
            }
            BIGINT => self.text()?.funcall("to_i", ())?,
            BYTES => ruby.str_from_slice(self.bytes()?).as_value(),
            PENDING => ruby.hash_new().as_value(),
            _ => ruby.qnil().as_value(),
        })
    }
}
