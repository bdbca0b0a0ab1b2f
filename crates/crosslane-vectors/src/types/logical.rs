//! Converts SQL types to DuckDB's logical types, and back.

use crate::vector::owned_text;
use crosslane::{DataType, Error, Field, MOST_LEVELS, MOST_MEMBERS};
use libduckdb_sys as ffi;
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

/// The types without parameters. JSON is a VARCHAR with an alias, and nothing has the type ANY.
static PLAIN: [(DataType, ffi::duckdb_type); 29] = [
    (DataType::Boolean, ffi::DUCKDB_TYPE_DUCKDB_TYPE_BOOLEAN),
    (DataType::TinyInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TINYINT),
    (DataType::SmallInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_SMALLINT),
    (DataType::Integer, ffi::DUCKDB_TYPE_DUCKDB_TYPE_INTEGER),
    (DataType::BigInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIGINT),
    (DataType::UTinyInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_UTINYINT),
    (DataType::USmallInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_USMALLINT),
    (DataType::UInteger, ffi::DUCKDB_TYPE_DUCKDB_TYPE_UINTEGER),
    (DataType::UBigInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_UBIGINT),
    (DataType::HugeInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_HUGEINT),
    (DataType::UHugeInt, ffi::DUCKDB_TYPE_DUCKDB_TYPE_UHUGEINT),
    (DataType::Float, ffi::DUCKDB_TYPE_DUCKDB_TYPE_FLOAT),
    (DataType::Double, ffi::DUCKDB_TYPE_DUCKDB_TYPE_DOUBLE),
    (DataType::Varchar, ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR),
    (DataType::Blob, ffi::DUCKDB_TYPE_DUCKDB_TYPE_BLOB),
    (DataType::Date, ffi::DUCKDB_TYPE_DUCKDB_TYPE_DATE),
    (DataType::Time, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIME),
    (DataType::TimestampS, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_S),
    (DataType::TimestampMs, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_MS),
    (DataType::Timestamp, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP),
    (DataType::TimestampNs, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_NS),
    (DataType::TimestampTz, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_TZ),
    (DataType::Interval, ffi::DUCKDB_TYPE_DUCKDB_TYPE_INTERVAL),
    (DataType::Uuid, ffi::DUCKDB_TYPE_DUCKDB_TYPE_UUID),
    (DataType::Bit, ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIT),
    (DataType::BigNum, ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIGNUM),
    (DataType::Geometry, ffi::DUCKDB_TYPE_DUCKDB_TYPE_GEOMETRY),
    (DataType::TimeNs, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIME_NS),
    (DataType::TimeTz, ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIME_TZ),
];

/// A logical type that is destroyed when dropped.
#[derive(Debug)]
pub struct LogicalType(ffi::duckdb_logical_type);

impl LogicalType {
    /// DuckDB's handle of a type.
    ///
    /// # Errors
    /// [`Error::Engine`] if DuckDB has no such type.
    pub fn new(data_type: &DataType) -> Result<Self, Error> {
        use DataType as T;
        let plain = match data_type {
            T::Json => ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR,
            T::Any => ffi::DUCKDB_TYPE_DUCKDB_TYPE_ANY,
            _ => match PLAIN.iter().find(|(known, _)| known == data_type) {
                Some((_, plain)) => *plain,
                None => return Self::parametric(data_type),
            },
        };
        // SAFETY: the identifiers are those of plain types; the alias is a C string that is copied.
        unsafe {
            let logical = Self(ffi::duckdb_create_logical_type(plain));
            if *data_type == T::Json {
                ffi::duckdb_logical_type_set_alias(logical.0, c"JSON".as_ptr());
            }
            Ok(logical)
        }
    }

    /// The type of a vector.
    ///
    /// # Safety
    /// The vector must be alive.
    pub(crate) unsafe fn of(vector: ffi::duckdb_vector) -> Self {
        // SAFETY: as the caller says; the handle is given to the caller.
        Self(unsafe { ffi::duckdb_vector_get_column_type(vector) })
    }

    fn parametric(data_type: &DataType) -> Result<Self, Error> {
        // For a MAP, DuckDB takes key and value, and makes the entries itself.
        let parts = match data_type {
            DataType::Map(entry) => entry,
            data_type => data_type,
        };
        let children = parts.children().map(LogicalType::new).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: all handles and names live across the calls, which copy them.
        let logical = unsafe {
            match data_type {
                DataType::Decimal { precision, scale } => ffi::duckdb_create_decimal_type(*precision, *scale),
                DataType::Enum(values) => {
                    let values = c_strings(values.iter().map(String::as_str))?;
                    let mut pointers: Vec<*const c_char> =
                        values.iter().map(|value| value.as_ptr()).collect();
                    ffi::duckdb_create_enum_type(pointers.as_mut_ptr(), pointers.len() as ffi::idx_t)
                }
                DataType::List(_) => ffi::duckdb_create_list_type(children[0].0),
                DataType::Array(_, length) => {
                    ffi::duckdb_create_array_type(children[0].0, ffi::idx_t::from(*length))
                }
                DataType::Map(_) => ffi::duckdb_create_map_type(children[0].0, children[1].0),
                DataType::Struct(fields) | DataType::Union(fields) => {
                    // DuckDB adds the tag of a UNION itself.
                    let first = usize::from(matches!(data_type, DataType::Union(_)));
                    let names = c_strings(fields[first..].iter().map(|field| field.name.as_str()))?;
                    let mut names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
                    let mut types: Vec<_> = children[first..].iter().map(|child| child.0).collect();
                    let count = types.len() as ffi::idx_t;
                    let make = match data_type {
                        DataType::Union(_) => ffi::duckdb_create_union_type,
                        _ => ffi::duckdb_create_struct_type,
                    };
                    make(types.as_mut_ptr(), names.as_mut_ptr(), count)
                }
                _ => std::ptr::null_mut(),
            }
        };
        if logical.is_null() {
            return Err(Error::Engine(format!("DuckDB has no type {data_type}")));
        }
        Ok(Self(logical))
    }

