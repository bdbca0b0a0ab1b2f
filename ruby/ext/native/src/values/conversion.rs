//! Conversion between Ruby objects and SQL values; `docs/ruby.md` has the table. The rules that all
//! languages share are in `crosslane-guest`.

use crate::errors::argument_error;
use crate::values::datetime::{date, time_of_day};
use crate::values::fields::{Part, Shape, class_of, is_row, width};
use crate::values::objects::{array, bytes, is, is_a, is_number, object, part};
use crate::values::primitives::{EPOCH, UTC, header, integer, known, send, utf8};
use crate::values::shared;
use crate::values::vm::{Made, Vm, Written};
use crosslane::{DataType, Field};
use crosslane_guest::{Class, Integer, Refusal, Taken, Temporal, Values, decimal_text};
use crosslane_gvl::{Unwind, class_name};
use magnus::Value;
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use rb_sys::{Qfalse, Qnil, Qtrue, Qundef, VALUE, ruby_value_type as kind};
use std::ffi::{c_int, c_void};

/// Methods that make and take objects are called protected, as [`Vm::new`] says. "Protected" means
/// this in the SAFETY comments below. While the methods call into Ruby, their own frames hold
/// nothing that must be dropped.
impl Values for Vm {
    const NOT_UTF8: &'static str = "String#scrub repairs it, or declare BLOB";

    type Value = VALUE;
    type Error = Unwind;
    type Shape = Shape;

    fn shape(&self, data_type: &DataType) -> Result<Shape, Unwind> {
        Ok(match data_type {
            DataType::Enum(names) => Shape::Names(shared::strings(names)?),
            DataType::Union(fields) => {
                let names: Vec<_> = fields[1..].iter().map(|field| field.name.clone()).collect();
                Shape::Names(shared::strings(&names)?)
            }
            DataType::Struct(fields) => {
                let parts = fields.iter().enumerate().map(|(place, field)| Part::new(place, field));
                let parts = parts.collect::<Result<_, _>>()?;
                Shape::Fields { class: shared::class(fields)?.into(), parts, narrow: false, bare: false }
            }
            DataType::Any => return Err(argument_error("a column has a type, and ANY is none").into()),
            _ => Shape::None,
        })
    }

    fn error(&self, class: Class, message: &str) -> Unwind {
        let class = match class {
            Class::Type => c"TypeError",
            Class::Range => c"RangeError",
            Class::Value => c"ArgumentError",
            Class::NoMemory => c"NoMemoryError",
        };
        Unwind::new(class, message)
    }

    /// An object as a text for a message. The text is cut, and errors of `inspect` are handled.
    fn shown(&self, value: &VALUE) -> Result<String, Unwind> {
        // SAFETY: the value is alive: it lies on the caller's stack.
        let value = unsafe { Value::from_raw(*value) };
        let class = class_name(value)?;
        let text: String = match value.funcall("inspect", ()) {
            Ok(text) => text,
            Err(error) => {
                let unwind = Unwind::from(error);
                return if unwind.is_final() { Err(unwind) } else { Ok(class) };
            }
        };
        let mut shown = format!("{class} ");
        shown.extend(text.chars().take(80));
        if text.chars().nth(80).is_some() {
            shown.push_str("...");
        }
        Ok(shown)
    }

    #[inline(always)]
    fn null(&self) -> VALUE {
        Qnil as VALUE
    }

    fn boolean(&self, value: bool) -> Made {
        Ok((if value { Qtrue } else { Qfalse }) as VALUE)
    }

    #[inline(always)]
    fn integer(&self, value: i64) -> Made {
        // SAFETY: protected.
        Ok(unsafe { integer(value) })
    }

    fn wide(&self, value: Integer) -> Made {
        if let Some(value) = value.narrow::<i64>() {
            return self.integer(value);
        }
        let words = [value.magnitude as u64, (value.magnitude >> 64) as u64];
        let order = rb_sys::INTEGER_PACK_LSWORD_FIRST | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER;
        let sign = if value.negative { rb_sys::INTEGER_PACK_NEGATIVE } else { 0 };
        // SAFETY: protected; two words of eight bytes are passed.
        Ok(unsafe { rb_sys::rb_integer_unpack(words.as_ptr().cast(), 2, 8, 0, (order | sign) as c_int) })
    }

