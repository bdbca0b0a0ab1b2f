//! Arguments: a row of a column as a value of the language.

use super::convert::Values;
use super::integer::Integer;
use super::shape::shaped;
use super::temporal::{SECOND, Temporal, units_per_second};
use crosslane::batch::{self, Column};
use crosslane::{DataType, calendar, code_width, member, timetz};

/// Makes values of the rows of a column.
#[derive(Debug)]
pub struct Reader<V: Values> {
    data_type: DataType,
    shape: V::Shape,
    /// The readers of the elements, the fields, or a UNION's members.
    children: Vec<Reader<V>>,
}

type Read<V> = Result<<V as Values>::Value, <V as Values>::Error>;

impl<V: Values> Reader<V> {
    /// A reader of a type.
    ///
    /// # Errors
    /// If the language cannot have the type.
    pub fn new(values: &V, data_type: &DataType) -> Result<Self, V::Error> {
        Self::shaped(data_type, (), &|data_type, ()| Ok((values.shape(data_type)?, Vec::new())))
    }

    /// A reader of a type, with what the language knows of it beside SQL. `shape` prepares a type,
    /// and says what is known of each of its parts.
    ///
    /// # Errors
    /// As `shape`.
    pub fn shaped<K: Default>(
        data_type: &DataType,
        known: K,
        shape: &impl Fn(&DataType, K) -> Result<(V::Shape, Vec<K>), V::Error>,
    ) -> Result<Self, V::Error> {
        let part = |data_type: &DataType, known| Self::shaped(data_type, known, shape);
        let (shape, children) = shaped::<V, K, Self>(data_type, known, shape, part)?;
        Ok(Self { data_type: data_type.clone(), shape, children })
    }

    /// The type of the columns.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The value of a row.
    ///
    /// # Errors
    /// The error of the language, if it cannot make the value.
    #[inline]
    pub fn read(&self, values: &V, column: &Column<'_>, row: usize) -> Read<V> {
        if column.is_valid(row) { self.value(values, column, row) } else { Ok(values.null()) }
    }

    /// An element of a LIST. A variadic function gets its last arguments from such elements.
    #[inline]
    pub(crate) fn element(&self, values: &V, column: &Column<'_>, at: usize) -> Read<V> {
        self.children[0].read(values, &column.children[0], at)
    }

    /// The value of a row that is not NULL.
    #[inline]
    fn value(&self, values: &V, column: &Column<'_>, row: usize) -> Read<V> {
        match &self.data_type {
            DataType::BigInt => values.integer(column.value(row)),
            DataType::Double => values.float(column.value(row)),
            DataType::Varchar => values.text(column.bytes(row), None),
            _ => self.other(values, column, row),
        }
    }

