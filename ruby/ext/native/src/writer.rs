//! Results: a Ruby object as a value of a column.

use crate::reader::units;
use crate::shapes::{self, Shared};
use crate::values::{EPOCH, header, integer, known, send};
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType, Field, calendar, code_width, timetz};
use rb_sys::{Qfalse, Qnil, Qtrue, VALUE, ruby_value_type as kind};
use std::ffi::{CStr, c_int};
use std::fmt::Write;

/// How a Ruby object becomes a value of a column.
#[derive(Debug)]
pub(crate) struct Writer {
    data_type: DataType,
    parts: Parts,
}

/// What a type needs beside itself.
#[derive(Debug)]
enum Parts {
    None,
    /// Codes by String.
    Codes(Shared),
    Children(Vec<Writer>),
    /// The tags' codes by String, and the members.
    Members {
        codes: Shared,
        members: Vec<Writer>,
    },
    Fields {
        /// Of the Structs that stand for such a STRUCT.
        class: Option<Shared>,
        /// Those that are written.
        fields: Vec<Part>,
        /// Whether an Array may have only those.
        narrow: bool,
    },
}

#[derive(Debug)]
struct Part {
    /// Which of all fields it is.
    place: usize,
    name: String,
    symbol: Shared,
    string: Shared,
    writer: Writer,
}

/// Why an object is no value of the column. It becomes an exception where nothing is left to be dropped.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The object is of another type.
    Mismatch(VALUE),
    /// The object does not fit.
    TooLarge(VALUE),
    /// The Array has not as many values as there are fields; the text tells how many these are.
    Width(VALUE, String),
    /// Something else, which the text tells after "returned ".
    Other(VALUE, String),
    /// The batch is full, or there is no memory for it.
    Overflow(Overflow),
}

impl From<Overflow> for Fault {
    fn from(overflow: Overflow) -> Self {
        Fault::Overflow(overflow)
    }
}

/// The class of the exception for a column that cannot grow.
pub(crate) fn overflow_class(overflow: Overflow) -> &'static CStr {
    match overflow {
        Overflow::TooLarge => c"RangeError",
        Overflow::NoMemory => c"NoMemoryError",
    }
}

type Written = Result<(), Fault>;

/// # Safety
/// With the GVL.
#[inline(always)]
unsafe fn is(value: VALUE, wanted: kind) -> bool {
    // SAFETY: as the caller says.
    unsafe { rb_sys::RB_TYPE_P(value, wanted) }
}

/// # Safety
/// With the GVL.
unsafe fn is_a(value: VALUE, class: VALUE) -> bool {
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_obj_is_kind_of(value, class) == Qtrue as VALUE }
}

impl Parts {
    /// Those of a STRUCT's fields that are wanted, by their places.
    fn fields(fields: &[Field], wanted: &[usize], narrow: bool) -> Result<Self, magnus::Error> {
        let part = |place: usize| {
            let field = &fields[place];
            Ok::<_, magnus::Error>(Part {
                place,
                name: field.name.clone(),
                symbol: shapes::symbol(&field.name)?,
                string: shapes::string(&field.name)?,
                writer: Writer::new(&field.data_type)?,
            })
        };
        Ok(Parts::Fields {
            class: None,
            fields: wanted.iter().copied().map(part).collect::<Result<_, _>>()?,
            narrow,
        })
    }
}

impl Writer {
    /// A writer; the names that it compares with are pinned, once for each name.
    pub(crate) fn new(data_type: &DataType) -> Result<Self, magnus::Error> {
        let parts = match data_type {
            DataType::Enum(values) => Parts::Codes(shapes::codes(values)?),
            DataType::List(element) | DataType::Array(element, _) => {
                Parts::Children(vec![Writer::new(element)?])
            }
            DataType::Map(entry) => {
                Parts::Children(entry.children().map(Writer::new).collect::<Result<_, _>>()?)
            }
            DataType::Struct(fields) => {
                let all: Vec<_> = (0..fields.len()).collect();
                let mut parts = Parts::fields(fields, &all, false)?;
                if let Parts::Fields { class, .. } = &mut parts {
                    *class = Some(shapes::class(fields)?);
                }
                parts
            }
            DataType::Union(fields) => {
                let names: Vec<_> = fields[1..].iter().map(|field| field.name.clone()).collect();
                let members = fields[1..].iter().map(|field| Writer::new(&field.data_type));
                Parts::Members { codes: shapes::codes(&names)?, members: members.collect::<Result<_, _>>()? }
            }
            _ => Parts::None,
        };
        Ok(Self { data_type: data_type.clone(), parts })
    }