    fn big(&self, bytes: &[u8]) -> Made {
        let flags = (rb_sys::INTEGER_PACK_LITTLE_ENDIAN | rb_sys::INTEGER_PACK_2COMP) as c_int;
        // SAFETY: protected; so many bytes are passed.
        Ok(unsafe { rb_sys::rb_integer_unpack(bytes.as_ptr().cast(), bytes.len() as u64, 1, 0, flags) })
    }

    #[inline(always)]
    fn float(&self, value: f64) -> Made {
        // SAFETY: protected.
        Ok(unsafe { rb_sys::rb_float_new(value) })
    }

    fn decimal(&self, unscaled: i128, scale: u8) -> Made {
        let mut place = [0; 48];
        // SAFETY: protected.
        Ok(unsafe {
            send(known().kernel, c"BigDecimal", &[utf8(decimal_text(unscaled, scale, &mut place), true)])
        })
    }

    #[inline(always)]
    fn text(&self, bytes: &[u8], ascii: Option<bool>) -> Made {
        // SAFETY: protected.
        Ok(unsafe { utf8(bytes, ascii.unwrap_or_else(|| bytes.is_ascii())) })
    }

    fn json(&self, _: &Shape, bytes: &[u8]) -> Made {
        // SAFETY: protected.
        Ok(unsafe { send(known().json, c"parse", &[utf8(bytes, bytes.is_ascii())]) })
    }

    fn bytes(&self, bytes: &[u8]) -> Made {
        // SAFETY: protected.
        Ok(unsafe { rb_sys::rb_str_new(bytes.as_ptr().cast(), bytes.len() as i64) })
    }

    fn temporal(&self, _: &Shape, moment: Temporal) -> Made {
        // SAFETY: protected.
        Ok(unsafe {
            match moment {
                Temporal::Date(days) => {
                    send(known().date, c"jd", &[integer(days + EPOCH), known().gregorian])
                }
                Temporal::Time { nanoseconds, offset } => {
                    let offset = offset.map_or(Qnil as VALUE, |offset| integer(offset.into()));
                    let parts = [integer(nanoseconds / 1000), integer(nanoseconds % 1000), offset];
                    object(known().time_of_day, &parts)
                }
                Temporal::Timestamp { seconds, nanoseconds } => {
                    let time = rb_sys::timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
                    rb_sys::rb_time_timespec_new(&time, UTC)
                }
                Temporal::Interval { months, days, microseconds } => {
                    object(known().interval, &[integer(months), integer(days), integer(microseconds)])
                }
                Temporal::Infinite(number) => rb_sys::rb_float_new(number),
            }
        })
    }

    fn code(&self, shape: &Shape, code: usize) -> Made {
        let Shape::Names(names) = shape else { return Ok(self.null()) };
        // SAFETY: the Array lives as long as the shape.
        Ok(unsafe { rb_sys::rb_ary_entry(names.get(), code as i64) })
    }

    fn list(&self, count: usize, mut element: impl FnMut(usize) -> Made) -> Made {
        // SAFETY: protected.
        unsafe {
            let list = rb_sys::rb_ary_new_capa(count as i64);
            for at in 0..count {
                rb_sys::rb_ary_push(list, element(at)?);
            }
            Ok(list)
        }
    }

    fn structure(&self, shape: &Shape, count: usize, field: impl FnMut(usize) -> Made) -> Made {
        let values = self.list(count, field)?;
        let Shape::Fields { class, .. } = shape else { return Ok(values) };
        let Some(class) = class.get() else { return Ok(values) };
        // SAFETY: protected; the class lives as long as the shape.
        let object = unsafe { rb_sys::rb_struct_alloc(class.get(), values) };
        // The call copies the values of the Array, but does not keep the Array alive.
        std::hint::black_box(&values);
        Ok(object)
    }

    fn member(&self, shape: &Shape, member: usize, value: VALUE) -> Made {
        let parts = [self.code(shape, member)?, value];
        // SAFETY: protected.
        Ok(unsafe { object(known().tagged, &parts) })
    }

