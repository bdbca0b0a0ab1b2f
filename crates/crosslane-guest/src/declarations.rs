//! The functions that a file declares, and their options.

use crosslane::{Calling, FunctionSpec, Signature};
use crosslane_process::{OWN_SANDBOX, own_sandbox};
use serde_json::{Map, Value, json};
use std::path::Path;

/// A function that a file has declared.
#[derive(Debug)]
pub struct Declared<Callee> {
    /// Its name.
    pub name: String,
    /// The description for the engine.
    pub spec: FunctionSpec,
    /// The function of the language.
    pub callee: Callee,
}

/// The functions of a file that is being loaded.
#[derive(Debug)]
pub struct Declarations<Callee> {
    file: String,
    text: String,
    /// The text that begins a comment.
    comment: &'static str,
    functions: Vec<Declared<Callee>>,
}

impl<Callee> Declarations<Callee> {
    /// No functions yet, of the file with this text. The comment above a function is its
    /// description.
    pub fn new(file: &str, text: &str, comment: &'static str) -> Self {
        Self { file: file.into(), text: text.into(), comment, functions: Vec::new() }
    }

    /// Adds a function that is declared in a line, counted from 1.
    ///
    /// # Errors
    /// The error of the signature or of an option.
    pub fn add(
        &mut self,
        signature: &str,
        options: &Map<String, Value>,
        line: usize,
        callee: Callee,
    ) -> Result<(), String> {
        let (spec, name) = spec(signature, options, &self.file, line as u32, self.description(line))?;
        self.functions.push(Declared { name, spec, callee });
        Ok(())
    }

    /// The functions.
    ///
    /// # Errors
    /// If there are none. `example` shows how to declare one.
    pub fn finish(self, example: &str) -> Result<Vec<Declared<Callee>>, String> {
        if self.functions.is_empty() {
            return Err(format!("{}: declares no function; write {example}", self.file));
        }
        Ok(self.functions)
    }

    /// The comment right above a line.
    fn description(&self, line: usize) -> String {
        let above: Vec<&str> = self.text.lines().take(line.saturating_sub(1)).map(str::trim).collect();
        let lines = above.iter().rev().map_while(|text| text.strip_prefix(self.comment));
        let mut lines: Vec<&str> = lines.map(|text| text.strip_prefix(' ').unwrap_or(text)).collect();
        lines.reverse();
        lines.join("\n")
    }
}

/// The options besides [`OWN_SANDBOX`], and their possible values.
const OPTIONS: [(&str, &str); 16] = [
    ("nulls", "\"skip\" or \"call\""),
    ("deterministic", "true or false"),
    ("vectorized", "true or false"),
    ("concurrency", "1: calls of this language do not wait side by side"),
    ("timeout", "a positive number of seconds"),
    ("memory_limit", "a size in bytes, or such as \"500 MB\" or \"2 GiB\""),
    ("memoize", "a size in bytes, or such as \"500 MB\" or \"2 GiB\""),
    ("rate", "a text such as \"50/s\""),
    ("budget", "a whole number from 1"),
    ("batch", "a whole number from 1"),
    ("workers", "a whole number from 1"),
    ("cache", "the path of a file, or true for one in the user's cache"),
    ("ttl", "a positive number of seconds"),
    ("on_error", "\"fail\" or \"null\""),
    ("retries", "a whole number from 0"),
    ("overload", "true or false"),
];

/// The units of a size, and their bytes.
pub const SIZE_UNITS: [(&str, f64); 8] = [
    ("", 1.0),
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KIB", 1024.0),
    ("MIB", 1_048_576.0),
    ("GIB", 1_073_741_824.0),
];