    /// A writer of the wanted fields of a STRUCT, by their places, into a column of a STRUCT of these alone. `narrow` says
    /// whether an Array may have only those.
    pub(crate) fn of_wanted(
        data_type: &DataType,
        wanted: &[usize],
        narrow: bool,
    ) -> Result<Self, magnus::Error> {
        let DataType::Struct(fields) = data_type else { return Writer::new(data_type) };
        Ok(Self { data_type: data_type.clone(), parts: Parts::fields(fields, wanted, narrow)? })
    }

    /// Makes ready for a row that may be a Struct of the STRUCT's own class. That is not made before: rows are rarely
    /// of it, and the names of its members stay in the VM.
    pub(crate) fn prepare(&mut self, row: VALUE) -> Result<(), magnus::Error> {
        if let (Parts::Fields { class: class @ None, .. }, DataType::Struct(all)) = (&mut self.parts, &self.data_type)
            // SAFETY: looks at the object's flags.
            && unsafe { is(row, kind::RUBY_T_STRUCT) }
        {
            *class = Some(shapes::class(all)?);
        }
        Ok(())
    }

    /// The exception for a fault: (class, message).
    pub(crate) fn explain(&self, fault: &Fault) -> (&'static CStr, String) {
        let due = &self.data_type;
        match fault {
            Fault::Mismatch(value) => {
                (c"TypeError", format!("returned {} where {due} is due", shown(*value)))
            }
            Fault::Width(value, due) => (c"TypeError", format!("returned {}, {due}", shown(*value))),
            Fault::TooLarge(value) => {
                (c"RangeError", format!("returned {}, which does not fit {due}", shown(*value)))
            }
            Fault::Other(value, what) => (c"ArgumentError", format!("returned {}{what}", shown(*value))),
            Fault::Overflow(overflow) => (overflow_class(*overflow), overflow.to_string()),
        }
    }

    /// Adds a row, as [`Writer::write`] adds an object that has room.
    ///
    /// # Errors
    /// As [`Writer::write`], or that there is no memory for it.
    ///
    /// # Safety
    /// As [`Writer::write`].
    pub(crate) unsafe fn write_row(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        out.reserve(1)?;
        // SAFETY: as the caller says.
        unsafe { self.write(value, out) }
    }

    /// Adds an object to the column, which has room for what is fixed of it ([`ColumnBuilder::reserve`]).
    ///
    /// # Errors
    /// Why it is no value of this type; the column may then hold a part of it.
    ///
    /// # Safety
    /// With the GVL, protected; the column must be of the writer's type.
    #[inline]
    pub(crate) unsafe fn write(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        // SAFETY: as the caller says.
        unsafe {
            if value == Qnil as VALUE {
                out.null();
                return Ok(());
            }
            match &self.data_type {
                DataType::BigInt if rb_sys::FIXNUM_P(value) => {
                    out.fixed(value as i64 >> 1);
                    Ok(())
                }
                DataType::Double if rb_sys::RB_FLOAT_TYPE_P(value) => {
                    out.fixed(rb_sys::rb_float_value(value));
                    Ok(())
                }
                DataType::Varchar => self.text(value, out),
                _ => self.other(value, out),
            }
        }
    }