    fn other(&self, values: &V, column: &Column<'_>, row: usize) -> Read<V> {
        use DataType as T;
        match &self.data_type {
            T::Boolean => values.boolean(batch::bit(column.data, row)),
            T::TinyInt => values.integer(column.value::<i8>(row).into()),
            T::SmallInt => values.integer(column.value::<i16>(row).into()),
            T::Integer => values.integer(column.value::<i32>(row).into()),
            T::BigInt => values.integer(column.value(row)),
            T::UTinyInt => values.integer(column.value::<u8>(row).into()),
            T::USmallInt => values.integer(column.value::<u16>(row).into()),
            T::UInteger => values.integer(column.value::<u32>(row).into()),
            T::UBigInt => values.wide(u128::from(column.value::<u64>(row)).into()),
            T::HugeInt => values.wide(Integer::from(column.value::<i128>(row))),
            T::UHugeInt => values.wide(Integer::from(column.value::<u128>(row))),
            T::Float => values.float(column.value::<f32>(row).into()),
            T::Double => values.float(column.value(row)),
            T::Decimal { scale, .. } => values.decimal(column.value(row), *scale),
            T::Varchar | T::Bit => values.text(column.bytes(row), None),
            T::Json => values.json(&self.shape, column.bytes(row)),
            T::Blob | T::Geometry => values.bytes(column.bytes(row)),
            T::BigNum => values.big(column.bytes(row)),
            T::Date => {
                let day = column.value::<i32>(row);
                match calendar::infinite_day(day) {
                    Some(infinity) => values.float(infinity),
                    None => values.temporal(&self.shape, Temporal::Date(day.into())),
                }
            }
            T::Time | T::TimeNs => values.temporal(&self.shape, self.time(column.value(row), None)),
            T::TimeTz => {
                let (units, offset) = timetz::parts(column.value(row));
                values.temporal(&self.shape, self.time(units, Some(offset)))
            }
            T::TimestampS | T::TimestampMs | T::Timestamp | T::TimestampTz | T::TimestampNs => {
                self.timestamp(values, column.value(row))
            }
            T::Interval => {
                let [months, days, low, high] = column.value::<[i32; 4]>(row);
                let interval = Temporal::Interval {
                    months: months.into(),
                    days: days.into(),
                    microseconds: i64::from(high) << 32 | i64::from(low as u32),
                };
                values.temporal(&self.shape, interval)
            }
            T::Uuid => values.uuid(column.value(row)),
            T::Enum(names) => {
                let width = code_width(names.len());
                let code = &column.data[row * width..(row + 1) * width];
                let code = code.iter().rev().fold(0, |code, byte| code << 8 | usize::from(*byte));
                values.code(&self.shape, code)
            }
            T::List(_) | T::Array(..) => {
                let range = column.elements(row);
                values.list(range.len(), |at| self.element(values, column, range.start + at))
            }
            T::Struct(_) => {
                let field = |at: usize| self.children[at].read(values, &column.children[at], row);
                values.structure(&self.shape, self.children.len(), field)
            }
            T::Union(_) => {
                // UNIONs of the engine always have a tag.
                let at = member(column, row).unwrap_or(1);
                let value = self.children[at - 1].read(values, &column.children[at], row)?;
                values.member(&self.shape, at - 1, value)
            }
            T::Map(_) => {
                let range = column.elements(row);
                let entries = &column.children[0].children;
                values.map(&self.shape, range.len(), |at| {
                    let part =
                        |part: usize| self.children[part].read(values, &entries[part], range.start + at);
                    Ok((part(0)?, part(1)?))
                })
            }
            T::Any => Ok(values.null()),
        }
    }

    fn time(&self, units: i64, offset: Option<i32>) -> Temporal {
        Temporal::Time { nanoseconds: units * (SECOND / self.units_per_second()), offset }
    }

    fn units_per_second(&self) -> i64 {
        units_per_second(&self.data_type).unwrap_or(SECOND)
    }

    fn timestamp(&self, values: &V, units: i64) -> Read<V> {
        let per_second = self.units_per_second();
        if let Some(infinity) = calendar::infinite_timestamp(units) {
            return values.float(infinity);
        }
        let fraction = units.rem_euclid(per_second);
        let timestamp = Temporal::Timestamp {
            seconds: units.div_euclid(per_second),
            nanoseconds: (fraction * (SECOND / per_second)) as u32,
        };
        values.temporal(&self.shape, timestamp)
    }
}

/// A column, and the quickest way to its values.
#[derive(Debug)]
pub struct Argument<'a, V: Values>(Access<'a, V>);

#[derive(Debug)]
enum Access<'a, V: Values> {
    Int64(&'a [i64]),
    Float64(&'a [f64]),
    Text { offsets: &'a [i32], text: &'a [u8], ascii: Option<bool> },
    Other { reader: &'a Reader<V>, column: &'a Column<'a> },
}

impl<'a, V: Values> Argument<'a, V> {
    /// `sees_null` says whether rows with NULL in this column are called.
    pub fn new(reader: &'a Reader<V>, column: &'a Column<'a>, sees_null: bool) -> Self {
        let other = Access::Other { reader, column };
        if sees_null && column.validity.is_some() {
            return Self(other);
        }
        Self(match reader.data_type {
            DataType::BigInt => column.values().map_or(other, Access::Int64),
            DataType::Double => column.values().map_or(other, Access::Float64),
            DataType::Varchar => {
                let ascii = column.data.is_ascii().then_some(true);
                Access::Text { offsets: column.offsets, text: column.data, ascii }
            }
            _ => other,
        })
    }

    /// The value of a row.
    ///
    /// # Errors
    /// As [`Reader::read`].
    #[inline(always)]
    pub fn get(&self, values: &V, row: usize) -> Read<V> {
        match &self.0 {
            Access::Int64(numbers) => values.integer(numbers[row]),
            Access::Float64(numbers) => values.float(numbers[row]),
            Access::Text { offsets, text, ascii } => {
                values.text(&text[offsets[row] as usize..offsets[row + 1] as usize], *ascii)
            }
            Access::Other { reader, column } => reader.read(values, column, row),
        }
    }
}
