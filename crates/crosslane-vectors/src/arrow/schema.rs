//! The types of arrays, and how their values are converted to SQL types.

use crosslane::{DataType, Field, MOST_LEVELS, MOST_MEMBERS};
use libduckdb_sys as ffi;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// The most elements of DuckDB's ARRAY. Longer lists of a fixed size become a LIST.
const LONGEST_ARRAY: u32 = 100_000;

/// The columns of a stream.
#[derive(Debug)]
pub struct Schema {
    pub(super) columns: Vec<Node>,
}

/// A column, or a child of one.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) data_type: DataType,
    pub(super) encoding: Encoding,
    /// The children. A dictionary has one: its values.
    pub(super) children: Vec<Node>,
}

/// How values are stored in the buffers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Encoding {
    Null,
    Bits,
    /// A byte that is not zero for true.
    Flags,
    /// This number of bytes, copied unchanged.
    Fixed(usize),
    /// A BLOB of this number of bytes.
    Blob(usize),
    Half,
    /// Integers of this number of bytes.
    Decimal(usize),
    /// An integer in another width or unit than that of the type.
    Units(Units),
    /// As [`Encoding::Units`], for the microseconds of an INTERVAL.
    Duration(Units),
    Months,
    DaysAndMillis,
    MonthsDaysNanos,
    Bytes {
        large: bool,
    },
    BytesView,
    /// The bytes of a BIT or BIGNUM in DuckDB's form.
    Encoded(Box<Encoding>),
    List {
        large: bool,
    },
    ListView {
        large: bool,
    },
    FixedList(usize),
    Struct,
    /// The member of each type's number.
    Union {
        dense: bool,
        members: HashMap<i8, usize>,
    },
    /// The children are the ends of the runs, as integers of this number of bytes, and the values.
    Runs(usize),
    /// Indices into the values.
    Dictionary(Index),
}

/// An integer that is multiplied, or divided if that is exact.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Units {
    /// Its bytes.
    pub(super) width: usize,
    pub(super) times: i64,
    pub(super) per: i64,
}

/// An integer that is an index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Index {
    pub(super) width: usize,
    pub(super) signed: bool,
}

impl Schema {
    /// Reads the schema of a stream.
    ///
    /// # Errors
    /// Which type has no counterpart, and where it is.
    ///
    /// # Safety
    /// It must be a schema of the C data interface that was not released.
    pub unsafe fn new(schema: &ffi::ArrowSchema) -> Result<Self, String> {
        // SAFETY: as the caller says.
        unsafe {
            let format = text(schema.format)?;
            if format != "+s" || !schema.dictionary.is_null() {
                return Err(format!("the stream is not one of rows: Arrow's type of them is {format}"));
            }
            let columns = children(schema)?.into_iter().enumerate().map(|(index, column)| {
                let node = Node::new(column, MOST_LEVELS);
                node.map_err(|why| format!("column {} ({}): {why}", index + 1, name(column)))
            });
            Ok(Self { columns: columns.collect::<Result<_, _>>()? })
        }
    }

    /// The names and types.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = (&str, &DataType)> {
        self.columns.iter().map(|column| (&column.name[..], &column.data_type))
    }
}

impl Node {
    /// # Safety
    /// As [`Schema::new`].
    unsafe fn new(schema: &ffi::ArrowSchema, levels: usize) -> Result<Self, String> {
        let Some(below) = levels.checked_sub(1) else {
            return Err(format!("a type of more than {MOST_LEVELS} levels has no counterpart"));
        };
        // SAFETY: as the caller says.
        unsafe {
            let format = text(schema.format)?;
            let name = name(schema);
            if let Some(values) = schema.dictionary.as_ref() {
                let index = index(&format).ok_or_else(|| format!("a dictionary with indices of {format}"))?;
                let values = Node::new(values, below)?;
                let data_type = values.data_type.clone();
                let encoding = Encoding::Dictionary(index);
                let mut node = Self { name, data_type, encoding, children: vec![values] };
                node.extend(&metadata(schema));
                return Ok(node);
            }
            let children = children(schema)?
                .into_iter()
                .map(|child| {
                    Node::new(child, below).map_err(|why| format!("in {}: {why}", self::name(child)))
                })
                .collect::<Result<Vec<_>, _>>()?;
            let (data_type, encoding) = read(&format, &children)?;
            let mut node = Self { name, data_type, encoding, children };
            node.extend(&metadata(schema));
            Ok(node)
        }
    }