/// The description of a function for the engine, and its name. An error says what is wrong and what
/// would be right.
fn spec(
    signature: &str,
    options: &Map<String, Value>,
    file: &str,
    line: u32,
    description: String,
) -> Result<(FunctionSpec, String), String> {
    let parsed: Signature = signature.parse().map_err(|error| format!("{error}"))?;
    let at = |what: String| format!("function {}: {what}", parsed.name);
    let mut spec = Map::new();
    let mut nulls = false;
    let of_sandbox = |name: &&String| OWN_SANDBOX.contains(&&name[..]);
    let asked = options.iter().filter(|(name, _)| of_sandbox(name));
    let asked: Map<_, _> = asked.map(|(name, value)| (name.clone(), value.clone())).collect();
    let own = own_sandbox(Value::Object(asked), Path::new(file)).map_err(at)?;
    for (name, value) in options.iter().filter(|(name, _)| !of_sandbox(name)) {
        let Some((_, meaning)) = OPTIONS.iter().find(|(known, _)| known == name) else {
            let names = [&OPTIONS.map(|(name, _)| name)[..], &OWN_SANDBOX].concat().join(", ");
            return Err(at(format!("there is no option {name}; there are {names}")));
        };
        let fits = match (&name[..], value) {
            ("nulls", Value::String(choice)) => {
                nulls = choice == "call";
                nulls || choice == "skip"
            }
            ("memory_limit" | "memoize", Value::String(text)) => match size(text) {
                Some(bytes) => {
                    spec.insert(name.clone(), json!(bytes));
                    continue;
                }
                None => false,
            },
            ("deterministic" | "vectorized" | "overload", Value::Bool(_)) => true,
            ("concurrency", number) => number.as_f64() == Some(1.0),
            ("timeout" | "ttl", Value::Number(_)) => true,
            ("cache", Value::Bool(is_on)) => {
                if *is_on {
                    spec.insert(name.clone(), json!(""));
                }
                continue;
            }
            ("cache", Value::String(path)) => !path.is_empty(),
            (
                "memory_limit" | "memoize" | "retries" | "budget" | "batch" | "workers",
                Value::Number(number),
            ) => number.is_u64(),
            ("rate", Value::String(_)) => true,
            ("on_error", Value::String(choice)) => matches!(&choice[..], "fail" | "null"),
            _ => false,
        };
        if !fits {
            return Err(at(format!("{name} is {meaning}, not {value}")));
        }
        let (name, value) = match &name[..] {
            "nulls" | "concurrency" => continue,
            "vectorized" => {
                let calling = if *value == json!(true) { Calling::Vectorized } else { Calling::Row };
                ("calling", json!(calling))
            }
            name => (name, value.clone()),
        };
        spec.insert(name.into(), value);
    }
    let admits_null = vec![nulls; parsed.parameters.len()];
    spec.extend([
        ("signature".to_owned(), json!(parsed.to_string())),
        ("admits_null".to_owned(), json!(admits_null)),
        ("file".to_owned(), json!(file)),
        ("line".to_owned(), json!(line)),
        ("description".to_owned(), json!(description)),
    ]);
    let mut spec: FunctionSpec =
        serde_json::from_value(Value::Object(spec)).map_err(|error| at(error.to_string()))?;
    spec.own_sandbox = own;
    spec.check().map_err(at)?;
    Ok((spec, parsed.name))
}

/// The bytes of a size as text.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().ok()?;
    let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()))?;
    Some((number * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> Result<FunctionSpec, String> {
        let Value::Object(map) = value else { unreachable!() };
        let (spec, _) = spec("f(x BIGINT, y BIGINT) -> BIGINT", &map, "f.lua", 3, String::new())?;
        Ok(spec)
    }

    #[test]
    fn a_comment_above_is_the_description() {
        let mut functions = Declarations::new("f.lua", "-- no\n\n-- A.\n--  B.\nudf()\n", "--");
        functions.add("f() -> BIGINT", &Map::new(), 5, ()).unwrap();
        assert_eq!(functions.functions[0].spec.description, "A.\n B.");
        assert_eq!(functions.finish("x").unwrap().len(), 1);
        let error = Declarations::<()>::new("f.lua", "", "--").finish("udf(...)").unwrap_err();
        assert_eq!(error, "f.lua: declares no function; write udf(...)");
    }

    #[test]
    fn options_are_what_the_engine_is_told() {
        let spec =
            of(json!({ "nulls": "call", "memory_limit": "1.5 KiB", "memoize": "2MB", "retries": 2, "on_error": "null", "overload": true }))
                .unwrap();
        assert_eq!(spec.admits_null, [true, true]);
        assert_eq!((spec.memory_limit, spec.memoize), (Some(1536), Some(2_000_000)));
        assert_eq!((spec.retries, spec.line), (2, 3));
        assert_eq!((spec.deterministic, spec.calling, spec.overload), (true, Calling::Row, true));
        let spec = of(json!({ "vectorized": true })).unwrap();
        assert_eq!(spec.calling, Calling::Vectorized);
    }

    #[test]
    fn wrong_options_say_what_would_be_right() {
        for (options, what) in [
            (json!({ "timeuot": 1 }), "there is no option timeuot; there are nulls"),
            (json!({ "timeout": "1" }), "timeout is a positive number of seconds, not \"1\""),
            (json!({ "timeout": 0 }), "timeout is a positive number"),
            (json!({ "nulls": "never" }), "nulls is \"skip\" or \"call\", not \"never\""),
            (json!({ "concurrency": 4 }), "concurrency is 1"),
            (json!({ "memory_limit": "1 parsec" }), "memory_limit is a size"),
            (json!({ "memoize": true }), "memoize is a size"),
            (json!({ "rate": 5 }), "rate is a text such as \"50/s\", not 5"),
            (json!({ "budget": 0 }), "budget is 1 to 1000000000000000 calls, not 0"),
            (json!({ "budget": "5" }), "budget is a whole number from 1, not \"5\""),
            (json!({ "rate": "5/s", "vectorized": true }), "rate is for scalar functions"),
            (json!({ "memoize": 5, "deterministic": false }), "memoize is for scalar functions"),
            (json!({ "retries": -1 }), "retries is a whole number"),
            (json!({ "overload": 1 }), "overload is true or false"),
            (json!({ "on_error": "skip" }), "on_error is \"fail\" or \"null\""),
        ] {
            let error = of(options).unwrap_err();
            assert!(error.starts_with(&format!("function f: {what}")), "{error}");
        }
    }
}
