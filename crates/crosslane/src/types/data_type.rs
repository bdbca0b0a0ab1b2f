//! SQL types, and the Arrow layout of their columns.

use std::fmt;
use std::sync::Arc;

/// A SQL type. Nested types share their parts, so a clone is cheap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is the SQL type of its name")]
pub enum DataType {
    Boolean,
    TinyInt,
    SmallInt,
    Integer,
    BigInt,
    UTinyInt,
    USmallInt,
    UInteger,
    UBigInt,
    HugeInt,
    UHugeInt,
    Float,
    Double,
    Decimal {
        precision: u8,
        scale: u8,
    },
    Varchar,
    Blob,
    Json,
    Bit,
    BigNum,
    Geometry,
    Date,
    Time,
    TimeNs,
    TimeTz,
    TimestampS,
    TimestampMs,
    Timestamp,
    TimestampNs,
    TimestampTz,
    Interval,
    Uuid,
    /// The values, in the order of their codes.
    Enum(Arc<[String]>),
    List(Arc<DataType>),
    /// A list of exactly this number of elements.
    Array(Arc<DataType>, u32),
    Struct(Arc<[Field]>),
    /// The STRUCT of key and value. The layout of a MAP is a LIST of this STRUCT.
    Map(Arc<DataType>),
    /// The tag and the members. The tag is an ENUM of the members' names. The layout of a UNION is
    /// a STRUCT of these columns. In each row, all members are NULL except the tag's member.
    Union(Arc<[Field]>),
    /// The type of a parameter that takes an argument of any type. No column has this type: a call
    /// has the types of its arguments.
    Any,
}

/// The most members of a UNION. Its tag is one byte.
pub const MOST_MEMBERS: usize = 255;

/// The most levels of a type: `INTEGER[][]` has two levels. Code for types is recursive, and also
/// runs on threads with small stacks.
pub const MOST_LEVELS: usize = 64;

/// A named part of a STRUCT, or a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Field {
    /// The name, without quotes.
    pub name: String,
    /// The type.
    pub data_type: DataType,
}

/// The Arrow layout of a column: the buffers after the validity bitmap, and the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One bit per row.
    Bits,
    /// This number of bytes per row.
    Fixed(usize),
    /// 32-bit offsets and bytes.
    Bytes {
        /// Whether the bytes must be UTF-8.
        utf8: bool,
    },
    /// 32-bit offsets and one child.
    List,
    /// One child with this number of rows per row.
    FixedList(usize),
    /// One child per field.
    Struct,
}

impl DataType {
    /// The Arrow layout of a column of this type.
    ///
    /// HUGEINT, UHUGEINT and DECIMAL are 16-byte little-endian integers. UUID is 16 bytes in
    /// network order. INTERVAL is (months i32, days i32, microseconds i64). ENUM is an unsigned
    /// code of the smallest width that counts its values. TIMETZ is [`timetz`]. BIT is text of 0
    /// and 1. BIGNUM is a little-endian two's complement of any length. GEOMETRY is WKB.
    pub fn layout(&self) -> Layout {
        use DataType as T;
        match self {
            T::Boolean => Layout::Bits,
            T::TinyInt | T::UTinyInt => Layout::Fixed(1),
            T::SmallInt | T::USmallInt => Layout::Fixed(2),
            T::Integer | T::UInteger | T::Float | T::Date => Layout::Fixed(4),
            T::BigInt | T::UBigInt | T::Double | T::Time | T::TimeNs | T::TimeTz => Layout::Fixed(8),
            T::TimestampS | T::TimestampMs | T::Timestamp | T::TimestampNs | T::TimestampTz => {
                Layout::Fixed(8)
            }
            T::HugeInt | T::UHugeInt | T::Decimal { .. } | T::Interval | T::Uuid => Layout::Fixed(16),
            T::Enum(values) => Layout::Fixed(code_width(values.len())),
            T::Varchar | T::Json | T::Bit => Layout::Bytes { utf8: true },
            T::Blob | T::BigNum | T::Geometry => Layout::Bytes { utf8: false },
            T::List(_) | T::Map(_) => Layout::List,
            T::Array(_, length) => Layout::FixedList(*length as usize),
            T::Struct(_) | T::Union(_) | T::Any => Layout::Struct,
        }
    }