    /// Applies an extension to the type that it is stored as. For a dictionary or runs, it applies
    /// to the values.
    fn extend(&mut self, metadata: &HashMap<String, String>) {
        let values = match self.encoding {
            Encoding::Dictionary(_) => 0,
            Encoding::Runs(_) => 1,
            _ => {
                if let Some(extended) = extended(&self.data_type, &self.encoding, metadata) {
                    (self.data_type, self.encoding) = extended;
                }
                return;
            }
        };
        let values = &mut self.children[values];
        values.extend(metadata);
        self.data_type = values.data_type.clone();
    }
}

/// The type and the encoding of a format.
fn read(format: &str, children: &[Node]) -> Result<(DataType, Encoding), String> {
    use DataType as T;
    use Encoding as E;
    let unknown = || format!("Arrow's type {format} has no counterpart");
    let fixed = |data_type, width| Ok((data_type, E::Fixed(width)));
    let units = |data_type, width, times, per| Ok((data_type, E::Units(Units { width, times, per })));
    let duration = |times, per| Ok((T::Interval, E::Duration(Units { width: 8, times, per })));
    match format {
        "n" => Ok((T::Varchar, E::Null)),
        "b" => Ok((T::Boolean, E::Bits)),
        "c" => fixed(T::TinyInt, 1),
        "C" => fixed(T::UTinyInt, 1),
        "s" => fixed(T::SmallInt, 2),
        "S" => fixed(T::USmallInt, 2),
        "i" => fixed(T::Integer, 4),
        "I" => fixed(T::UInteger, 4),
        "l" => fixed(T::BigInt, 8),
        "L" => fixed(T::UBigInt, 8),
        "e" => Ok((T::Float, E::Half)),
        "f" => fixed(T::Float, 4),
        "g" => fixed(T::Double, 8),
        "z" | "Z" => Ok((T::Blob, E::Bytes { large: format == "Z" })),
        "u" | "U" => Ok((T::Varchar, E::Bytes { large: format == "U" })),
        "vz" => Ok((T::Blob, E::BytesView)),
        "vu" => Ok((T::Varchar, E::BytesView)),
        "tdD" => fixed(T::Date, 4),
        // Milliseconds that are whole days, converted to days.
        "tdm" => units(T::Date, 8, 1, 86_400_000),
        "tts" => units(T::Time, 4, 1_000_000, 1),
        "ttm" => units(T::Time, 4, 1_000, 1),
        "ttu" => fixed(T::Time, 8),
        "ttn" => fixed(T::TimeNs, 8),
        "tss:" => fixed(T::TimestampS, 8),
        "tsm:" => fixed(T::TimestampMs, 8),
        "tsu:" => fixed(T::Timestamp, 8),
        "tsn:" => fixed(T::TimestampNs, 8),
        // A time with a zone is the same instant in every zone.
        _ if format.starts_with("tss:") => units(T::TimestampTz, 8, 1_000_000, 1),
        _ if format.starts_with("tsm:") => units(T::TimestampTz, 8, 1_000, 1),
        _ if format.starts_with("tsu:") => fixed(T::TimestampTz, 8),
        _ if format.starts_with("tsn:") => units(T::TimestampTz, 8, 1, 1_000),
        "tDs" => duration(1_000_000, 1),
        "tDm" => duration(1_000, 1),
        "tDu" => duration(1, 1),
        "tDn" => duration(1, 1_000),
        "tiM" => Ok((T::Interval, E::Months)),
        "tiD" => Ok((T::Interval, E::DaysAndMillis)),
        "tin" => Ok((T::Interval, E::MonthsDaysNanos)),
        "+l" | "+L" | "+vl" | "+vL" => {
            let [element] = children else { return Err(unknown()) };
            let large = format.ends_with('L');
            let list = T::List(Arc::new(element.data_type.clone()));
            Ok((list, if format.contains('v') { E::ListView { large } } else { E::List { large } }))
        }
        "+s" => Ok((T::Struct(fields("a STRUCT", children)?), E::Struct)),
        "+m" => {
            let [Node { data_type: T::Struct(entry), encoding: E::Struct, .. }] = children else {
                return Err(unknown());
            };
            let [key, value] = &**entry else { return Err(unknown()) };
            Ok((T::map(key.data_type.clone(), value.data_type.clone()), E::List { large: false }))
        }
        "+r" => {
            let [ends, values] = children else { return Err(unknown()) };
            let width = match (&ends.data_type, &ends.encoding) {
                (T::SmallInt | T::Integer | T::BigInt, E::Fixed(width)) => *width,
                _ => return Err(unknown()),
            };
            Ok((values.data_type.clone(), E::Runs(width)))
        }
        _ => parametric(format, children)?.ok_or_else(unknown),
    }
}

