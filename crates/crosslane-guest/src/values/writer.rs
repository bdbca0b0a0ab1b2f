//! Results: a value of the language as a row of a column.

use super::convert::{Taken, Values};
use super::numbers::decimal;
use super::refusal::{Class, Fault, NULL_KEY, Refusal};
use super::shape::shaped;
use super::temporal::{DAY, SECOND, Temporal, units_per_second};
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType, calendar, code_width, timetz};
use std::collections::HashMap;

/// Writes values as rows of a column.
#[derive(Debug)]
pub struct Writer<V: Values> {
    data_type: DataType,
    shape: V::Shape,
    /// The codes of the values of an ENUM, or the numbers of the members of a UNION, by their
    /// names.
    codes: HashMap<Box<[u8]>, usize>,
    /// The writers of the elements, the fields, the key and the value, or a UNION's members.
    children: Vec<Writer<V>>,
}

type Written<V> = Result<(), Fault<<V as Values>::Error>>;

/// Why a value was not written: the value is refused, or a value within it was.
enum Stop<E> {
    Value(Box<Refusal<E>>),
    Within(Fault<E>),
}

impl<E> From<Refusal<E>> for Stop<E> {
    #[cold]
    fn from(refusal: Refusal<E>) -> Self {
        Stop::Value(Box::new(refusal))
    }
}

impl<E> From<Fault<E>> for Stop<E> {
    fn from(fault: Fault<E>) -> Self {
        Stop::Within(fault)
    }
}

impl<E> From<Overflow> for Stop<E> {
    fn from(overflow: Overflow) -> Self {
        Stop::Within(overflow.into())
    }
}

type Tried<V> = Result<(), Stop<<V as Values>::Error>>;

impl<V: Values> Writer<V> {
    /// A writer of a type.
    ///
    /// # Errors
    /// If the language cannot have the type.
    pub fn new(values: &V, data_type: &DataType) -> Result<Self, V::Error> {
        Self::shaped(data_type, (), &|data_type, ()| Ok((values.shape(data_type)?, Vec::new())))
    }

    /// As [`crate::Reader::shaped`].
    ///
    /// # Errors
    /// As `shape`.
    pub fn shaped<K: Default>(
        data_type: &DataType,
        known: K,
        shape: &impl Fn(&DataType, K) -> Result<(V::Shape, Vec<K>), V::Error>,
    ) -> Result<Self, V::Error> {
        let codes = match data_type {
            DataType::Enum(names) => names.iter().map(|name| name.as_bytes().into()).zip(0..).collect(),
            DataType::Union(fields) => {
                fields[1..].iter().map(|field| field.name.as_bytes().into()).zip(0..).collect()
            }
            _ => HashMap::new(),
        };
        let part = |data_type: &DataType, known| Self::shaped(data_type, known, shape);
        let (shape, children) = shaped::<V, K, Self>(data_type, known, shape, part)?;
        Ok(Self { data_type: data_type.clone(), shape, codes, children })
    }

    /// A writer of some fields of a STRUCT, by their places, into a column of a STRUCT of these
    /// fields. The shape must make [`Values::with_fields`] give these fields.
    ///
    /// # Errors
    /// As [`Writer::new`].
    pub fn of_fields(
        values: &V,
        data_type: &DataType,
        places: &[usize],
        shape: V::Shape,
    ) -> Result<Self, V::Error> {
        let all: Vec<&DataType> = data_type.children().collect();
        let children =
            places.iter().filter_map(|place| all.get(*place)).map(|field| Writer::new(values, field));
        let children = children.collect::<Result<_, _>>()?;
        Ok(Self { data_type: data_type.clone(), shape, codes: HashMap::new(), children })
    }

