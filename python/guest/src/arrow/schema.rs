//! SQL types as pyarrow types.

use super::c_data::ArrowSchema;
use crosslane::{DataType, Field, code_width};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::ffi::CString;
use std::ptr;
use std::sync::LazyLock;

const NULLABLE: i64 = 2;

/// The type of a TIMETZ in Arrow.
pub(super) static TIMETZ: LazyLock<DataType> = LazyLock::new(|| {
    let field = |name: &str, data_type| Field { name: name.into(), data_type };
    DataType::Struct([field("time", DataType::Time), field("offset", DataType::Integer)].into())
});

/// The memory that a schema points to. The release callback frees it.
struct SchemaParts {
    _format: CString,
    _name: CString,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the consumer calls this once, with a schema that `schema()` made.
    unsafe {
        let parts = Box::from_raw((*schema).private_data.cast::<SchemaParts>());
        for child in parts.children.iter().chain([&parts.dictionary]).filter(|child| !child.is_null()) {
            let child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(ptr::from_ref(&*child).cast_mut());
            }
        }
        (*schema).release = None;
    }
}

/// Whether a type is meant for arguments or for results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Argument,
    Result,
}

fn schema(data_type: &DataType, name: &str, direction: Direction) -> PyResult<Box<ArrowSchema>> {
    use DataType as T;
    let format = match data_type {
        T::Boolean => "b".into(),
        T::TinyInt => "c".into(),
        T::UTinyInt => "C".into(),
        T::SmallInt => "s".into(),
        T::USmallInt => "S".into(),
        T::Integer => "i".into(),
        T::UInteger => "I".into(),
        T::BigInt => "l".into(),
        T::UBigInt => "L".into(),
        T::TimeTz => return schema(&TIMETZ, name, direction),
        T::HugeInt | T::UHugeInt => "d:39,0,256".into(),
        T::BigNum => "d:76,0,256".into(),
        T::Float => "f".into(),
        T::Double => "g".into(),
        T::Decimal { precision, scale } => format!("d:{precision},{scale}"),
        T::Varchar | T::Json | T::Bit => "u".into(),
        T::Blob | T::Geometry => "z".into(),
        T::Date => "tdD".into(),
        T::Time => "ttu".into(),
        T::TimeNs => "ttn".into(),
        T::TimestampS => "tss:".into(),
        T::TimestampMs => "tsm:".into(),
        T::Timestamp => "tsu:".into(),
        T::TimestampNs => "tsn:".into(),
        T::TimestampTz => "tsu:UTC".into(),
        T::Interval => "tin".into(),
        T::Uuid => "w:16".into(),
        T::Enum(_) if direction == Direction::Result => "u".into(),
        T::Enum(values) => match code_width(values.len()) {
            1 => "C".into(),
            2 => "S".into(),
            _ => "I".into(),
        },
        T::List(_) => "+l".into(),
        T::Array(_, length) => format!("+w:{length}"),
        T::Struct(_) | T::Union(_) => "+s".into(),
        T::Map(_) => "+m".into(),
        T::Any => return Err(PyTypeError::new_err("a column has a type, and ANY is none")),
    };
    let names: Vec<&str> = match data_type {
        T::Struct(fields) | T::Union(fields) => fields.iter().map(|field| field.name.as_str()).collect(),
        T::Map(_) => vec!["entries"],
        _ => vec!["item"; data_type.children().len()],
    };
    let mut children = Vec::new();
    for (child, name) in data_type.children().zip(names) {
        let mut child = schema(child, name, direction)?;
        if matches!(data_type, T::Map(_)) {
            child.flags = 0;
            // SAFETY: a map's entries are a struct of key and value, made just above.
            unsafe { (**child.children).flags = 0 };
        }
        children.push(Box::into_raw(child));
    }
    let dictionary = match data_type {
        T::Enum(_) if direction == Direction::Argument => Box::into_raw(schema(&T::Varchar, "", direction)?),
        _ => ptr::null_mut(),
    };
    let mut parts = Box::new(SchemaParts {
        _format: CString::new(format)?,
        _name: CString::new(name)?,
        children,
        dictionary,
    });
    Ok(Box::new(ArrowSchema {
        format: parts._format.as_ptr(),
        name: parts._name.as_ptr(),
        metadata: ptr::null(),
        flags: NULLABLE,
        n_children: parts.children.len() as i64,
        children: parts.children.as_mut_ptr(),
        dictionary,
        release: Some(release_schema),
        private_data: Box::into_raw(parts).cast(),
    }))
}

/// The pyarrow type of a SQL type.
pub(crate) fn pyarrow_type<'py>(
    py: Python<'py>,
    data_type: &DataType,
    direction: Direction,
) -> PyResult<Bound<'py, PyAny>> {
    let schema = schema(data_type, "", direction)?;
    let address = ptr::from_ref(&*schema) as usize;
    py.import("pyarrow")?.getattr("DataType")?.call_method1("_import_from_c", (address,))
}
