//! Parameters of prepared statements: Ruby objects as DuckDB's values.

use crate::engine::database::{Prepared, c_string, text};
use crate::engine::session::failure;
use crate::writer::Writer;
use crosslane::{ColumnBuilder, DataType};
use crosslane_vectors::data_type;
use libduckdb_sys as ffi;
use magnus::encoding::EncodingCapable;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{
    Error, Integer, Module, RArray, RClass, RHash, RModule, RString, Ruby, Symbol, TryConvert, Value,
};

/// A value that is destroyed when dropped.
struct Owned(ffi::duckdb_value);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_value(&raw mut self.0) };
    }
}

/// Binds all parameters: in order, or, if there is one Hash for a statement with names, by name.
pub(crate) fn bind(statement: &Prepared, parameters: RArray) -> Result<(), Error> {
    // SAFETY: the statement lives in all of this function.
    let count = unsafe { ffi::duckdb_nparams(statement.0) };
    let named = (parameters.len() == 1).then(|| RHash::from_value(parameters.entry(0).ok()?)).flatten();
    let names: Vec<String> = (1..=count)
        .map(|index| {
            // SAFETY: the parameter exists; the name is freed.
            unsafe {
                let name = ffi::duckdb_parameter_name(statement.0, index);
                let owned = text(name);
                ffi::duckdb_free(name.cast_mut().cast());
                owned
            }
        })
        .collect();
    // Parameters without names are called by their numbers.
    let named = named.filter(|_| names.iter().any(|name| name.parse::<u32>().is_err()));
    if named.is_none() && parameters.len() as u64 != count {
        return Err(failure(
            None,
            &format!("the statement has {count} parameters, and {} were given", parameters.len()),
        ));
    }
    if let Some(hash) = named {
        hash.foreach(|key: Value, _: Value| {
            let key = key.to_string();
            if names.contains(&key) {
                Ok(magnus::r_hash::ForEach::Continue)
            } else {
                Err(failure(
                    None,
                    &format!("the statement has no parameter {key}; it has {}", names.join(", ")),
                ))
            }
        })?;
    }
    for (index, name) in (1..=count).zip(&names) {
        let parameter: Value = match named {
            Some(hash) => {
                let ruby = Ruby::get().expect("with the GVL");
                let given = hash.get(ruby.to_symbol(name)).or_else(|| hash.get(name.as_str()));
                given.ok_or_else(|| failure(None, &format!("the parameter {name} was not given")))?
            }
            None => parameters.entry(index as isize - 1)?,
        };
        // SAFETY: the parameter exists; the type is destroyed.
        let wanted = unsafe {
            let mut logical = ffi::duckdb_param_logical_type(statement.0, index);
            let wanted = if logical.is_null() { None } else { data_type(logical).ok() };
            ffi::duckdb_destroy_logical_type(&raw mut logical);
            wanted
        };
        let value = value(parameter, wanted.as_ref())?;
        // SAFETY: the parameter exists, and DuckDB copies the value.
        let state = unsafe { ffi::duckdb_bind_value(statement.0, index, value.0) };
        if state != super::database::OK {
            // SAFETY: the text belongs to the statement.
            let message = unsafe { text(ffi::duckdb_prepare_error(statement.0)) };
            return Err(failure(None, &format!("parameter {name}: {message}")));
        }
    }
    Ok(())
}

fn class(path: &str) -> Result<RClass, Error> {
    let ruby = Ruby::get().expect("with the GVL");
    match path.split_once("::") {
        Some((module, name)) => ruby.class_object().const_get::<_, RModule>(module)?.const_get(name),
        None => ruby.class_object().const_get(path),
    }
}

