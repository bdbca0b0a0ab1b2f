//! SQL types as pyarrow types.

use crosslane::{DataType, Field, code_width};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::LazyLock;

/// The type of a TIMETZ in Arrow.
pub(super) static TIMETZ: LazyLock<DataType> = LazyLock::new(|| {
    let field = |name: &str, data_type| Field { name: name.into(), data_type };
    DataType::Struct([field("time", DataType::Time), field("offset", DataType::Integer)].into())
});

/// Whether a type is meant for arguments or for results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Argument,
    Result,
}

/// The pyarrow type of a SQL type.
pub(crate) fn pyarrow_type<'py>(
    py: Python<'py>,
    data_type: &DataType,
    direction: Direction,
) -> PyResult<Bound<'py, PyAny>> {
    use DataType as T;
    let pyarrow = py.import("pyarrow")?;
    let inner = |data_type: &DataType| pyarrow_type(py, data_type, direction);
    match data_type {
        T::Boolean => pyarrow.call_method0("bool_"),
        T::TinyInt => pyarrow.call_method0("int8"),
        T::UTinyInt => pyarrow.call_method0("uint8"),
        T::SmallInt => pyarrow.call_method0("int16"),
        T::USmallInt => pyarrow.call_method0("uint16"),
        T::Integer => pyarrow.call_method0("int32"),
        T::UInteger => pyarrow.call_method0("uint32"),
        T::BigInt => pyarrow.call_method0("int64"),
        T::UBigInt => pyarrow.call_method0("uint64"),
        T::HugeInt | T::UHugeInt => pyarrow.call_method1("decimal256", (39, 0)),
        T::BigNum => pyarrow.call_method1("decimal256", (76, 0)),
        T::Float => pyarrow.call_method0("float32"),
        T::Double => pyarrow.call_method0("float64"),
        T::Decimal { precision, scale } => pyarrow.call_method1("decimal128", (*precision, *scale)),
        T::Varchar | T::Json | T::Bit => pyarrow.call_method0("string"),
        T::Blob | T::Geometry => pyarrow.call_method0("binary"),
        T::Date => pyarrow.call_method0("date32"),
        T::Time => pyarrow.call_method1("time64", ("us",)),
        T::TimeNs => pyarrow.call_method1("time64", ("ns",)),
        T::TimeTz => inner(&TIMETZ),
        T::TimestampS => pyarrow.call_method1("timestamp", ("s",)),
        T::TimestampMs => pyarrow.call_method1("timestamp", ("ms",)),
        T::Timestamp => pyarrow.call_method1("timestamp", ("us",)),
        T::TimestampNs => pyarrow.call_method1("timestamp", ("ns",)),
        T::TimestampTz => pyarrow.call_method1("timestamp", ("us", "UTC")),
        T::Interval => pyarrow.call_method0("month_day_nano_interval"),
        T::Uuid => pyarrow.call_method1("binary", (16,)),
        T::Enum(_) if direction == Direction::Result => inner(&T::Varchar),
        T::Enum(values) => {
            let codes = match code_width(values.len()) {
                1 => T::UTinyInt,
                2 => T::USmallInt,
                _ => T::UInteger,
            };
            pyarrow.call_method1("dictionary", (inner(&codes)?, inner(&T::Varchar)?))
        }
        T::List(element) => pyarrow.call_method1("list_", (inner(element)?,)),
        T::Array(element, length) => pyarrow.call_method1("list_", (inner(element)?, *length)),
        T::Struct(fields) | T::Union(fields) => {
            let fields = fields.iter().map(|field| Ok((field.name.as_str(), inner(&field.data_type)?)));
            pyarrow.call_method1("struct", (fields.collect::<PyResult<Vec<_>>>()?,))
        }
        T::Map(entry) => {
            let parts = entry.children().map(inner).collect::<PyResult<Vec<_>>>()?;
            pyarrow.call_method1("map_", PyTuple::new(py, parts)?)
        }
        T::Any => Err(PyTypeError::new_err("a column has a type, and ANY is none")),
    }
}