    fn map(
        &self,
        _: &Shape,
        count: usize,
        mut entry: impl FnMut(usize) -> Result<(VALUE, VALUE), Unwind>,
    ) -> Made {
        // SAFETY: protected.
        unsafe {
            let hash = rb_sys::rb_hash_new();
            for at in 0..count {
                let (key, value) = entry(at)?;
                rb_sys::rb_hash_aset(hash, key, value);
            }
            Ok(hash)
        }
    }

    #[inline(always)]
    fn is_null(&self, value: &VALUE) -> bool {
        *value == Qnil as VALUE
    }

    fn to_boolean(&self, value: &VALUE) -> Taken<bool, Self> {
        match *value {
            value if value == Qtrue as VALUE => Ok(true),
            value if value == Qfalse as VALUE => Ok(false),
            _ => Err(Refusal::Mismatch),
        }
    }

    #[inline(always)]
    fn quick_integer(&self, value: &VALUE) -> Option<i64> {
        rb_sys::FIXNUM_P(*value).then_some(*value as i64 >> 1)
    }

    #[inline(always)]
    fn quick_float(&self, value: &VALUE) -> Option<f64> {
        // SAFETY: the value is alive.
        unsafe { rb_sys::RB_FLOAT_TYPE_P(*value).then(|| rb_sys::rb_float_value(*value)) }
    }

    fn to_integer(&self, value: &VALUE) -> Taken<Integer, Self> {
        // SAFETY: protected; the words are as many as passed.
        unsafe {
            if !rb_sys::RB_INTEGER_TYPE_P(*value) {
                return Err(Refusal::Mismatch);
            }
            let mut words = [0u64; 2];
            let flags = (rb_sys::INTEGER_PACK_LSWORD_FIRST | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER) as c_int;
            let sign = rb_sys::rb_integer_pack(*value, words.as_mut_ptr().cast(), 2, 8, 0, flags);
            if sign.abs() > 1 {
                return Err(Refusal::TooLarge);
            }
            let magnitude = u128::from(words[0]) | u128::from(words[1]) << 64;
            Ok(Integer { negative: sign < 0, magnitude })
        }
    }

    fn with_big<R>(&self, value: &VALUE, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        // SAFETY: protected; the String has the bytes that are passed, one more than the magnitude
        // needs, and lives until they were taken.
        unsafe {
            if !rb_sys::RB_INTEGER_TYPE_P(*value) {
                return Err(Refusal::Mismatch);
            }
            let length = rb_sys::rb_absint_size(*value, std::ptr::null_mut()) + 1;
            let place = rb_sys::rb_str_new(std::ptr::null(), length as i64);
            let flags = (rb_sys::INTEGER_PACK_LITTLE_ENDIAN | rb_sys::INTEGER_PACK_2COMP) as c_int;
            rb_sys::rb_integer_pack(*value, rb_sys::RSTRING_PTR(place) as *mut c_void, length, 1, 0, flags);
            let taken = take(bytes(place));
            std::hint::black_box(&place);
            Ok(taken)
        }
    }

    fn to_float(&self, value: &VALUE) -> Taken<f64, Self> {
        if let Some(number) = self.quick_float(value) {
            return Ok(number);
        }
        // SAFETY: protected.
        unsafe {
            if !is_number(*value) {
                return Err(Refusal::Mismatch);
            }
            let number = rb_sys::rb_num2dbl(*value);
            // An Integer may be too large for a Float.
            if number.is_infinite() && send(*value, c"infinite?", &[]) == Qnil as VALUE {
                return Err(Refusal::TooLarge);
            }
            Ok(number)
        }
    }

    fn with_decimal<R>(&self, value: &VALUE, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        // SAFETY: protected; the text lives until it was taken.
        unsafe {
            if !is_number(*value) {
                return Err(Refusal::Mismatch);
            }
            let number = if is_a(*value, known().big_decimal) {
                *value
            } else if is(*value, kind::RUBY_T_RATIONAL) {
                send(known().kernel, c"BigDecimal", &[*value, integer(60)])
            } else {
                send(known().kernel, c"BigDecimal", &[*value])
            };
            if send(number, c"finite?", &[]) != Qtrue as VALUE {
                return Err(Refusal::TooLarge);
            }
            let text = send(number, c"to_s", &[]);
            let taken = self.with_bytes(&text, take);
            std::hint::black_box(&text);
            taken
        }
    }