    /// # Safety
    /// As [`Writer::write`].
    #[inline]
    unsafe fn text(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        // SAFETY: as the caller says; the String lives while its bytes are copied.
        unsafe {
            let mut string = value;
            if rb_sys::RB_SYMBOL_P(value) {
                string = rb_sys::rb_sym2str(value);
            } else if !is(value, kind::RUBY_T_STRING) {
                return Err(Fault::Mismatch(value));
            }
            let encoding = header::encoding(string);
            if encoding != header::UTF_8 && encoding != header::US_ASCII {
                if encoding == header::BINARY && header::range(string) != header::ASCII {
                    let advice = ", which is binary, where VARCHAR is due; return it with force_encoding(\"UTF-8\"), or declare BLOB";
                    return Err(Fault::Other(value, advice.into()));
                }
                let utf8 = rb_sys::rb_enc_from_encoding(rb_sys::rb_utf8_encoding());
                string = rb_sys::rb_str_encode(string, utf8, 0, Qnil as VALUE);
            }
            let valid = match header::known_range(string) {
                header::ASCII | header::VALID => true,
                // Quicker than asking Ruby.
                header::UNKNOWN => std::str::from_utf8(bytes(string)).is_ok(),
                _ => false,
            };
            if !valid {
                let advice = ", which is not valid UTF-8, where VARCHAR is due; String#scrub repairs it, or declare BLOB";
                return Err(Fault::Other(value, advice.into()));
            }
            out.bytes(bytes(string))?;
            Ok(())
        }
    }

    /// # Safety
    /// As [`Writer::write`].
    unsafe fn other(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        use DataType as T;
        // SAFETY: as the caller says.
        unsafe {
            match &self.data_type {
                T::Varchar | T::Bit => self.text(value, out)?,
                T::Boolean => match value {
                    _ if value == Qtrue as VALUE => out.boolean(true),
                    _ if value == Qfalse as VALUE => out.boolean(false),
                    _ => return Err(Fault::Mismatch(value)),
                },
                T::TinyInt => out.fixed(self.small::<i8>(value)?),
                T::SmallInt => out.fixed(self.small::<i16>(value)?),
                T::Integer => out.fixed(self.small::<i32>(value)?),
                T::BigInt => out.fixed(self.small::<i64>(value)?),
                T::UTinyInt => out.fixed(self.small::<u8>(value)?),
                T::USmallInt => out.fixed(self.small::<u16>(value)?),
                T::UInteger => out.fixed(self.small::<u32>(value)?),
                T::UBigInt => out.fixed(self.small::<u64>(value)?),
                T::HugeInt => out.fixed(self.small::<i128>(value)?),
                T::UHugeInt => match wide(value)? {
                    [low, high, 0] => out.fixed([low, high]),
                    _ => return Err(Fault::TooLarge(value)),
                },
                T::Float => {
                    let number = float(value)?;
                    let narrow = number as f32;
                    if narrow.is_infinite() && number.is_finite() {
                        return Err(Fault::TooLarge(value));
                    }
                    out.fixed(narrow);
                }
                T::Double => out.fixed(float(value)?),
                T::Decimal { precision, scale } => {
                    out.fixed(decimal(value, *precision, usize::from(*scale))?);
                }
                T::Json => {
                    let text = send(known().json, c"generate", &[value]);
                    out.bytes(bytes(text))?;
                }
                T::Blob | T::Geometry => {
                    if !is(value, kind::RUBY_T_STRING) {
                        return Err(Fault::Mismatch(value));
                    }
                    out.bytes(bytes(value))?;
                }
                T::Date => out.fixed(date(value)?),
                T::BigNum => big(value, out)?,
                T::Time => out.fixed(time_of_day(value, Precision::Micros)?),
                T::TimeNs => out.fixed(time_of_day(value, Precision::Nanos)?),
                T::TimeTz => out.fixed(time_with_zone(value)?),
                T::TimestampS => out.fixed(moment(value, 1, false)?),
                T::TimestampMs => out.fixed(moment(value, 1_000, false)?),
                T::Timestamp => out.fixed(moment(value, 1_000_000, false)?),
                T::TimestampNs => out.fixed(moment(value, 1_000_000_000, false)?),
                T::TimestampTz => out.fixed(moment(value, 1_000_000, true)?),
                T::Interval => out.fixed(interval(value)?),
                T::Uuid => out.fixed(uuid(value)?),
                T::Enum(values) => self.code(value, code_width(values.len()), out)?,
                T::List(_) => {
                    self.elements(value, out)?;
                    out.nested()?;
                }
                T::Array(_, length) => {
                    let count = self.elements(value, out)?;
                    if count != *length as usize {
                        return Err(Fault::Other(
                            value,
                            format!(", {count} elements where {} is due", self.data_type),
                        ));
                    }
                    out.nested()?;
                }
                T::Struct(_) => {
                    self.fields(value, out)?;
                    out.nested()?;
                }
                T::Union(_) => {
                    self.member(value, out)?;
                    out.nested()?;
                }
                T::Map(_) => {
                    self.entries(value, out)?;
                    out.nested()?;
                }
                // No result has it.
                T::Any => return Err(Fault::Mismatch(value)),
            }
        }
        Ok(())
    }