    /// Adds a value to the column. The column has room for its fixed part
    /// ([`ColumnBuilder::reserve`]).
    ///
    /// # Errors
    /// Why it is no value of this type. The column may then hold a part of it.
    #[inline]
    pub fn write(&self, values: &V, value: &V::Value, out: &mut ColumnBuilder) -> Written<V> {
        match &self.data_type {
            DataType::BigInt => {
                if let Some(number) = values.quick_integer(value) {
                    out.fixed(number);
                    return Ok(());
                }
            }
            DataType::Double => {
                if let Some(number) = values.quick_float(value) {
                    out.fixed(number);
                    return Ok(());
                }
            }
            _ => {}
        }
        if values.is_null(value) {
            out.null();
            return Ok(());
        }
        let tried = match &self.data_type {
            DataType::Varchar => self.text(values, value, out),
            _ => self.other(values, value, out),
        };
        match tried {
            Ok(()) => Ok(()),
            Err(Stop::Value(refusal)) => Err(self.fault(values, value, *refusal)),
            Err(Stop::Within(fault)) => Err(fault),
        }
    }

    /// Adds rows of a STRUCT by its columns: a list of lists, one for each written field, of so
    /// many values each.
    ///
    /// # Errors
    /// Why they are no such columns. The column may then hold a part of them.
    pub fn write_columns(
        &self,
        values: &V,
        columns: &V::Value,
        count: usize,
        out: &mut ColumnBuilder,
    ) -> Written<V> {
        let mut fields = self.children.iter().zip(&mut out.children);
        let taken = values.with_elements(columns, |_, column| {
            let Some((writer, out)) = fields.next() else { return Ok(()) };
            out.reserve(count)?;
            let taken = values.with_elements(column, |_, value| writer.write(values, value, out));
            taken.unwrap_or_else(|refusal| Err(writer.fault(values, column, refusal)))
        });
        taken.unwrap_or_else(|refusal| Err(self.fault(values, columns, refusal)))?;
        let lengths = out.children.iter().map(|child| child.rows());
        if lengths.into_iter().any(|rows| rows != out.rows() + count) {
            return Err(Fault::refused(Class::Value, format!("columns of other lengths than {count}")));
        }
        (0..count).try_for_each(|_| out.nested())?;
        Ok(())
    }

    /// The error of a refusal.
    #[cold]
    fn fault(&self, values: &V, value: &V::Value, refusal: Refusal<V::Error>) -> Fault<V::Error> {
        refusal.told(|| values.shown(value), &self.data_type)
    }

    #[inline]
    fn text(&self, values: &V, value: &V::Value, out: &mut ColumnBuilder) -> Tried<V> {
        let written = values.with_text(value, |text, valid| {
            (valid || std::str::from_utf8(text).is_ok()).then(|| out.bytes(text))
        })?;
        Ok(written.ok_or(Refusal::Due(", which is not valid UTF-8,", V::NOT_UTF8))??)
    }