    #[inline]
    fn with_text<R>(&self, value: &VALUE, take: impl FnOnce(&[u8], bool) -> R) -> Taken<R, Self> {
        // SAFETY: protected; the String lives until its bytes were taken.
        unsafe {
            let mut string = *value;
            if rb_sys::RB_SYMBOL_P(string) {
                string = rb_sys::rb_sym2str(string);
            } else if !is(string, kind::RUBY_T_STRING) {
                return Err(Refusal::Mismatch);
            }
            let encoding = header::encoding(string);
            if encoding != header::UTF_8 && encoding != header::US_ASCII {
                if encoding == header::BINARY && header::range(string) != header::ASCII {
                    let advice = "return it with force_encoding(\"UTF-8\"), or declare BLOB";
                    return Err(Refusal::Due(", which is binary,", advice));
                }
                let utf8 = rb_sys::rb_enc_from_encoding(rb_sys::rb_utf8_encoding());
                string = rb_sys::rb_str_encode(string, utf8, 0, Qnil as VALUE);
            }
            let valid = matches!(header::known_range(string), header::ASCII | header::VALID);
            let taken = take(bytes(string), valid);
            std::hint::black_box(&string);
            Ok(taken)
        }
    }

    fn with_json<R>(&self, _: &Shape, value: &VALUE, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        // SAFETY: protected; the text lives until it was taken.
        unsafe {
            let text = send(known().json, c"generate", &[*value]);
            let taken = self.with_bytes(&text, take);
            std::hint::black_box(&text);
            taken
        }
    }

    fn with_bytes<R>(&self, value: &VALUE, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        // SAFETY: the String lives until its bytes were taken.
        unsafe {
            if is(*value, kind::RUBY_T_STRING) { Ok(take(bytes(*value))) } else { Err(Refusal::Mismatch) }
        }
    }

    fn to_temporal(&self, value: &VALUE, data_type: &DataType) -> Taken<Temporal, Self> {
        if let Some(number) = self.quick_float(value) {
            return Ok(Temporal::Infinite(number));
        }
        // SAFETY: protected.
        unsafe {
            match data_type {
                DataType::Date => date(*value),
                DataType::Time | DataType::TimeNs | DataType::TimeTz => time_of_day(*value, data_type),
                DataType::Interval => {
                    if !is_a(*value, known().interval) {
                        return Err(Refusal::Mismatch);
                    }
                    let [months, days] = [part(*value, c"months")?, part(*value, c"days")?];
                    Ok(Temporal::Interval { months, days, microseconds: part(*value, c"microseconds")? })
                }
                _ => {
                    let is_time = is_a(*value, rb_sys::rb_cTime);
                    if !is_time && !is_a(*value, known().datetime) {
                        return Err(Refusal::Mismatch);
                    }
                    let time = if is_time { *value } else { send(*value, c"to_time", &[]) };
                    let at = rb_sys::rb_time_timespec(time);
                    let instant = *data_type == DataType::TimestampTz;
                    let offset = if instant { 0 } else { part(time, c"utc_offset")? };
                    let seconds = at.tv_sec.saturating_add(offset);
                    Ok(Temporal::Timestamp { seconds, nanoseconds: at.tv_nsec as u32 })
                }
            }
        }
    }

    fn with_elements(
        &self,
        value: &VALUE,
        mut element: impl FnMut(usize, &VALUE) -> Written,
    ) -> Taken<Written, Self> {
        // SAFETY: protected; the length is read again for each element, because `element` may call
        // Ruby.
        unsafe {
            let array = array(*value)?;
            let mut at = 0;
            while at < rb_sys::RARRAY_LEN(array) {
                let count = rb_sys::RARRAY_LEN(array) as usize;
                if let Err(fault) = element(count, &rb_sys::rb_ary_entry(array, at)) {
                    return Ok(Err(fault));
                }
                at += 1;
            }
        }
        Ok(Ok(()))
    }