    /// An Integer that must fit.
    ///
    /// # Safety
    /// As [`Writer::write`].
    unsafe fn small<T: TryFrom<i128>>(&self, value: VALUE) -> Result<T, Fault> {
        // SAFETY: as the caller says.
        let number = unsafe {
            if rb_sys::FIXNUM_P(value) {
                i128::from(value as i64 >> 1)
            } else {
                let [low, high, top] = wide(value)?;
                let number = (u128::from(low) | u128::from(high) << 64) as i128;
                if top != if number < 0 { u64::MAX } else { 0 } {
                    return Err(Fault::TooLarge(value));
                }
                number
            }
        };
        T::try_from(number).map_err(|_| Fault::TooLarge(value))
    }

    /// # Safety
    /// As [`Writer::write`].
    unsafe fn code(&self, value: VALUE, width: usize, out: &mut ColumnBuilder) -> Written {
        let Parts::Codes(codes) = &self.parts else { return Err(Fault::Mismatch(value)) };
        // SAFETY: as the caller says.
        let Some(code) = (unsafe { code(value, codes.get()) }) else {
            return Err(Fault::Other(value, format!(", which is none of {}", self.data_type)));
        };
        match width {
            1 => out.fixed(code as u8),
            2 => out.fixed(code as u16),
            _ => out.fixed(code as u32),
        }
        Ok(())
    }

    /// Adds the elements of an Array, or of what can become one (no Hash, no String), to the child.
    ///
    /// # Safety
    /// As [`Writer::write`].
    unsafe fn elements(&self, value: VALUE, out: &mut ColumnBuilder) -> Result<usize, Fault> {
        let Parts::Children(children) = &self.parts else { return Err(Fault::Mismatch(value)) };
        // SAFETY: as the caller says; the length is looked at anew, because writing may call Ruby.
        unsafe {
            let array = array(value)?;
            let mut at = 0;
            out.children[0].reserve(rb_sys::RARRAY_LEN(array) as usize)?;
            while at < rb_sys::RARRAY_LEN(array) {
                children[0].write(rb_sys::rb_ary_entry(array, at), &mut out.children[0])?;
                at += 1;
            }
            Ok(at as usize)
        }
    }

    /// Takes a STRUCT's fields from a Hash's keys, an Array's places, a Struct's members, or methods.
    ///
    /// # Safety
    /// As [`Writer::write`].
    unsafe fn fields(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        let (Parts::Fields { class, fields, narrow }, DataType::Struct(all)) = (&self.parts, &self.data_type)
        else {
            return Err(Fault::Mismatch(value));
        };
        // SAFETY: as the caller says.
        unsafe {
            if rb_sys::SPECIAL_CONST_P(value)
                || is(value, kind::RUBY_T_STRING)
                || is(value, kind::RUBY_T_FLOAT)
            {
                return Err(Fault::Mismatch(value));
            }
            let positional = is(value, kind::RUBY_T_ARRAY);
            let given = if positional { rb_sys::RARRAY_LEN(value) as usize } else { 0 };
            // Where both are as many, they are the same.
            let narrowed = *narrow && given == fields.len();
            if positional && given != all.len() && !narrowed {
                return Err(Fault::Width(value, width(given, all, fields, *narrow)));
            }
            let ours = is(value, kind::RUBY_T_STRUCT)
                && class.as_ref().is_some_and(|class| rb_sys::rb_obj_class(value) == class.get());
            let hash = is(value, kind::RUBY_T_HASH);
            for (index, field) in fields.iter().enumerate() {
                let part = if positional {
                    rb_sys::rb_ary_entry(value, if narrowed { index } else { field.place } as i64)
                } else if ours {
                    rb_sys::rb_struct_aref(value, integer(field.place as i64))
                } else if hash {
                    let undefined = rb_sys::Qundef as VALUE;
                    match rb_sys::rb_hash_lookup2(value, field.symbol.get(), undefined) {
                        part if part != undefined => part,
                        _ => rb_sys::rb_hash_lookup2(value, field.string.get(), undefined),
                    }
                } else if rb_sys::rb_obj_respond_to(value, rb_sys::rb_sym2id(field.symbol.get()), 0) != 0 {
                    rb_sys::rb_funcallv(value, rb_sys::rb_sym2id(field.symbol.get()), 0, std::ptr::null())
                } else {
                    rb_sys::Qundef as VALUE
                };
                if part == rb_sys::Qundef as VALUE {
                    let what = format!(", which lacks the field {} of {}", field.name, self.data_type);
                    return Err(Fault::Other(value, what));
                }
                field.writer.write(part, &mut out.children[index])?;
            }
        }
        Ok(())
    }