    /// Whether DuckDB treats the two types as equal when it looks up a function by its name. It
    /// does not compare the digits of DECIMALs, the values of ENUMs, or the types in MAPs.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        use DataType as T;
        let all_alike = |fields: &[Field], others: &[Field]| {
            let mut pairs = fields.iter().zip(others);
            fields.len() == others.len()
                && pairs
                    .all(|(a, b)| a.name.eq_ignore_ascii_case(&b.name) && a.data_type.is_alike(&b.data_type))
        };
        match (self, other) {
            (T::Decimal { .. }, T::Decimal { .. }) | (T::Enum(_), T::Enum(_)) | (T::Map(_), T::Map(_)) => {
                true
            }
            (T::List(a), T::List(b)) => a.is_alike(b),
            (T::Array(a, count), T::Array(b, other_count)) => count == other_count && a.is_alike(b),
            (T::Struct(a), T::Struct(b)) | (T::Union(a), T::Union(b)) => all_alike(a, b),
            _ => self == other,
        }
    }

    /// The types of the children, in order.
    pub fn children(&self) -> impl ExactSizeIterator<Item = &DataType> {
        let (one, many): (Option<&DataType>, &[Field]) = match self {
            DataType::List(child) | DataType::Array(child, _) | DataType::Map(child) => (Some(child), &[]),
            DataType::Struct(fields) | DataType::Union(fields) => (None, fields),
            _ => (None, &[]),
        };
        let count = many.len() + usize::from(one.is_some());
        (0..count).map(move |index| one.unwrap_or_else(|| &many[index].data_type))
    }

    /// The levels of nesting: 0 for a plain type.
    pub fn levels(&self) -> usize {
        let below = self.children().map(DataType::levels).max();
        match self {
            // A MAP and its entries are one level.
            DataType::Map(_) => below.unwrap_or_default(),
            _ => below.map_or(0, |below| below + 1),
        }
    }

    /// A UNION of 1 to [`MOST_MEMBERS`] members.
    pub fn union(members: Vec<Field>) -> DataType {
        let names: Arc<[String]> = members.iter().map(|member| member.name.clone()).collect();
        // In Arrow the tag is a field like the members, so its name must differ from theirs.
        let mut tag = String::from("tag");
        while names.iter().any(|name| name.eq_ignore_ascii_case(&tag)) {
            tag.push('_');
        }
        let tag = Field { name: tag, data_type: DataType::Enum(names) };
        DataType::Union(std::iter::once(tag).chain(members).collect())
    }

    /// A MAP with these types of keys and values.
    pub fn map(key: DataType, value: DataType) -> DataType {
        let field = |name: &str, data_type| Field { name: name.into(), data_type };
        DataType::Map(Arc::new(DataType::Struct(Arc::new([field("key", key), field("value", value)]))))
    }
}

/// The 64 bits of a TIMETZ. The high 40 bits are the microseconds since midnight. The low 24 bits
/// are the seconds from the zone to the easternmost zone.
pub mod timetz {
    /// The largest offset of a zone from UTC in seconds, east and west.
    pub const MOST_SECONDS: i32 = 16 * 60 * 60 - 1;

    /// The bits for the microseconds since midnight and the zone's offset in seconds east of UTC.
    pub fn bits(micros: i64, offset: i32) -> u64 {
        (micros as u64) << 24 | (MOST_SECONDS - offset) as u64
    }

    /// The microseconds since midnight and the offset of these bits.
    pub fn parts(bits: u64) -> (i64, i32) {
        ((bits >> 24) as i64, MOST_SECONDS - (bits & 0xFF_FFFF) as i32)
    }
}

/// The bytes of an ENUM's code, as in DuckDB and in Arrow dictionaries.
pub fn code_width(values: usize) -> usize {
    match values {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        _ => 4,
    }
}

/// A name, written as an identifier of SQL.
pub(crate) struct Identifier<'a>(pub(crate) &'a str);

impl fmt::Display for Identifier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        identifier(f, self.0)
    }
}