/// An object as a value, of the type that the statement wants if that makes a difference.
fn value(object: Value, wanted: Option<&DataType>) -> Result<Owned, Error> {
    use magnus::{Float, value::Qfalse, value::Qtrue};
    // SAFETY: what is passed lives across the calls, which copy it; what they make is owned by the result.
    unsafe {
        if object.is_nil() {
            return Ok(Owned(ffi::duckdb_create_null_value()));
        }
        if Qtrue::from_value(object).is_some() || Qfalse::from_value(object).is_some() {
            return Ok(Owned(ffi::duckdb_create_bool(object.to_bool())));
        }
        if Integer::from_value(object).is_some() {
            return integer(object);
        }
        if let Some(float) = Float::from_value(object) {
            return Ok(Owned(ffi::duckdb_create_double(float.to_f64())));
        }
        if let Some(symbol) = Symbol::from_value(object) {
            return varchar(&symbol.name()?);
        }
        if let Some(string) = RString::from_value(object) {
            let ruby = Ruby::get().expect("with the GVL");
            let binary = string.enc_get() == ruby.ascii8bit_encindex();
            if binary && !string.as_slice().is_ascii() || wanted == Some(&DataType::Blob) {
                let bytes = string.as_slice();
                return Ok(Owned(ffi::duckdb_create_blob(bytes.as_ptr(), bytes.len() as ffi::idx_t)));
            }
            return varchar(&string.to_string()?);
        }
        if let Some(hash) = RHash::from_value(object) {
            return map(hash);
        }
        if let Some(array) = RArray::from_value(object) {
            return list(array);
        }
        let is = |path: &str| Ok::<_, Error>(object.is_kind_of(class(path)?));
        if is("Time")? || is("DateTime")? {
            return Ok(Owned(match wanted {
                Some(DataType::TimestampTz) => {
                    let micros = fixed(object, &DataType::TimestampTz)?;
                    ffi::duckdb_create_timestamp_tz(ffi::duckdb_timestamp { micros })
                }
                Some(DataType::Date) => ffi::duckdb_create_date(ffi::duckdb_date {
                    days: fixed(object.funcall("to_date", ())?, &DataType::Date)?,
                }),
                Some(DataType::TimestampNs) => {
                    let nanos = fixed(object, &DataType::TimestampNs)?;
                    ffi::duckdb_create_timestamp_ns(ffi::duckdb_timestamp_ns { nanos })
                }
                _ => {
                    let micros = fixed(object, &DataType::Timestamp)?;
                    ffi::duckdb_create_timestamp(ffi::duckdb_timestamp { micros })
                }
            }));
        }
        if is("Date")? {
            let days = fixed(object, &DataType::Date)?;
            return Ok(Owned(ffi::duckdb_create_date(ffi::duckdb_date { days })));
        }
        if is("Crosslane::TimeOfDay")? {
            let micros = fixed(object, &DataType::Time)?;
            return Ok(Owned(ffi::duckdb_create_time(ffi::duckdb_time { micros })));
        }
        if is("Crosslane::Interval")? {
            let bytes: [u8; 16] = fixed(object, &DataType::Interval)?;
            return Ok(Owned(ffi::duckdb_create_interval(ffi::duckdb_interval {
                months: bytemuck::pod_read_unaligned(&bytes[..4]),
                days: bytemuck::pod_read_unaligned(&bytes[4..8]),
                micros: bytemuck::pod_read_unaligned(&bytes[8..]),
            })));
        }
        if is("BigDecimal")? {
            // DuckDB reads all digits, and casts to what it needs.
            return varchar(&object.funcall::<_, _, String>("to_s", ("F",))?);
        }
        if is("Struct")? {
            return structure(object.funcall("to_h", ())?);
        }
        if is("Rational")? {
            return Ok(Owned(ffi::duckdb_create_double(f64::try_convert(object)?)));
        }
        let class = object.classname().into_owned();
        Err(failure(
            None,
            &format!("a {class} cannot be a parameter; pass its to_s, or a number, time, Array or Hash"),
        ))
    }
}

fn varchar(text: &str) -> Result<Owned, Error> {
    // SAFETY: DuckDB copies the text, of which the length is given.
    Ok(Owned(unsafe { ffi::duckdb_create_varchar_length(text.as_ptr().cast(), text.len() as ffi::idx_t) }))
}

/// An Integer, in the narrowest of BIGINT, HUGEINT and UHUGEINT.
fn integer(object: Value) -> Result<Owned, Error> {
    if let Ok(small) = i64::try_convert(object) {
        // SAFETY: a plain value.
        return Ok(Owned(unsafe { ffi::duckdb_create_int64(small) }));
    }
    if let Ok(wide) = fixed::<i128>(object, &DataType::HugeInt) {
        let wide = ffi::duckdb_hugeint { lower: wide as u64, upper: (wide >> 64) as i64 };
        // SAFETY: as above.
        return Ok(Owned(unsafe { ffi::duckdb_create_hugeint(wide) }));
    }
    let wide = fixed::<u128>(object, &DataType::UHugeInt)?;
    let wide = ffi::duckdb_uhugeint { lower: wide as u64, upper: (wide >> 64) as u64 };
    // SAFETY: as above.
    Ok(Owned(unsafe { ffi::duckdb_create_uhugeint(wide) }))
}

/// A fixed-width value, by the same rules as a function's result.
fn fixed<T: bytemuck::Pod>(object: Value, data_type: &DataType) -> Result<T, Error> {
    let writer = Writer::new(data_type)?;
    let mut column = ColumnBuilder::new(data_type);
    let mut fault = None;
    // SAFETY: protected, and nothing in the closure is to be dropped.
    crosslane_gvl::protect(|| unsafe { fault = writer.write(object.as_raw(), &mut column).err() })?;
    match fault {
        None => Ok(column.column(data_type).value(0)),
        Some(fault) => {
            let (_, message) = writer.explain(&fault);
            Err(failure(None, &message.replacen("returned", "a parameter is", 1)))
        }
    }
}

