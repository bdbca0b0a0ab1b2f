//! A call of one row, with arguments that a user has written as JSON.

use anyhow::{Result, anyhow, bail, ensure};
use crosslane::batch::{self, BATCH, Frame, Header, LAST, Typed};
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType, Entry, Function, FunctionSpec, Kind};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// What a user wants to be called.
#[derive(Debug, Clone, Deserialize)]
pub struct Asked {
    /// The function's name.
    pub function: String,
    /// Its arguments. Those of parameters with names may be left out at the end.
    pub arguments: Vec<Value>,
}

/// A message that calls a function, but for the exchange's number.
#[derive(Debug)]
pub(crate) struct Call {
    header: Header,
    frame: Frame,
}

impl Call {
    /// The call of one of these functions.
    pub(crate) fn new(functions: &[FunctionSpec], asked: &Asked) -> Result<Self> {
        let mut known = Vec::new();
        for (index, spec) in functions.iter().enumerate() {
            let function = Function::new(index as u32, spec.clone())?;
            if function.name().eq_ignore_ascii_case(&asked.function) {
                return Self::of(&function, &asked.arguments);
            }
            known.push(function.name().to_owned());
        }
        known.sort_unstable();
        known.truncate(20);
        bail!("the server has no function {}; it has {}", asked.function, known.join(", "))
    }

    fn of(function: &Function, arguments: &[Value]) -> Result<Self> {
        let kind = function.spec.kind;
        let name = function.name();
        ensure!(
            kind == Kind::Scalar,
            "{name} is of the kind {}; only functions that make a value of a row can be measured",
            kind.name()
        );
        let (columns, types) = row(function, arguments).map_err(|what| {
            anyhow!("{} cannot be called with these arguments: {what}", function.signature)
        })?;
        let frame = Frame::new(&Typed { types: types.as_ref(), columns: &columns }, 1)?;
        let written = batch::header(frame.bytes())?;
        let function = function.index;
        let header = Header { kind: BATCH, flags: LAST, function, entry: Entry::Call as u32, ..written };
        Ok(Self { header, frame })
    }

    pub(crate) fn size(&self) -> usize {
        self.frame.bytes().len()
    }

    /// Writes the message as this exchange of a lane.
    pub(crate) fn write(&self, exchange: u64, to: &mut Vec<u8>) {
        to.extend_from_slice(bytemuck::bytes_of(&Header { exchange, ..self.header }));
        to.extend_from_slice(&self.frame.bytes()[size_of::<Header>()..]);
    }
}

/// A row of arguments, and what the call says of its types, if its function takes any.
fn row(function: &Function, arguments: &[Value]) -> Result<(Vec<ColumnBuilder>, Option<Arc<str>>), String> {
    let fixed = function.signature.fixed();
    let missing = fixed.get(arguments.len()..).unwrap_or_default();
    let named = &function.spec.named[..fixed.len()];
    if let Some((field, _)) = fixed.iter().zip(named).skip(arguments.len()).find(|(_, named)| !**named) {
        return Err(format!("one for {} is missing", field.name));
    }
    if arguments.len() > fixed.len() && !function.signature.variadic {
        return Err(format!("{} are given, and it takes {}", arguments.len(), fixed.len()));
    }
    // What is left out travels as NULL.
    let values: Vec<Value> = arguments.iter().cloned().chain(missing.iter().map(|_| Value::Null)).collect();
    if function.signature.takes_any() {
        let declared = fixed.iter().map(|field| &field.data_type);
        let declared = declared.chain(function.signature.rest().into_iter().cycle());
        let types = values.iter().zip(declared).map(|(value, declared)| match declared {
            DataType::Any => type_of(value),
            declared => Ok(declared.clone()),
        });
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let concrete = function.for_arguments(types).map_err(|error| error.to_string())?;
        let fields = concrete.signature.parameters.iter().zip(&values);
        let columns = fields.map(|(field, value)| column(&field.data_type, value));
        return Ok((columns.collect::<Result<_, _>>()?, concrete.types));
    }
    let (first, rest) = values.split_at(fixed.len());
    let rest = function.signature.variadic.then(|| Value::Array(rest.to_vec()));
    let fields = function.signature.parameters.iter().zip(first.iter().chain(&rest));
    let columns = fields.map(|(field, value)| column(&field.data_type, value));
    Ok((columns.collect::<Result<_, _>>()?, None))
}