/// A format with parameters.
fn parametric(format: &str, children: &[Node]) -> Result<Option<(DataType, Encoding)>, String> {
    let Some((kind, parameters)) = format.split_once(':') else { return Ok(None) };
    let numbers: Option<Vec<i64>> =
        parameters.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().ok()).collect();
    let Some(numbers) = numbers else { return Ok(None) };
    Ok(match (kind, &numbers[..], children) {
        ("w", [width], []) => {
            usize::try_from(*width).ok().map(|width| (DataType::Blob, Encoding::Blob(width)))
        }
        ("d", [digits, scale, bits @ ..], []) => {
            let width = match bits {
                [] | [128] => 16,
                [32] => 4,
                [64] => 8,
                [256] => 32,
                _ => return Ok(None),
            };
            let (true, true) = ((1..=38).contains(digits), (0..=*digits).contains(scale)) else {
                return Err(format!(
                    "a decimal of {digits} digits, {scale} of them behind the point, has no counterpart: DECIMAL has \
                     at most 38, and not less than it has behind the point; cast it"
                ));
            };
            let data_type = DataType::Decimal { precision: *digits as u8, scale: *scale as u8 };
            Some((data_type, Encoding::Decimal(width)))
        }
        ("+w", [length], [element]) => u32::try_from(*length).ok().map(|length| {
            let element = Arc::new(element.data_type.clone());
            let data_type = match length {
                1..=LONGEST_ARRAY => DataType::Array(element, length),
                _ => DataType::List(element),
            };
            (data_type, Encoding::FixedList(length as usize))
        }),
        ("+ud" | "+us", ids, _) => {
            let count = children.len();
            let members: Option<HashMap<i8, usize>> =
                ids.iter().zip(0..).map(|(id, at)| Some((i8::try_from(*id).ok()?, at))).collect();
            let (Some(members), true) = (members, ids.len() == count) else { return Ok(None) };
            if members.len() != count || !(1..=MOST_MEMBERS).contains(&count) {
                return Ok(None);
            }
            let fields = fields("a UNION", children)?;
            Some((DataType::union(fields.to_vec()), Encoding::Union { dense: kind == "+ud", members }))
        }
        _ => None,
    })
}

/// The fields of a STRUCT or UNION, which have different names.
fn fields(what: &str, children: &[Node]) -> Result<Arc<[Field]>, String> {
    if children.is_empty() {
        return Err(format!("{what} without fields has no counterpart"));
    }
    let mut known: HashMap<String, ()> = HashMap::new();
    for child in children {
        if child.name.is_empty() {
            return Err(format!("{what} of which a field has no name has no counterpart; name its fields"));
        }
        if known.insert(child.name.to_lowercase(), ()).is_some() {
            return Err(format!("{what} has two fields named {}", child.name));
        }
    }
    let field = |child: &Node| Field { name: child.name.clone(), data_type: child.data_type.clone() };
    Ok(children.iter().map(field).collect())
}