    /// Takes a handle, to destroy it.
    ///
    /// # Safety
    /// The handle must be valid, and the caller's.
    pub(crate) unsafe fn owned(handle: ffi::duckdb_logical_type) -> Self {
        Self(handle)
    }

    /// The handle, which dies with self.
    pub fn raw(&self) -> ffi::duckdb_logical_type {
        self.0
    }
}

/// Reads DuckDB's handle of a type.
///
/// # Errors
/// [`Error::Engine`] for types that have no counterpart, with what to do instead.
///
/// # Safety
/// The handle must be valid; it stays the caller's.
pub unsafe fn data_type(logical: ffi::duckdb_logical_type) -> Result<DataType, Error> {
    // SAFETY: as the caller says.
    unsafe { data_type_within(logical, MOST_LEVELS) }
}

/// # Safety
/// As [`data_type`].
unsafe fn data_type_within(logical: ffi::duckdb_logical_type, levels: usize) -> Result<DataType, Error> {
    use DataType as T;
    // SAFETY: the caller vouches for the handle; the handles and texts that DuckDB makes are freed
    // here.
    unsafe {
        let child = |logical| {
            let owned = LogicalType(logical);
            let below = levels.checked_sub(1).ok_or_else(|| {
                Error::Engine(format!("a type of more than {MOST_LEVELS} levels has no counterpart here"))
            })?;
            data_type_within(owned.0, below)
        };
        Ok(match ffi::duckdb_get_type_id(logical) {
            // DuckDB makes an INTEGER of a NULL without a type; so do we.
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_SQLNULL => T::Integer,
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR => {
                let alias = ffi::duckdb_logical_type_get_alias(logical);
                let json = !alias.is_null() && CStr::from_ptr(alias).to_bytes() == b"JSON";
                ffi::duckdb_free(alias.cast());
                if json { T::Json } else { T::Varchar }
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_DECIMAL => T::Decimal {
                precision: ffi::duckdb_decimal_width(logical),
                scale: ffi::duckdb_decimal_scale(logical),
            },
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_ENUM => {
                let count = ffi::duckdb_enum_dictionary_size(logical);
                let value = |index| owned_text(ffi::duckdb_enum_dictionary_value(logical, index));
                T::Enum((0..ffi::idx_t::from(count)).map(value).collect())
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_LIST => {
                T::List(Arc::new(child(ffi::duckdb_list_type_child_type(logical))?))
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_ARRAY => {
                let length = ffi::duckdb_array_type_array_size(logical) as u32;
                T::Array(Arc::new(child(ffi::duckdb_array_type_child_type(logical))?), length)
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_MAP => T::map(
                child(ffi::duckdb_map_type_key_type(logical))?,
                child(ffi::duckdb_map_type_value_type(logical))?,
            ),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_STRUCT => {
                let fields = (0..ffi::duckdb_struct_type_child_count(logical)).map(|index| {
                    let name = owned_text(ffi::duckdb_struct_type_child_name(logical, index));
                    Ok(Field { name, data_type: child(ffi::duckdb_struct_type_child_type(logical, index))? })
                });
                T::Struct(fields.collect::<Result<_, Error>>()?)
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_UNION => {
                let count = ffi::duckdb_union_type_member_count(logical);
                if count > MOST_MEMBERS as ffi::idx_t {
                    return Err(Error::Engine(format!(
                        "a UNION of {count} members has no counterpart here, which ends at {MOST_MEMBERS}"
                    )));
                }
                let members = (0..count).map(|index| {
                    let name = owned_text(ffi::duckdb_union_type_member_name(logical, index));
                    Ok(Field { name, data_type: child(ffi::duckdb_union_type_member_type(logical, index))? })
                });
                T::union(members.collect::<Result<_, Error>>()?)
            }
            number => {
                if let Some((known, _)) = PLAIN.iter().find(|(_, plain)| *plain == number) {
                    return Ok(known.clone());
                }
                let name = match number {
                    ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARIANT => "VARIANT",
                    _ => "a type",
                };
                return Err(Error::Engine(format!(
                    "{name} ({number} in DuckDB's C API) has no counterpart here; cast it, for example to VARCHAR"
                )));
            }
        })
    }
}

impl Drop for LogicalType {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and destroyed once.
        unsafe { ffi::duckdb_destroy_logical_type(&raw mut self.0) };
    }
}

fn c_strings<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<CString>, Error> {
    texts
        .map(|text| CString::new(text).map_err(|_| Error::Engine(format!("{text:?} contains a zero byte"))))
        .collect()
}

/// The bytes of a DECIMAL in DuckDB's vectors.
pub(crate) fn decimal_width(precision: u8) -> usize {
    match precision {
        0..=4 => 2,
        5..=9 => 4,
        10..=18 => 8,
        _ => 16,
    }
}