/// The type of a value.
///
/// # Safety
/// The value must live.
unsafe fn type_of(value: &Owned) -> ffi::duckdb_logical_type {
    // SAFETY: the handle belongs to the value.
    unsafe { ffi::duckdb_get_value_type(value.0) }
}

/// The type that the elements of a list share: the first that is not NULL decides.
///
/// # Safety
/// The values must live as long as the result.
unsafe fn shared(values: &[Owned]) -> Option<ffi::duckdb_logical_type> {
    // SAFETY: as the caller says.
    unsafe { values.iter().find(|value| !ffi::duckdb_is_null_value(value.0)).map(|value| type_of(value)) }
}

fn list(array: RArray) -> Result<Owned, Error> {
    let mut values = Vec::with_capacity(array.len());
    let floats = array.into_iter().any(|item| magnus::Float::from_value(item).is_some());
    for item in array {
        // Integers among Floats are Floats.
        let float = floats.then(|| Integer::from_value(item).map(|_| f64::try_convert(item))).flatten();
        values.push(match float {
            // SAFETY: a plain value.
            Some(float) => Owned(unsafe { ffi::duckdb_create_double(float?) }),
            None => value(item, None)?,
        });
    }
    let mut raw: Vec<_> = values.iter().map(|value| value.0).collect();
    // SAFETY: the values and the type live across the call, which copies them.
    let list = unsafe {
        let Some(element) = shared(&values) else {
            let mut element = ffi::duckdb_create_logical_type(ffi::DUCKDB_TYPE_DUCKDB_TYPE_INTEGER);
            let list = ffi::duckdb_create_list_value(element, raw.as_mut_ptr(), raw.len() as ffi::idx_t);
            ffi::duckdb_destroy_logical_type(&raw mut element);
            return Ok(Owned(list));
        };
        ffi::duckdb_create_list_value(element, raw.as_mut_ptr(), raw.len() as ffi::idx_t)
    };
    if list.is_null() {
        return Err(failure(None, "the elements of an Array parameter are not of one type"));
    }
    Ok(Owned(list))
}

/// A Hash: with Symbols as keys a STRUCT, else a MAP.
fn map(hash: RHash) -> Result<Owned, Error> {
    let keys: RArray = hash.funcall("keys", ())?;
    if !keys.is_empty() && keys.into_iter().all(|key| Symbol::from_value(key).is_some()) {
        return structure(hash);
    }
    let mut pairs = (Vec::new(), Vec::new());
    for key in keys {
        pairs.0.push(value(key, None)?);
        pairs.1.push(value(hash.aref(key)?, None)?);
    }
    let raw = |values: &[Owned]| values.iter().map(|value| value.0).collect::<Vec<_>>();
    let (mut keys, mut values) = (raw(&pairs.0), raw(&pairs.1));
    // SAFETY: all handles live across the calls, which copy; the types that are made here are destroyed.
    let map = unsafe {
        let mut text = ffi::duckdb_create_logical_type(ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR);
        let (key, content) = (shared(&pairs.0).unwrap_or(text), shared(&pairs.1).unwrap_or(text));
        let mut map_type = ffi::duckdb_create_map_type(key, content);
        let count = keys.len() as ffi::idx_t;
        let map = ffi::duckdb_create_map_value(map_type, keys.as_mut_ptr(), values.as_mut_ptr(), count);
        ffi::duckdb_destroy_logical_type(&raw mut map_type);
        ffi::duckdb_destroy_logical_type(&raw mut text);
        map
    };
    if map.is_null() {
        return Err(failure(None, "the keys or the values of a Hash parameter are not of one type"));
    }
    Ok(Owned(map))
}

fn structure(hash: RHash) -> Result<Owned, Error> {
    let mut names = Vec::new();
    let mut values = Vec::new();
    for key in hash.funcall::<_, _, RArray>("keys", ())? {
        names.push(c_string(&key.to_string())?);
        values.push(value(hash.aref(key)?, None)?);
    }
    let mut raw: Vec<_> = values.iter().map(|value| value.0).collect();
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    // SAFETY: all handles and names live across the calls, which copy; the types that are made are destroyed.
    unsafe {
        let mut text = ffi::duckdb_create_logical_type(ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR);
        let kind = |value: &Owned| if ffi::duckdb_is_null_value(value.0) { text } else { type_of(value) };
        let mut types: Vec<_> = values.iter().map(kind).collect();
        let count = types.len() as ffi::idx_t;
        let mut whole = ffi::duckdb_create_struct_type(types.as_mut_ptr(), pointers.as_mut_ptr(), count);
        let value = ffi::duckdb_create_struct_value(whole, raw.as_mut_ptr());
        ffi::duckdb_destroy_logical_type(&raw mut whole);
        ffi::duckdb_destroy_logical_type(&raw mut text);
        Ok(Owned(value))
    }
}