/// The type and encoding of a known extension, from those that it is stored as.
fn extended(
    data_type: &DataType,
    encoding: &Encoding,
    metadata: &HashMap<String, String>,
) -> Option<(DataType, Encoding)> {
    use DataType as T;
    use Encoding as E;
    let of = |key: &str| metadata.get(key).map_or("", |value| &value[..]);
    let opaque = of("ARROW:extension:metadata");
    let duckdb = |name: &str| opaque.contains("\"DuckDB\"") && opaque.contains(&format!("\"{name}\""));
    let encoded = || Encoding::Encoded(Box::new(encoding.clone()));
    Some(match (of("ARROW:extension:name"), data_type, encoding) {
        ("arrow.uuid", T::Blob, E::Blob(16)) => (T::Uuid, E::Fixed(16)),
        ("arrow.json", T::Varchar, _) => (T::Json, encoding.clone()),
        ("arrow.bool8", T::TinyInt, E::Fixed(1)) => (T::Boolean, E::Flags),
        ("geoarrow.wkb", T::Blob, _) => (T::Geometry, encoding.clone()),
        ("arrow.opaque", T::Blob, E::Blob(16)) if duckdb("hugeint") => (T::HugeInt, E::Fixed(16)),
        ("arrow.opaque", T::Blob, E::Blob(16)) if duckdb("uhugeint") => (T::UHugeInt, E::Fixed(16)),
        ("arrow.opaque", T::Blob, E::Blob(8)) if duckdb("time_tz") => (T::TimeTz, E::Fixed(8)),
        ("arrow.opaque", T::Blob, E::Blob(_) | E::Bytes { .. } | E::BytesView) if duckdb("bit") => {
            (T::Bit, encoded())
        }
        ("arrow.opaque", T::Blob, E::Blob(_) | E::Bytes { .. } | E::BytesView) if duckdb("bignum") => {
            (T::BigNum, encoded())
        }
        _ => return None,
    })
}

fn index(format: &str) -> Option<Index> {
    let width = match format {
        "c" | "C" => 1,
        "s" | "S" => 2,
        "i" | "I" => 4,
        "l" | "L" => 8,
        _ => return None,
    };
    Some(Index { width, signed: format.chars().all(char::is_lowercase) })
}

/// # Safety
/// As [`Schema::new`].
unsafe fn children(schema: &ffi::ArrowSchema) -> Result<Vec<&ffi::ArrowSchema>, String> {
    let missing = || "a schema without the children that it counts".to_string();
    let count = usize::try_from(schema.n_children).map_err(|_| missing())?;
    if count > 0 && schema.children.is_null() {
        return Err(missing());
    }
    // SAFETY: as the caller says.
    (0..count).map(|at| unsafe { (*schema.children.add(at)).as_ref() }.ok_or_else(missing)).collect()
}

/// # Safety
/// It must be null or a C string.
unsafe fn text(text: *const c_char) -> Result<String, String> {
    if text.is_null() {
        return Err("a schema without a format".into());
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// # Safety
/// As [`Schema::new`].
unsafe fn name(schema: &ffi::ArrowSchema) -> String {
    // SAFETY: as the caller says.
    unsafe { text(schema.name) }.unwrap_or_default()
}

/// The keys and values of metadata. It has 32-bit numbers for the number of pairs, and for the
/// length of each text.
///
/// # Safety
/// As [`Schema::new`].
unsafe fn metadata(schema: &ffi::ArrowSchema) -> HashMap<String, String> {
    let mut at = schema.metadata.cast::<u8>();
    if at.is_null() {
        return HashMap::new();
    }
    // SAFETY: as the caller says, the texts have the lengths before them.
    unsafe {
        let number = |at: *const u8| at.cast::<i32>().read_unaligned().max(0) as usize;
        let count = number(at);
        at = at.add(4);
        let mut texts = (0..count * 2).map(|_| {
            let bytes = std::slice::from_raw_parts(at.add(4), number(at));
            at = at.add(4 + bytes.len());
            String::from_utf8_lossy(bytes).into_owned()
        });
        (0..count).filter_map(|_| Some((texts.next()?, texts.next()?))).collect()
    }
}
