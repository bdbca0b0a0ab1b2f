//! SQL types as Arrow types, and the Arrow types that a client may send for each of them.

use arrow_schema::{DataType as Arrow, Field, FieldRef, Fields, IntervalUnit, TimeUnit};
use crosslane::{DataType, signature};
use std::collections::HashMap;
use std::sync::Arc;

/// The key under which Arrow keeps what a field is, if it is more than its type says.
const EXTENSION: &str = "ARROW:extension:name";
/// The zone of moments: RisingWave writes it so.
const ZONE: &str = "+00:00";

/// A field of a type, which may be NULL.
///
/// # Errors
/// Which type Arrow does not have.
pub(super) fn field(name: &str, data_type: &DataType) -> Result<Field, String> {
    let field = Field::new(name, arrow(data_type)?, true);
    let extension = match data_type {
        // As arrow-udf calls it.
        DataType::Json => "arrowudf.json",
        DataType::Uuid => "arrow.uuid",
        DataType::Geometry => "geoarrow.wkb",
        _ => return Ok(field),
    };
    Ok(field.with_metadata(HashMap::from([(EXTENSION.to_owned(), extension.to_owned())])))
}

/// # Errors
/// As [`field`].
fn arrow(data_type: &DataType) -> Result<Arrow, String> {
    use DataType as T;
    Ok(match data_type {
        T::Boolean => Arrow::Boolean,
        T::TinyInt => Arrow::Int8,
        T::SmallInt => Arrow::Int16,
        T::Integer => Arrow::Int32,
        T::BigInt => Arrow::Int64,
        T::UTinyInt => Arrow::UInt8,
        T::USmallInt => Arrow::UInt16,
        T::UInteger => Arrow::UInt32,
        T::UBigInt => Arrow::UInt64,
        T::Float => Arrow::Float32,
        T::Double => Arrow::Float64,
        T::Decimal { precision, scale } => Arrow::Decimal128(*precision, *scale as i8),
        T::Varchar | T::Json => Arrow::Utf8,
        T::Blob | T::Geometry => Arrow::Binary,
        T::Date => Arrow::Date32,
        T::Time => Arrow::Time64(TimeUnit::Microsecond),
        T::TimeNs => Arrow::Time64(TimeUnit::Nanosecond),
        T::TimestampS => Arrow::Timestamp(TimeUnit::Second, None),
        T::TimestampMs => Arrow::Timestamp(TimeUnit::Millisecond, None),
        T::Timestamp => Arrow::Timestamp(TimeUnit::Microsecond, None),
        T::TimestampNs => Arrow::Timestamp(TimeUnit::Nanosecond, None),
        T::TimestampTz => Arrow::Timestamp(TimeUnit::Microsecond, Some(ZONE.into())),
        T::Interval => Arrow::Interval(IntervalUnit::MonthDayNano),
        T::Uuid => Arrow::FixedSizeBinary(16),
        T::List(element) => Arrow::List(Arc::new(field("item", element)?)),
        T::Array(element, length) => Arrow::FixedSizeList(Arc::new(field("item", element)?), *length as i32),
        T::Struct(parts) => Arrow::Struct(fields(parts)?),
        T::Map(entry) => {
            let DataType::Struct(parts) = &**entry else { return Err(lacking(data_type)) };
            let mut parts = fields(parts)?.to_vec();
            // A key is never NULL.
            parts[0] = Arc::new(parts[0].as_ref().clone().with_nullable(false));
            Arrow::Map(Arc::new(Field::new("entries", Arrow::Struct(parts.into()), false)), false)
        }
        T::HugeInt | T::UHugeInt | T::Bit | T::BigNum | T::TimeTz | T::Enum(_) | T::Union(_) | T::Any => {
            return Err(lacking(data_type));
        }
    })
}

fn fields(parts: &[crosslane::Field]) -> Result<Fields, String> {
    parts.iter().map(|part| field(&part.name, &part.data_type)).collect()
}

fn lacking(data_type: &DataType) -> String {
    let text = signature::types_text(std::slice::from_ref(data_type));
    format!("the type {} does not travel over Arrow Flight", &text[1..text.len() - 1])
}

/// Whether a column of Arrow's type `given` can be read where `due` is due: another encoding of the same values may
/// come. Names of parts do not matter. What is short as it travels and long when it is read (dictionaries, run lengths)
/// is not taken.
fn fits(given: &Arrow, due: &Arrow) -> bool {
    use Arrow as A;
    match (given, due) {
        (A::LargeUtf8 | A::Utf8View, A::Utf8) | (A::LargeBinary | A::BinaryView, A::Binary) => true,
        // The same moments, of whatever place.
        (A::Timestamp(unit, _), A::Timestamp(other, _)) => unit == other,
        (A::List(given) | A::LargeList(given), A::List(due)) => fits(given.data_type(), due.data_type()),
        (A::FixedSizeList(given, length), A::FixedSizeList(due, other)) => {
            length == other && fits(given.data_type(), due.data_type())
        }
        (A::Struct(given), A::Struct(due)) => all_fit(given, due),
        (A::Map(given, _), A::Map(due, _)) => fits(given.data_type(), due.data_type()),
        _ => given == due,
    }
}

fn all_fit(given: &Fields, due: &Fields) -> bool {
    given.len() == due.len()
        && given.iter().zip(due).all(|(given, due)| fits(given.data_type(), due.data_type()))
}

/// Whether the columns that a client gives can be read as the arguments that are due. One of nothing but NULLs may
/// stand for a plain type.
pub(super) fn arguments_fit(given: &Fields, due: &Fields) -> bool {
    let fit = |(given, due): (&FieldRef, &FieldRef)| {
        let (given, due) = (given.data_type(), due.data_type());
        fits(given, due) || *given == Arrow::Null && !due.is_nested()
    };
    given.len() == due.len() && given.iter().zip(due).all(fit)
}

/// The types of columns, as text.
pub(super) fn shown(fields: &Fields) -> String {
    let types: Vec<_> = fields.iter().map(|field| field.data_type().to_string()).collect();
    format!("({})", types.join(", "))
}