    /// Adds the tag and the member of a Tagged, and NULLs for the other members.
    ///
    /// # Safety
    /// As [`Writer::write`].
    unsafe fn member(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        let Parts::Members { codes, members } = &self.parts else { return Err(Fault::Mismatch(value)) };
        // SAFETY: as the caller says.
        unsafe {
            if !is_a(value, known().tagged) {
                let advice =
                    format!(" where {} is due; return Crosslane::Tagged.new(tag, value)", self.data_type);
                return Err(Fault::Other(value, advice));
            }
            let tag = send(value, c"tag", &[]);
            let Some(code) = code(tag, codes.get()) else {
                let what = format!(", whose tag no member of {} has", self.data_type);
                return Err(Fault::Other(value, what));
            };
            out.children[0].fixed(code as u8);
            for (at, member) in members.iter().enumerate() {
                let child = &mut out.children[at + 1];
                if at as i64 == code {
                    member.write(send(value, c"value", &[]), child)?
                } else {
                    child.null()
                }
            }
        }
        Ok(())
    }

    /// Adds the entries of a Hash to the child.
    ///
    /// # Safety
    /// As [`Writer::write`].
    unsafe fn entries(&self, value: VALUE, out: &mut ColumnBuilder) -> Written {
        let Parts::Children(children) = &self.parts else { return Err(Fault::Mismatch(value)) };
        // SAFETY: as the caller says.
        unsafe {
            let hash = rb_sys::rb_check_hash_type(value);
            if hash == Qnil as VALUE {
                return Err(Fault::Mismatch(value));
            }
            let keys = send(hash, c"keys", &[]);
            let entries = &mut out.children[0];
            entries.reserve(rb_sys::RARRAY_LEN(keys) as usize)?;
            for at in 0..rb_sys::RARRAY_LEN(keys) {
                let key = rb_sys::rb_ary_entry(keys, at);
                if key == Qnil as VALUE {
                    return Err(Fault::Other(value, ", a MAP with the key nil; keys cannot be NULL".into()));
                }
                children[0].write(key, &mut entries.children[0])?;
                children[1].write(rb_sys::rb_hash_aref(hash, key), &mut entries.children[1])?;
                entries.nested()?;
            }
        }
        Ok(())
    }
}

/// How many values an Array has, and how many are due.
fn width(given: usize, all: &[Field], fields: &[Part], narrow: bool) -> String {
    let values = if given == 1 { "value" } else { "values" };
    let due = |count: usize| format!("{count} {}", if count == 1 { "is" } else { "are" });
    let many = all.len();
    let all = all.iter().map(|field| &field.name[..]).collect::<Vec<_>>().join(", ");
    if !narrow || fields.len() == many {
        return format!("{given} {values} where {} due: {all}", due(many));
    }
    let wanted: Vec<_> = fields.iter().map(|field| &field.name[..]).collect();
    format!("{given} {values} where {} due ({}), or all {many} ({all})", due(wanted.len()), wanted.join(", "))
}

/// The code of a String or Symbol.
///
/// # Safety
/// With the GVL, protected.
unsafe fn code(value: VALUE, codes: VALUE) -> Option<i64> {
    // SAFETY: as the caller says.
    unsafe {
        let string = if rb_sys::RB_SYMBOL_P(value) { rb_sys::rb_sym2str(value) } else { value };
        let code = rb_sys::rb_hash_lookup(codes, string);
        rb_sys::FIXNUM_P(code).then_some(code as i64 >> 1)
    }
}