/// The type of a value where any may come.
fn type_of(value: &Value) -> Result<DataType, String> {
    match value {
        Value::Bool(_) => Ok(DataType::Boolean),
        Value::Number(number) if number.is_f64() => Ok(DataType::Double),
        Value::Number(number) if number.is_i64() => Ok(DataType::BigInt),
        Value::Number(_) => Ok(DataType::UBigInt),
        Value::String(_) => Ok(DataType::Varchar),
        Value::Array(elements) if !elements.is_empty() => {
            Ok(DataType::List(Arc::new(type_of(&elements[0])?)))
        }
        _ => Err(format!("the type of {value} is not clear, where any may come")),
    }
}

fn column(data_type: &DataType, value: &Value) -> Result<ColumnBuilder, String> {
    let mut column = ColumnBuilder::new(data_type);
    add(&mut column, data_type, value)?;
    Ok(column)
}

/// Adds a value to a column.
fn add(column: &mut ColumnBuilder, data_type: &DataType, value: &Value) -> Result<(), String> {
    use DataType as T;
    let wrong = || format!("{value} is no {data_type}");
    let full = |error: Overflow| error.to_string();
    let whole = |value: &Value| value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    macro_rules! integer {
        ($type:ty) => {
            column.fixed(whole(value).and_then(|value| <$type>::try_from(value).ok()).ok_or_else(wrong)?)
        };
    }
    match (data_type, value) {
        (_, Value::Null) => column.null(),
        (T::Boolean, Value::Bool(value)) => column.boolean(*value),
        (T::TinyInt, _) => integer!(i8),
        (T::SmallInt, _) => integer!(i16),
        (T::Integer, _) => integer!(i32),
        (T::BigInt, _) => integer!(i64),
        (T::HugeInt, _) => integer!(i128),
        (T::UTinyInt, _) => integer!(u8),
        (T::USmallInt, _) => integer!(u16),
        (T::UInteger, _) => integer!(u32),
        (T::UBigInt, _) => integer!(u64),
        (T::UHugeInt, _) => integer!(u128),
        (T::Float, Value::Number(number)) => column.fixed(number.as_f64().ok_or_else(wrong)? as f32),
        (T::Double, Value::Number(number)) => column.fixed(number.as_f64().ok_or_else(wrong)?),
        (T::Varchar | T::Blob | T::Bit, Value::String(text)) => {
            column.bytes(text.as_bytes()).map_err(full)?
        }
        (T::Json, _) => column.bytes(value.to_string().as_bytes()).map_err(full)?,
        (T::List(element), Value::Array(elements)) => {
            elements.iter().try_for_each(|value| add(&mut column.children[0], element, value))?;
            column.nested().map_err(full)?;
        }
        (T::Array(element, length), Value::Array(elements)) if elements.len() == *length as usize => {
            elements.iter().try_for_each(|value| add(&mut column.children[0], element, value))?;
            column.nested().map_err(full)?;
        }
        (T::Struct(fields), Value::Object(object)) => {
            if let Some(unknown) = object.keys().find(|key| fields.iter().all(|field| field.name != **key)) {
                return Err(format!("{data_type} has no field {unknown}"));
            }
            for (field, child) in fields.iter().zip(&mut column.children) {
                add(child, &field.data_type, object.get(&field.name).unwrap_or(&Value::Null))?;
            }
            column.nested().map_err(full)?;
        }
        (
            T::Boolean
            | T::Float
            | T::Double
            | T::Varchar
            | T::Blob
            | T::Bit
            | T::List(_)
            | T::Array(..)
            | T::Struct(_),
            _,
        ) => {
            return Err(wrong());
        }
        _ => return Err(format!("only NULL can be given for {data_type}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn called(signature: &str, arguments: Value) -> Result<Vec<String>, String> {
        let functions = [FunctionSpec::new(signature.into())];
        let arguments = arguments.as_array().unwrap().clone();
        let call = Call::new(&functions, &Asked { function: "F".into(), arguments });
        let call = call.map_err(|error| error.to_string())?;
        let mut written = Vec::new();
        call.write(7, &mut written);
        assert_eq!(written.len(), call.size());
        let message = Frame::of(&written);
        let header = batch::header(message.bytes()).unwrap();
        assert_eq!((header.kind, header.flags, header.exchange, header.rows), (BATCH, LAST, 7, 1));
        let function = Function::new(0, functions[0].clone()).unwrap();
        let concrete = batch::types(message.bytes()).unwrap();
        let signature =
            concrete.map_or(function.signature.clone(), |types| function.signature.for_types(types).unwrap());
        let types = signature.parameters.iter().map(|field| &field.data_type);
        let columns = batch::columns(message.bytes(), types).unwrap();
        assert!(columns.iter().all(|column| crosslane::values::unfit(column).is_empty()));
        Ok(columns.iter().map(|column| crosslane::display::value(column, 0).to_string()).collect())
    }

    #[test]
    fn json_becomes_a_row() {
        let given = called(
            "f(a BIGINT, b DOUBLE, c VARCHAR, d BOOLEAN, e INTEGER[], g STRUCT(x TINYINT, y VARCHAR)) -> BIGINT",
            json!([-3, 2, "text", true, [1, null], {"x": 5}]),
        );
        assert_eq!(given.unwrap(), ["-3", "2.0", "'text'", "true", "[1, NULL]", "{x = 5, y = NULL}"]);
        assert_eq!(called("f(a UBIGINT) -> BIGINT", json!([u64::MAX])).unwrap(), [u64::MAX.to_string()]);
        assert_eq!(called("f(a DATE) -> BIGINT", json!([null])).unwrap(), ["NULL"]);
        assert_eq!(called("f() -> BIGINT", json!([])).unwrap(), [""; 0]);
    }

    #[test]
    fn any_number_and_any_type_are_called_as_an_engine_calls_them() {
        assert_eq!(
            called("f(a BIGINT, *b VARCHAR) -> BIGINT", json!([1, "x", "y"])).unwrap(),
            ["1", "['x', 'y']"]
        );
        assert_eq!(called("f(a BIGINT, *b VARCHAR) -> BIGINT", json!([1])).unwrap(), ["1", "[]"]);
        assert_eq!(called("f(a ANY, *b ANY) -> BIGINT", json!([1, "x", 2.5])).unwrap(), ["1", "'x'", "2.5"]);
        assert!(called("f(a ANY) -> BIGINT", json!([null])).unwrap_err().contains("is not clear"));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (signature, arguments, what) in [
            ("f(a BIGINT) -> BIGINT", json!(["x"]), "\"x\" is no BIGINT"),
            ("f(a TINYINT) -> BIGINT", json!([300]), "300 is no TINYINT"),
            ("f(a BIGINT) -> BIGINT", json!([1.5]), "1.5 is no BIGINT"),
            ("f(a BIGINT) -> BIGINT", json!([]), "one for a is missing"),
            ("f(a BIGINT) -> BIGINT", json!([1, 2]), "2 are given, and it takes 1"),
            ("f(a DATE) -> BIGINT", json!(["2020-01-01"]), "only NULL can be given for DATE"),
            ("f(a INTEGER[2]) -> BIGINT", json!([[1]]), "[1] is no INTEGER[2]"),
            ("f(a STRUCT(x INTEGER)) -> BIGINT", json!([{"y": 1}]), "has no field y"),
            ("g(a BIGINT) -> BIGINT", json!([1]), "the server has no function F; it has g"),
        ] {
            let error = called(signature, arguments).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
