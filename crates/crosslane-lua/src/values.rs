//! Lua's values in SQL: `docs/lua.md` has the table.

use crate::Lua;
use crosslane::{DataType, Field};
use crosslane_guest::{Class, Fault, Refusal, Taken, Temporal, Values, Wrong};
use mlua::{Error, String, Table, Value};

type Made = Result<Value, Error>;
type Written = Result<(), Fault<Error>>;

impl Lua {
    fn string(&self, bytes: &[u8]) -> Made {
        self.vm.create_string(bytes).map(Value::String)
    }
}

/// A named number of a date or time.
fn part(table: &Table, name: &str) -> Taken<Option<i64>, Lua> {
    match table.get(name).map_err(Refusal::Failed)? {
        Value::Integer(value) => Ok(Some(value)),
        Value::Number(value) if value.fract() == 0.0 => Ok(Some(value as i64)),
        Value::Nil => Ok(None),
        _ => Err(Refusal::Other(format!(", whose {name} is no integer"))),
    }
}

fn table_of(value: &Value) -> Taken<&Table, Lua> {
    value.as_table().ok_or(Refusal::Mismatch)
}

fn string_of(value: &Value) -> Taken<&String, Lua> {
    value.as_string().ok_or(Refusal::Mismatch)
}

impl Values for Lua {
    type Value = Value;
    type Error = Error;
    type Shape = Vec<String>;

    fn shape(&self, data_type: &DataType) -> Result<Vec<String>, Error> {
        match data_type {
            DataType::Enum(names) => names.iter().map(|name| self.vm.create_string(name)).collect(),
            DataType::Struct(fields) => {
                fields.iter().map(|field| self.vm.create_string(&field.name)).collect()
            }
            DataType::Union(fields) => {
                fields[1..].iter().map(|field| self.vm.create_string(&field.name)).collect()
            }
            _ => Ok(Vec::new()),
        }
    }

    fn error(&self, class: Class, message: &str) -> Error {
        Error::external(Wrong::new(class.name(), message))
    }

    fn shown(&self, value: &Value) -> Result<std::string::String, Error> {
        let text = match value {
            Value::Nil => return Ok("nil".into()),
            Value::Table(_) | Value::Function(_) => return Ok(format!("a {}", value.type_name())),
            Value::Number(number) => format!("{number:?}"),
            other => other.to_string().unwrap_or_default(),
        };
        let mut shown =
            format!("{} {}", value.type_name(), text.chars().take(80).collect::<std::string::String>());
        if text.chars().nth(80).is_some() {
            shown.push_str("...");
        }
        Ok(shown)
    }

    fn null(&self) -> Value {
        Value::Nil
    }

    fn boolean(&self, value: bool) -> Made {
        Ok(Value::Boolean(value))
    }

    #[inline]
    fn integer(&self, value: i64) -> Made {
        Ok(Value::Integer(value))
    }

    #[inline]
    fn float(&self, value: f64) -> Made {
        Ok(Value::Number(value))
    }

    #[inline]
    fn text(&self, utf8: &[u8], _: Option<bool>) -> Made {
        self.string(utf8)
    }

    fn bytes(&self, bytes: &[u8]) -> Made {
        self.string(bytes)
    }

    fn temporal(&self, _: &Vec<String>, temporal: Temporal) -> Made {
        Ok(Value::Table(self.vm.create_table_from(temporal.date_parts())?))
    }

    fn code(&self, names: &Vec<String>, code: usize) -> Made {
        Ok(names.get(code).map_or(Value::Nil, |name| Value::String(name.clone())))
    }

    fn list(&self, count: usize, mut element: impl FnMut(usize) -> Made) -> Made {
        let table = self.vm.create_table_with_capacity(count, 0)?;
        for at in 0..count {
            let element = element(at)?;
            table.raw_seti(at + 1, if element.is_nil() { Value::NULL } else { element })?;
        }
        Ok(Value::Table(table))
    }

    fn structure(&self, names: &Vec<String>, count: usize, mut field: impl FnMut(usize) -> Made) -> Made {
        let table = self.vm.create_table_with_capacity(0, count)?;
        for (at, name) in names.iter().enumerate() {
            table.raw_set(name, field(at)?)?;
        }
        Ok(Value::Table(table))
    }