/// # Safety
/// The value must be a String that stays alive and unchanged.
unsafe fn bytes<'a>(string: VALUE) -> &'a [u8] {
    // SAFETY: as the caller says.
    unsafe {
        std::slice::from_raw_parts(rb_sys::RSTRING_PTR(string).cast(), rb_sys::RSTRING_LEN(string) as usize)
    }
}

/// An Array, or what says that it is one or can become one; not a Hash.
///
/// # Safety
/// With the GVL, protected.
pub(crate) unsafe fn array(value: VALUE) -> Result<VALUE, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if is(value, kind::RUBY_T_ARRAY) {
            return Ok(value);
        }
        let enumerable = !is(value, kind::RUBY_T_HASH)
            && !is(value, kind::RUBY_T_STRUCT)
            && is_a(value, rb_sys::rb_mEnumerable);
        let array = if enumerable { send(value, c"to_a", &[]) } else { rb_sys::rb_check_array_type(value) };
        if array == Qnil as VALUE { Err(Fault::Mismatch(value)) } else { Ok(array) }
    }
}

/// An Integer as 192 bits of two's complement.
///
/// # Safety
/// With the GVL, protected.
unsafe fn wide(value: VALUE) -> Result<[u64; 3], Fault> {
    // SAFETY: as the caller says; the words are as many as passed.
    unsafe {
        if !rb_sys::RB_INTEGER_TYPE_P(value) {
            return Err(Fault::Mismatch(value));
        }
        let mut words = [0u64; 3];
        let flags = rb_sys::INTEGER_PACK_LSWORD_FIRST
            | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER
            | rb_sys::INTEGER_PACK_2COMP;
        let sign = rb_sys::rb_integer_pack(value, words.as_mut_ptr().cast(), 3, 8, 0, flags as c_int);
        if sign.abs() > 1 { Err(Fault::TooLarge(value)) } else { Ok(words) }
    }
}

/// An Integer of any size as a little-endian two's complement.
///
/// # Safety
/// With the GVL, protected.
unsafe fn big(value: VALUE, out: &mut ColumnBuilder) -> Written {
    // SAFETY: as the caller says; the place has the bytes that are passed, one more than the magnitude needs.
    unsafe {
        if !rb_sys::RB_INTEGER_TYPE_P(value) {
            return Err(Fault::Mismatch(value));
        }
        let length = rb_sys::rb_absint_size(value, std::ptr::null_mut()) + 1;
        let flags = rb_sys::INTEGER_PACK_LITTLE_ENDIAN | rb_sys::INTEGER_PACK_2COMP;
        out.bytes_made(length as usize, |place| {
            rb_sys::rb_integer_pack(value, place.as_mut_ptr().cast(), length, 1, 0, flags as c_int);
        })?;
        Ok(())
    }
}

/// # Safety
/// With the GVL, protected.
unsafe fn float(value: VALUE) -> Result<f64, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if rb_sys::RB_FLOAT_TYPE_P(value) {
            Ok(rb_sys::rb_float_value(value))
        } else if is_a(value, rb_sys::rb_cNumeric) && !is(value, kind::RUBY_T_COMPLEX) {
            let number = rb_sys::rb_num2dbl(value);
            // An Integer may have more digits than a Float counts.
            if number.is_infinite() && send(value, c"infinite?", &[]) == Qnil as VALUE {
                return Err(Fault::TooLarge(value));
            }
            Ok(number)
        } else {
            Err(Fault::Mismatch(value))
        }
    }
}