    fn other(&self, values: &V, value: &V::Value, out: &mut ColumnBuilder) -> Tried<V> {
        use DataType as T;
        match &self.data_type {
            T::Boolean => out.boolean(values.to_boolean(value)?),
            T::TinyInt => out.fixed(integer::<i8, V>(values, value)?),
            T::SmallInt => out.fixed(integer::<i16, V>(values, value)?),
            T::Integer => out.fixed(integer::<i32, V>(values, value)?),
            T::BigInt => out.fixed(integer::<i64, V>(values, value)?),
            T::UTinyInt => out.fixed(integer::<u8, V>(values, value)?),
            T::USmallInt => out.fixed(integer::<u16, V>(values, value)?),
            T::UInteger => out.fixed(integer::<u32, V>(values, value)?),
            T::UBigInt => out.fixed(integer::<u64, V>(values, value)?),
            T::HugeInt => {
                let number = match values.quick_integer(value) {
                    Some(number) => number.into(),
                    None => values.to_wide(value)?.narrow::<i128>().ok_or(Refusal::TooLarge)?,
                };
                out.fixed(number);
            }
            T::UHugeInt => {
                let number = values.to_wide(value)?;
                if number.negative && number.magnitude != 0 {
                    return Err(Refusal::TooLarge.into());
                }
                out.fixed(number.magnitude);
            }
            T::Float => {
                let number = float(values, value)?;
                let narrow = number as f32;
                if narrow.is_infinite() && number.is_finite() {
                    return Err(Refusal::TooLarge.into());
                }
                out.fixed(narrow);
            }
            T::Double => out.fixed(float(values, value)?),
            T::Decimal { precision, scale } => {
                let unscaled = match (values.quick_integer(value), values.quick_float(value)) {
                    (Some(number), _) => i128::from(number).checked_mul(10i128.pow(u32::from(*scale))),
                    (_, Some(number)) if !number.is_finite() => None,
                    // The digits of the decimal text count, not those of the binary fraction.
                    (_, Some(number)) => decimal(number.to_string().as_bytes(), usize::from(*scale)),
                    _ => values.with_decimal(value, |text| decimal(text, usize::from(*scale)))?,
                };
                let fits = |number: &i128| number.unsigned_abs() < 10u128.pow(u32::from(*precision));
                out.fixed(unscaled.filter(fits).ok_or(Refusal::TooLarge)?);
            }
            T::Varchar | T::Bit => self.text(values, value, out)?,
            T::Json => values.with_json(&self.shape, value, |text| out.bytes(text))??,
            T::Blob | T::Geometry => values.with_bytes(value, |bytes| out.bytes(bytes))??,
            T::BigNum => values.with_big(value, |bytes| out.bytes(bytes))??,
            T::Date | T::Interval | T::Time | T::TimeNs | T::TimeTz => self.temporal(values, value, out)?,
            T::TimestampS | T::TimestampMs | T::Timestamp | T::TimestampTz | T::TimestampNs => {
                out.fixed(self.timestamp(values, value)?);
            }
            T::Uuid => out.fixed(values.to_uuid(value)?),
            T::Enum(names) => {
                let code = values.to_code(&self.shape, value, |text| self.codes.get(text).copied())?;
                let none = || Refusal::Other(format!(", which is none of {}", self.data_type));
                let code = code.ok_or_else(none)?;
                match code_width(names.len()) {
                    1 => out.fixed(code as u8),
                    2 => out.fixed(code as u16),
                    _ => out.fixed(code as u32),
                }
            }
            T::List(_) | T::Array(..) => self.elements(values, value, out)?,
            T::Struct(fields) => {
                let children = &mut out.children;
                values.with_fields(&self.shape, fields, value, |at, field| {
                    self.children[at].write(values, field, &mut children[at])
                })??;
                out.nested()?;
            }
            T::Union(fields) => {
                let children = &mut out.children;
                values.with_member(&self.shape, fields, value, |tag, member| {
                    let Some(code) = self.codes.get(tag) else {
                        let what = format!("returned a tag that no member of {} has", self.data_type);
                        return Err(Fault::refused(Class::Value, what));
                    };
                    children[0].fixed(*code as u8);
                    for (at, writer) in self.children.iter().enumerate() {
                        match at == *code {
                            true => writer.write(values, member, &mut children[at + 1])?,
                            false => children[at + 1].null(),
                        }
                    }
                    Ok(())
                })??;
                out.nested()?;
            }
            T::Map(_) => self.entries(values, value, out)?,
            // No result has this type.
            T::Any => return Err(Refusal::Mismatch.into()),
        }
        Ok(())
    }

    fn elements(&self, values: &V, value: &V::Value, out: &mut ColumnBuilder) -> Tried<V> {
        let child = &mut out.children[0];
        let before = child.rows();
        let mut room = 0;
        let element = |count: usize, element: &V::Value| {
            make_room(child, &mut room, before, count)?;
            self.children[0].write(values, element, child)
        };
        values.with_elements(value, element)??;
        let count = out.children[0].rows() - before;
        if let DataType::Array(_, length) = &self.data_type
            && count != *length as usize
        {
            let what = format!("returned {count} elements where {} is due", self.data_type);
            return Err(Fault::refused(Class::Value, what).into());
        }
        Ok(out.nested()?)
    }

    fn entries(&self, values: &V, value: &V::Value, out: &mut ColumnBuilder) -> Tried<V> {
        let entries = &mut out.children[0];
        let before = entries.rows();
        let mut room = 0;
        let entry = |count: usize, key: &V::Value, value: &V::Value| {
            make_room(entries, &mut room, before, count)?;
            if values.is_null(key) {
                return Err(Fault::refused(Class::Value, NULL_KEY.into()));
            }
            self.children[0].write(values, key, &mut entries.children[0])?;
            self.children[1].write(values, value, &mut entries.children[1])?;
            Ok(entries.nested()?)
        };
        values.with_entries(value, entry)??;
        Ok(out.nested()?)
    }