    /// Reads fields from a Hash's keys, an Array's elements, a Struct's members, or methods.
    fn with_fields(
        &self,
        shape: &Shape,
        all: &[Field],
        value: &VALUE,
        mut field: impl FnMut(usize, &VALUE) -> Written,
    ) -> Taken<Written, Self> {
        let value = *value;
        let Shape::Fields { class, parts, narrow, bare } = shape else { return Err(Refusal::Mismatch) };
        // SAFETY: protected.
        unsafe {
            if *bare && !is_row(value, all) {
                // The query may not need the column.
                return Ok(if parts.is_empty() { Ok(()) } else { field(0, &value) });
            }
            if rb_sys::SPECIAL_CONST_P(value)
                || is(value, kind::RUBY_T_STRING)
                || is(value, kind::RUBY_T_FLOAT)
            {
                return Err(Refusal::Mismatch);
            }
            let positional = is(value, kind::RUBY_T_ARRAY);
            let given = if positional { rb_sys::RARRAY_LEN(value) as usize } else { 0 };
            // If both numbers are equal, all fields are wanted, and both forms are the same.
            let narrowed = *narrow && given == parts.len();
            if positional && given != all.len() && !narrowed {
                return Err(Refusal::Type(width(given, all, parts, *narrow)));
            }
            let ours = is(value, kind::RUBY_T_STRUCT)
                && rb_sys::rb_obj_class(value) == class_of(class, all).map_err(Refusal::Failed)?;
            let hash = is(value, kind::RUBY_T_HASH);
            let undefined = Qundef as VALUE;
            for (index, part) in parts.iter().enumerate() {
                let found = if positional {
                    rb_sys::rb_ary_entry(value, if narrowed { index } else { part.place } as i64)
                } else if ours {
                    rb_sys::rb_struct_aref(value, integer(part.place as i64))
                } else if hash {
                    match rb_sys::rb_hash_lookup2(value, part.symbol.get(), undefined) {
                        found if found != undefined => found,
                        _ => rb_sys::rb_hash_lookup2(value, part.string.get(), undefined),
                    }
                } else if rb_sys::rb_obj_respond_to(value, rb_sys::rb_sym2id(part.symbol.get()), 0) != 0 {
                    rb_sys::rb_funcallv(value, rb_sys::rb_sym2id(part.symbol.get()), 0, std::ptr::null())
                } else {
                    undefined
                };
                if found == undefined {
                    let due = DataType::Struct(all.into());
                    let what = format!(", which lacks the field {} of {due}", all[part.place].name);
                    return Err(Refusal::Other(what));
                }
                if let Err(fault) = field(index, &found) {
                    return Ok(Err(fault));
                }
            }
        }
        Ok(Ok(()))
    }

    fn with_member(
        &self,
        _: &Shape,
        _: &[Field],
        value: &VALUE,
        member: impl FnOnce(&[u8], &VALUE) -> Written,
    ) -> Taken<Written, Self> {
        // SAFETY: protected.
        unsafe {
            if !is_a(*value, known().tagged) {
                return Err(Refusal::Due("", "return Crosslane::Tagged.new(tag, value)"));
            }
            let tag = send(*value, c"tag", &[]);
            let tagged = send(*value, c"value", &[]);
            let written = self.with_text(&tag, |tag, _| member(tag, &tagged));
            std::hint::black_box(&tagged);
            written
        }
    }

    fn with_entries(
        &self,
        value: &VALUE,
        mut entry: impl FnMut(usize, &VALUE, &VALUE) -> Written,
    ) -> Taken<Written, Self> {
        // SAFETY: protected.
        unsafe {
            let hash = rb_sys::rb_check_hash_type(*value);
            if hash == Qnil as VALUE {
                return Err(Refusal::Mismatch);
            }
            let keys = send(hash, c"keys", &[]);
            let count = rb_sys::RARRAY_LEN(keys);
            for at in 0..count {
                let key = rb_sys::rb_ary_entry(keys, at);
                if let Err(fault) = entry(count as usize, &key, &rb_sys::rb_hash_aref(hash, key)) {
                    return Ok(Err(fault));
                }
            }
        }
        Ok(Ok(()))
    }
}