    fn member(&self, names: &Vec<String>, member: usize, value: Value) -> Made {
        let table = self.vm.create_table_with_capacity(0, 2)?;
        table.raw_set("tag", names.get(member))?;
        table.raw_set("value", value)?;
        Ok(Value::Table(table))
    }

    fn map(
        &self,
        _: &Vec<String>,
        count: usize,
        mut entry: impl FnMut(usize) -> Result<(Value, Value), Error>,
    ) -> Made {
        let table = self.vm.create_table_with_capacity(0, count)?;
        for at in 0..count {
            let (key, value) = entry(at)?;
            table.raw_set(key, if value.is_nil() { Value::NULL } else { value })?;
        }
        Ok(Value::Table(table))
    }

    #[inline]
    fn is_null(&self, value: &Value) -> bool {
        value.is_nil() || value.is_null()
    }

    fn to_boolean(&self, value: &Value) -> Taken<bool, Self> {
        value.as_boolean().ok_or(Refusal::Mismatch)
    }

    #[inline]
    fn quick_integer(&self, value: &Value) -> Option<i64> {
        if let Value::Integer(value) = value { Some(*value) } else { None }
    }

    #[inline]
    fn quick_float(&self, value: &Value) -> Option<f64> {
        if let Value::Number(value) = value { Some(*value) } else { None }
    }

    fn with_text<R>(&self, value: &Value, take: impl FnOnce(&[u8], bool) -> R) -> Taken<R, Self> {
        Ok(take(&string_of(value)?.as_bytes(), false))
    }

    fn to_temporal(&self, value: &Value, data_type: &DataType) -> Taken<Temporal, Self> {
        if let Value::Number(number) = value
            && number.is_infinite()
        {
            return Ok(Temporal::Infinite(*number));
        }
        let table = table_of(value)?;
        Temporal::of_date_parts(data_type, |name| part(table, name))
    }

    fn with_elements(
        &self,
        value: &Value,
        mut element: impl FnMut(usize, &Value) -> Written,
    ) -> Taken<Written, Self> {
        let table = table_of(value)?;
        // A table with holes has its length in `n`, as the tables of `table.pack` have.
        let count = match table.raw_get("n").map_err(Refusal::Failed)? {
            Value::Integer(count) => usize::try_from(count).map_err(|_| Refusal::TooLarge)?,
            _ => table.raw_len(),
        };
        Ok((1..=count).try_for_each(|at| element(count, &table.raw_get(at).map_err(Fault::Failed)?)))
    }

    fn with_fields(
        &self,
        names: &Vec<String>,
        _: &[Field],
        value: &Value,
        mut field: impl FnMut(usize, &Value) -> Written,
    ) -> Taken<Written, Self> {
        let table = table_of(value)?;
        Ok(names
            .iter()
            .enumerate()
            .try_for_each(|(at, name)| field(at, &table.get::<Value>(name).map_err(Fault::Failed)?)))
    }

    fn with_member(
        &self,
        _: &Vec<String>,
        _: &[Field],
        value: &Value,
        member: impl FnOnce(&[u8], &Value) -> Written,
    ) -> Taken<Written, Self> {
        let table = table_of(value)?;
        match table.get("tag").map_err(Refusal::Failed)? {
            Value::String(tag) => Ok(member(&tag.as_bytes(), &table.get("value").map_err(Refusal::Failed)?)),
            _ => Err(Refusal::Other(
                ", which has no tag; a UNION is such as { tag = \"a\", value = 1 }".into(),
            )),
        }
    }

    fn with_entries(
        &self,
        value: &Value,
        mut entry: impl FnMut(usize, &Value, &Value) -> Written,
    ) -> Taken<Written, Self> {
        let pairs = table_of(value)?.pairs().collect::<Result<Vec<(Value, Value)>, Error>>();
        let mut pairs = pairs.map_err(Refusal::Failed)?;
        pairs.sort_by_cached_key(|(key, _)| {
            let text = key.as_string().map(|text| text.as_bytes().to_vec());
            let number = key.as_f64().unwrap_or_default().to_bits() as i64;
            // The order is that of floating-point numbers, and then that of integers with the same
            // floating-point number.
            (text, number ^ (number >> 63 & i64::MAX), key.as_i64())
        });
        Ok(pairs.iter().try_for_each(|(key, value)| entry(pairs.len(), key, value)))
    }
}