    /// Adds a DATE, a time of day or an INTERVAL.
    #[inline]
    fn temporal(&self, values: &V, value: &V::Value, out: &mut ColumnBuilder) -> Taken<(), V> {
        match (&self.data_type, values.to_temporal(value, &self.data_type)?) {
            (DataType::Date, Temporal::Infinite(number)) => {
                out.fixed(calendar::day_of_infinity(number).ok_or(Refusal::Mismatch)?);
            }
            (DataType::Date, Temporal::Date(days)) => {
                let day = i32::try_from(days).ok().filter(|day| calendar::infinite_day(*day).is_none());
                out.fixed(day.ok_or(Refusal::TooLarge)?);
            }
            (data_type, Temporal::Time { nanoseconds, offset }) => {
                if !(0..=DAY * SECOND).contains(&nanoseconds) {
                    return Err(Refusal::TooLarge);
                }
                let units = nanoseconds / (SECOND / units_per_second(data_type).unwrap_or(SECOND));
                match (data_type, offset) {
                    (DataType::Time | DataType::TimeNs, None) => out.fixed(units),
                    (DataType::TimeTz, Some(offset)) => {
                        if offset.unsigned_abs() > timetz::MOST_SECONDS.unsigned_abs() {
                            return Err(Refusal::TooLarge);
                        }
                        out.fixed(timetz::bits(units, offset));
                    }
                    (_, None) => return Err(Refusal::Due(", which has no zone,", "give it one")),
                    (_, Some(_)) => {
                        let what = ", which has a zone, where none is due; declare TIMETZ, or leave it out";
                        return Err(Refusal::Other(what.into()));
                    }
                }
            }
            (DataType::Interval, Temporal::Interval { months, days, microseconds }) => {
                let narrow = |part: i64| i32::try_from(part).map_err(|_| Refusal::TooLarge);
                let [low, high] = [microseconds as i32, (microseconds >> 32) as i32];
                out.fixed([narrow(months)?, narrow(days)?, low, high]);
            }
            _ => return Err(Refusal::Mismatch),
        }
        Ok(())
    }

    /// Units since 1970, rounded down.
    #[inline]
    fn timestamp(&self, values: &V, value: &V::Value) -> Taken<i64, V> {
        let per_second = units_per_second(&self.data_type).unwrap_or(1);
        match values.to_temporal(value, &self.data_type)? {
            Temporal::Infinite(number) => calendar::timestamp_of_infinity(number).ok_or(Refusal::Mismatch),
            Temporal::Timestamp { seconds, nanoseconds } => {
                let whole = i128::from(seconds) * i128::from(per_second);
                let units = whole + i128::from(i64::from(nanoseconds) / (SECOND / per_second));
                let units = i64::try_from(units).ok();
                units.filter(|units| calendar::infinite_timestamp(*units).is_none()).ok_or(Refusal::TooLarge)
            }
            _ => Err(Refusal::Mismatch),
        }
    }
}

/// Reserves room for so many rows behind the first `before`, if that was not done.
#[inline]
fn make_room(
    column: &mut ColumnBuilder,
    room: &mut usize,
    before: usize,
    count: usize,
) -> Result<(), Overflow> {
    if *room < count {
        *room = count;
        column.reserve(before + count - column.rows())?;
    }
    Ok(())
}

#[inline]
fn integer<T: TryFrom<i64> + TryFrom<i128>, V: Values>(values: &V, value: &V::Value) -> Taken<T, V> {
    match values.quick_integer(value) {
        Some(number) => T::try_from(number).map_err(|_| Refusal::TooLarge),
        None => values.to_integer(value)?.narrow().ok_or(Refusal::TooLarge),
    }
}

#[inline]
fn float<V: Values>(values: &V, value: &V::Value) -> Taken<f64, V> {
    values.quick_float(value).map_or_else(|| values.to_float(value), Ok)
}