/// A number times 10^scale, rounded half away from zero as SQL casts do.
///
/// # Safety
/// With the GVL, protected.
unsafe fn decimal(value: VALUE, precision: u8, scale: usize) -> Result<i128, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if !is_a(value, rb_sys::rb_cNumeric) || is(value, kind::RUBY_T_COMPLEX) {
            return Err(Fault::Mismatch(value));
        }
        let number = if is_a(value, known().big_decimal) {
            value
        } else if rb_sys::RB_FLOAT_TYPE_P(value) {
            // The digits that Ruby shows, not those of the binary fraction.
            send(known().kernel, c"BigDecimal", &[send(value, c"to_s", &[])])
        } else if is(value, kind::RUBY_T_RATIONAL) {
            send(known().kernel, c"BigDecimal", &[value, integer(60)])
        } else {
            send(known().kernel, c"BigDecimal", &[value])
        };
        if send(number, c"finite?", &[]) != Qtrue as VALUE {
            return Err(Fault::TooLarge(value));
        }
        let plain = send(number, c"to_s", &[rb_sys::rb_utf8_str_new(c"F".as_ptr(), 1)]);
        match parse_decimal(bytes(plain), scale) {
            Some(unscaled) if unscaled.unsigned_abs() < 10u128.pow(u32::from(precision)) => Ok(unscaled),
            _ => Err(Fault::TooLarge(value)),
        }
    }
}

/// A plain decimal text times 10^scale.
fn parse_decimal(text: &[u8], scale: usize) -> Option<i128> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or(&[]));
    let mut unscaled = 0i128;
    let kept = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(scale);
    for digit in whole.iter().copied().chain(kept) {
        unscaled = unscaled.checked_mul(10)?.checked_add(i128::from(digit.checked_sub(b'0')?))?;
    }
    if fraction.get(scale).is_some_and(|digit| *digit >= b'5') {
        unscaled = unscaled.checked_add(1)?;
    }
    Some(if negative { -unscaled } else { unscaled })
}

/// The number of a Float.
///
/// # Safety
/// With the GVL.
unsafe fn float_of(value: VALUE) -> Option<f64> {
    // SAFETY: as the caller says.
    unsafe { rb_sys::RB_FLOAT_TYPE_P(value).then(|| rb_sys::rb_float_value(value)) }
}

/// # Safety
/// With the GVL, protected.
unsafe fn date(value: VALUE) -> Result<i32, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if is_a(value, rb_sys::rb_cTime) || is_a(value, known().datetime) {
            return Err(Fault::Other(value, " where DATE is due; return its to_date".into()));
        }
        if let Some(day) = float_of(value).and_then(calendar::day_of_infinity) {
            return Ok(day);
        }
        if !is_a(value, known().date) {
            return Err(Fault::Mismatch(value));
        }
        let day = send(value, c"jd", &[]);
        let fits = rb_sys::FIXNUM_P(day).then(|| (day as i64 >> 1) - EPOCH);
        fits.and_then(|days| i32::try_from(days).ok()).ok_or(Fault::TooLarge(value))
    }
}

/// The unit of a time of day.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    Micros,
    Nanos,
}

/// Units since midnight of a TimeOfDay, or of what the clock of a Time shows.
///
/// # Safety
/// With the GVL, protected.
unsafe fn time_of_day(value: VALUE, precision: Precision) -> Result<i64, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if is_a(value, known().time_of_day) {
            if send(value, c"utc_offset", &[]) != Qnil as VALUE {
                let advice =
                    ", which has a zone, where none is due; declare TIMETZ, or return it without one";
                return Err(Fault::Other(value, advice.into()));
            }
            let micros = since_midnight(value)?;
            return match precision {
                Precision::Micros => Ok(micros),
                Precision::Nanos => Ok(micros * 1000 + part(value, c"nanosecond")?),
            };
        }
        if !is_a(value, rb_sys::rb_cTime) {
            return Err(Fault::Mismatch(value));
        }
        let units_per_second = if precision == Precision::Micros { 1_000_000 } else { 1_000_000_000 };
        Ok(moment(value, units_per_second, false)?.rem_euclid(86_400 * units_per_second))
    }
}

/// The bits of a TimeOfDay with a zone, or of what the clock of a Time shows and its zone.
///
/// # Safety
/// With the GVL, protected.
unsafe fn time_with_zone(value: VALUE) -> Result<u64, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        let micros = if is_a(value, known().time_of_day) {
            if send(value, c"utc_offset", &[]) == Qnil as VALUE {
                let advice = ", which has no zone, where TIMETZ is due; return it with a utc_offset";
                return Err(Fault::Other(value, advice.into()));
            }
            since_midnight(value)?
        } else if is_a(value, rb_sys::rb_cTime) {
            moment(value, 1_000_000, false)?.rem_euclid(86_400_000_000)
        } else {
            return Err(Fault::Mismatch(value));
        };
        let offset = part(value, c"utc_offset")?;
        if offset.unsigned_abs() > timetz::MOST_SECONDS.unsigned_abs().into() {
            return Err(Fault::TooLarge(value));
        }
        Ok(timetz::bits(micros, offset as i32))
    }
}