/// Writes an identifier, with quotes if SQL needs them.
fn identifier(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    let plain = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if plain { f.write_str(name) } else { write!(f, "\"{}\"", name.replace('"', "\"\"")) }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        identifier(f, &self.name)?;
        write!(f, " {}", self.data_type)
    }
}

/// The names in SQL of the types without parts, first the one that texts have. A name that takes an
/// addition, as TIMESTAMP does, has it in the parser.
pub(super) static NAMES: [(DataType, &[&str]); 31] = [
    (DataType::Boolean, &["BOOLEAN", "BOOL", "LOGICAL"]),
    (DataType::TinyInt, &["TINYINT", "INT1"]),
    (DataType::SmallInt, &["SMALLINT", "INT2", "INT16", "SHORT"]),
    (DataType::Integer, &["INTEGER", "INT", "INT4", "INT32", "SIGNED", "INTEGRAL"]),
    (DataType::BigInt, &["BIGINT", "INT8", "INT64", "LONG", "OID"]),
    (DataType::UTinyInt, &["UTINYINT", "UINT8"]),
    (DataType::USmallInt, &["USMALLINT", "UINT16"]),
    (DataType::UInteger, &["UINTEGER", "UINT32"]),
    (DataType::UBigInt, &["UBIGINT", "UINT64"]),
    (DataType::HugeInt, &["HUGEINT", "INT128"]),
    (DataType::UHugeInt, &["UHUGEINT", "UINT128"]),
    (DataType::Float, &["FLOAT", "REAL", "FLOAT4"]),
    (DataType::Double, &["DOUBLE", "FLOAT8"]),
    (DataType::Varchar, &["VARCHAR", "TEXT", "STRING", "CHAR", "BPCHAR", "NVARCHAR", "NCHAR", "CHARACTER"]),
    (DataType::Blob, &["BLOB", "BYTEA", "BINARY", "VARBINARY"]),
    (DataType::Json, &["JSON"]),
    (DataType::Bit, &["BIT", "BITSTRING"]),
    (DataType::BigNum, &["BIGNUM", "VARINT"]),
    (DataType::Geometry, &["GEOMETRY"]),
    (DataType::Date, &["DATE"]),
    (DataType::Time, &["TIME"]),
    (DataType::TimeNs, &["TIME_NS"]),
    (DataType::TimeTz, &["TIMETZ"]),
    (DataType::TimestampS, &["TIMESTAMP_S"]),
    (DataType::TimestampMs, &["TIMESTAMP_MS"]),
    (DataType::Timestamp, &["TIMESTAMP", "DATETIME", "TIMESTAMP_US"]),
    (DataType::TimestampNs, &["TIMESTAMP_NS"]),
    (DataType::TimestampTz, &["TIMESTAMPTZ"]),
    (DataType::Interval, &["INTERVAL"]),
    (DataType::Uuid, &["UUID", "GUID"]),
    (DataType::Any, &["ANY"]),
];

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use DataType as T;
        match self {
            T::Decimal { precision, scale } => write!(f, "DECIMAL({precision},{scale})"),
            T::Enum(values) => {
                let quoted: Vec<_> = values.iter().map(|v| format!("'{}'", v.replace('\'', "''"))).collect();
                write!(f, "ENUM({})", quoted.join(", "))
            }
            T::List(child) => write!(f, "{child}[]"),
            T::Array(child, length) => write!(f, "{child}[{length}]"),
            T::Struct(fields) => {
                f.write_str("STRUCT(")?;
                comma_separated(f, fields)?;
                f.write_str(")")
            }
            T::Union(fields) => {
                f.write_str("UNION(")?;
                comma_separated(f, &fields[1..])?;
                f.write_str(")")
            }
            T::Map(entry) => {
                let mut parts = entry.children();
                let (Some(key), Some(value)) = (parts.next(), parts.next()) else { return Err(fmt::Error) };
                write!(f, "MAP({key}, {value})")
            }
            plain => {
                let known = NAMES.iter().find(|(known, _)| known == plain);
                known.map_or(Err(fmt::Error), |(_, names)| f.write_str(names[0]))
            }
        }
    }
}

fn comma_separated<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}