/// The microseconds of a TimeOfDay.
///
/// # Safety
/// With the GVL, protected.
unsafe fn since_midnight(value: VALUE) -> Result<i64, Fault> {
    // SAFETY: as the caller says.
    let micros = unsafe { part(value, c"to_i")? };
    if (0..=86_400_000_000).contains(&micros) { Ok(micros) } else { Err(Fault::TooLarge(value)) }
}

/// An Integer that a method gives.
///
/// # Safety
/// With the GVL, protected.
unsafe fn part(value: VALUE, name: &CStr) -> Result<i64, Fault> {
    // SAFETY: as the caller says.
    let part = unsafe { send(value, name, &[]) };
    if rb_sys::FIXNUM_P(part) { Ok(part as i64 >> 1) } else { Err(Fault::Mismatch(value)) }
}

/// A Time (or DateTime) in units since 1970: the instant, or what its own clock shows.
///
/// # Safety
/// With the GVL, protected.
unsafe fn moment(value: VALUE, units_per_second: i64, instant: bool) -> Result<i64, Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(moment) = float_of(value).and_then(calendar::moment_of_infinity) {
            return Ok(moment);
        }
        let time = if is_a(value, rb_sys::rb_cTime) {
            value
        } else if is_a(value, known().datetime) {
            send(value, c"to_time", &[])
        } else {
            return Err(Fault::Mismatch(value));
        };
        let at = rb_sys::rb_time_timespec(time);
        let offset = if instant { 0 } else { send(time, c"utc_offset", &[]) as i64 >> 1 };
        units(at.tv_sec + offset, at.tv_nsec, units_per_second).ok_or(Fault::TooLarge(value))
    }
}

/// # Safety
/// With the GVL, protected.
unsafe fn interval(value: VALUE) -> Result<[u8; 16], Fault> {
    // SAFETY: as the caller says.
    unsafe {
        if !is_a(value, known().interval) {
            return Err(Fault::Mismatch(value));
        }
        let narrow = |part: i64| i32::try_from(part).map_err(|_| Fault::TooLarge(value));
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&narrow(part(value, c"months")?)?.to_le_bytes());
        bytes[4..8].copy_from_slice(&narrow(part(value, c"days")?)?.to_le_bytes());
        bytes[8..].copy_from_slice(&part(value, c"microseconds")?.to_le_bytes());
        Ok(bytes)
    }
}

/// # Safety
/// With the GVL, protected.
unsafe fn uuid(value: VALUE) -> Result<[u8; 16], Fault> {
    // SAFETY: as the caller says.
    let text = unsafe {
        if !is(value, kind::RUBY_T_STRING) {
            return Err(Fault::Mismatch(value));
        }
        bytes(value)
    };
    let mut uuid = [0; 16];
    let mut digits = 0;
    for byte in text.iter().filter(|byte| **byte != b'-') {
        let Some(digit) = char::from(*byte).to_digit(16).filter(|_| digits < 32) else {
            return Err(Fault::Mismatch(value));
        };
        uuid[digits / 2] = uuid[digits / 2] << 4 | digit as u8;
        digits += 1;
    }
    if digits == 32 { Ok(uuid) } else { Err(Fault::Mismatch(value)) }
}

/// An object as text for a message: cut, and without trusting its `inspect`.
fn shown(value: VALUE) -> String {
    use magnus::rb_sys::FromRawValue;
    use magnus::value::ReprValue;
    // SAFETY: the value is alive: the function that returned it is still at work.
    let value = unsafe { magnus::Value::from_raw(value) };
    // SAFETY: the name is copied at once.
    let class = unsafe { value.classname() }.into_owned();
    let Ok(text) = value.funcall::<_, _, String>("inspect", ()) else { return class };
    let mut shown = format!("{class} ");
    shown.extend(text.chars().take(80));
    if text.chars().nth(80).is_some() {
        let _ = shown.write_str("...");
    }
    shown
}
