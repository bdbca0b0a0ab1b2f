//! Loads a library: makes a snapshot of a JavaScript file and the modules that it imports.

use crate::isolate::{self, Builder, Host, Isolate, Reason, Snapshot, Thrown};
use crate::library::loader::{Loader, note};
use crosslane::{DataType, Entry, ErrorPolicy, Failure, Kind, OnError, Signature};
use crosslane_process::Files;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The memory limit of loading, in bytes.
const MEMORY: usize = 512 << 20;

/// A function that a file declares.
#[derive(Debug, Clone, Deserialize)]
pub struct Function {
    /// The signature as the user wrote it.
    pub signature: String,
    /// The kind of the function.
    pub kind: Kind,
    /// How many parameters of a table function have no default.
    #[serde(default)]
    pub required: i64,
    /// All options by name, for the engine.
    #[serde(flatten)]
    pub options: serde_json::Map<String, Value>,
    /// `skip` or `call`.
    pub nulls: String,
    /// Whether the function takes whole columns.
    pub vectorized: bool,
    /// Whether each isolate sets up the function before its first row.
    #[serde(default)]
    pub set_up: bool,
    /// Whether a failed row becomes NULL or fails the query.
    pub on_error: OnError,
    /// How often a failed row is called again.
    pub retries: u32,
    /// Seconds.
    pub timeout: Option<f64>,
    /// Bytes.
    pub memory_limit: Option<u64>,
    /// The user's file with the declaration.
    pub file: String,
    /// The line of the declaration, from 1.
    pub line: u32,
    /// The types of the parameters.
    #[serde(skip)]
    pub parameters: Vec<DataType>,
    /// Whether a parameter takes any type. Then each call has its own types.
    #[serde(skip)]
    pub takes_any: bool,
    /// Whether the last parameter is a list of any number of arguments.
    #[serde(skip)]
    pub variadic: bool,
    /// The type of the result.
    #[serde(skip, default = "unknown")]
    pub returns: DataType,
    /// The parsed signature.
    #[serde(skip)]
    parsed: Option<Signature>,
}

impl Function {
    /// Whether only lanes of its own call the function.
    pub(crate) fn has_own_lanes(&self) -> bool {
        self.options.get("workers").is_some_and(|workers| !workers.is_null())
    }

    /// Returns the types of a call's arguments, from the text in the call.
    ///
    /// # Errors
    /// If the text is invalid, or if the function takes no arguments of these types.
    pub fn for_types(&self, types: &str) -> Result<Vec<DataType>, String> {
        let declared: Signature = self.signature.parse().map_err(|error| format!("{error}"))?;
        let concrete = declared.for_types(types)?;
        Ok(concrete.parameters.into_iter().map(|field| field.data_type).collect())
    }

    /// Adds a note to a failure of the function's set-up.
    pub(crate) fn in_set_up(&self, failure: Failure) -> Failure {
        let note = format!("in the set-up of {}, before its first row on this lane", self.name());
        Failure { set_up: true, ..noted(&note, failure) }
    }

    /// Adds a note to a failure of the function's tear-down. The note has the function's file and
    /// line, because the log names no query.
    pub(crate) fn in_tear_down(&self, failure: Failure) -> Failure {
        let Self { file, line, .. } = self;
        noted(&format!("in the tear-down of {}, declared at {file}:{line}", self.name()), failure)
    }

    fn name(&self) -> &str {
        self.parsed.as_ref().map_or(&self.signature, |signature| &signature.name)
    }

    /// Returns how failed calls are retried, and how their rows end.
    pub(crate) fn error_policy(&self) -> ErrorPolicy {
        ErrorPolicy { retries: self.retries, on_error: self.on_error }
    }

    /// Returns the types of the columns of an entry's batches. `None` if the function has no such
    /// entry. Bytes that pass from isolate to isolate have the type VARCHAR here.
    pub(crate) fn takes(&self, entry: Entry) -> Option<Vec<DataType>> {
        let entry = self.kind.entry(entry, self.parsed.as_ref()?)?;
        let of_bytes = entry.leading.iter().map(|field| match field.data_type {
            DataType::Blob => DataType::Varchar,
            ref other => other.clone(),
        });
        Some(of_bytes.chain(entry.arguments.iter().map(|field| field.data_type.clone())).collect())
    }

    /// Returns for each parameter whether it has a default.
    pub(crate) fn named(&self) -> Vec<bool> {
        let count = self.parameters.len();
        (0..count).map(|place| self.kind == Kind::Table && place as i64 >= self.required).collect()
    }

    /// Describes the function's types for the prelude, with these parameters.
    pub(crate) fn described<'a>(
        &self,
        parameters: impl Iterator<Item = &'a DataType>,
        variadic: bool,
    ) -> Value {
        let parameters: Vec<_> = parameters.map(describe).collect();
        json!({
            "parameters": parameters,
            "variadic": variadic,
            "stream": self.kind == Kind::Stream,
            "returns": describe(&self.returns)
        })
    }
}

/// Adds a note before the traceback of a failure.
fn noted(note: &str, failure: Failure) -> Failure {
    let traceback = format!("  {note}\n{}", failure.traceback).trim_end().to_owned();
    Failure { traceback, ..failure }
}

fn unknown() -> DataType {
    DataType::Boolean
}

/// A loaded file.
#[derive(Debug)]
pub struct Library {
    /// The snapshot that the isolates boot from.
    pub snapshot: Arc<Snapshot>,
    /// The functions in the order of their declaration.
    pub functions: Vec<Function>,
    /// The files that were loaded.
    pub files: Files,
    /// How long the load may take, and how long the set-up of a function may take.
    pub time: Duration,
}

impl Library {
    /// Loads a file in this process, within `time`.
    ///
    /// # Errors
    /// The error that the file threw, with its place. Also if the load took too much time or
    /// memory.
    pub fn load(path: &Path, time: Duration, host: impl Host + 'static) -> Result<Self, Failure> {
        let mut run = Files::default();
        let (snapshot, declared) = load(path, time, host, |stage| {
            if let Stage::Cold(_, _, files) = stage {
                run = files.clone();
            }
        })?;
        Self::new(snapshot, &declared, run, time)
    }

    /// Makes a library of the result of [`load`].
    ///
    /// # Errors
    /// If a function's signature is invalid.
    pub fn new(snapshot: Snapshot, declared: &str, files: Files, time: Duration) -> Result<Self, Failure> {
        Ok(Self { snapshot: Arc::new(snapshot), functions: functions(declared)?, files, time })
    }
}

/// A stage of the load of a file.
#[derive(Debug)]
pub enum Stage<'a> {
    /// The file has run.
    Loaded,
    /// The snapshot that is not warmed up, the declarations as JSON, and the files.
    Cold(&'a Snapshot, &'a str, &'a Files),
}

/// Loads a file. Returns a snapshot that is warmed up, and the declarations as JSON. V8 may end the
/// process between the stages: V8 may be unable to make the snapshot, and the warm-up calls
/// functions with samples.
///
/// # Errors
/// The errors of [`Library::load`].
pub fn load(
    path: &Path,
    time: Duration,
    host: impl Host + 'static,
    mut stage: impl FnMut(Stage<'_>),
) -> Result<(Snapshot, String), Failure> {
    let explain = |thrown| {
        let mut failure = explain(thrown, time);
        // A thrown value that is not an `Error` has no stack.
        if failure.traceback.is_empty() {
            failure.traceback = format!("    at {}", path.display());
        }
        failure
    };
    let text = read(path)?;
    let loader = Loader::new(host, path);
    let files = Arc::clone(&loader.files);
    note(&files, &path.display().to_string(), &text);
    let source = module(&loader, path, text)?;
    let mut builder = Builder::new(Box::new(loader), MEMORY).map_err(explain)?;
    builder.load(&path.display().to_string(), &source, time).map_err(explain)?;
    let declared = builder.declarations().map_err(explain)?;
    let declared = described(&declared, &files.lock().unwrap_or_else(PoisonError::into_inner))?;
    let functions = functions(&declared)?;
    if functions.is_empty() {
        return Err(Failure {
            class: "DeclarationError".into(),
            message: format!(
                "{}: declares no function; write udf(\"double(x BIGINT) -> BIGINT\", (x) => x * 2)",
                path.display()
            ),
            ..Failure::default()
        });
    }
    let types: Vec<Value> = functions
        .iter()
        .map(|function| match function.takes_any {
            false => function.described(function.parameters.iter(), function.variadic),
            // Each call has its own types.
            true => Value::Null,
        })
        .collect();
    builder.prepare(&Value::from(types).to_string()).map_err(explain)?;
    stage(Stage::Loaded);
    let cold = builder.snapshot();
    let files = {
        let files = files.lock().unwrap_or_else(PoisonError::into_inner);
        Files::of(files.iter().map(|(path, source)| (path.as_bytes(), &source[..])))
    };
    stage(Stage::Cold(&cold, &declared, &files));
    let warm = isolate::warmed(&cold, functions.len()).map_err(explain)?;
    Ok((warm, declared))
}

/// Loads a file into an isolate without a snapshot, as other programs do. Benchmarks use it for
/// comparison.
///
/// # Errors
/// The errors of [`Library::load`].
pub fn from_source(path: &Path, time: Duration, host: impl Host + 'static) -> Result<Isolate, Failure> {
    let loader = Loader::new(host, path);
    let source = module(&loader, path, read(path)?)?;
    let explain = |thrown| explain(thrown, time);
    let mut isolate = Isolate::boot(None, Box::new(loader), MEMORY, MEMORY).map_err(explain)?;
    isolate.load(&path.display().to_string(), &source).map_err(explain)?;
    Ok(isolate)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure {
        class: "Error".into(),
        message: format!("{}: {error}", path.display()),
        ..Failure::default()
    })
}

/// Makes a module of a file with this text.
fn module<H>(loader: &Loader<H>, path: &Path, text: Vec<u8>) -> Result<Vec<u8>, Failure> {
    loader.module(path, text).map_err(|unreadable| {
        let place = unreadable.place.map(|(line, column)| format!(":{line}:{column}"));
        Failure {
            class: "SyntaxError".into(),
            message: unreadable.message,
            traceback: format!("    at {}{}", path.display(), place.unwrap_or_default()),
            ..Failure::default()
        }
    })
}

/// Adds the comment above each declaration to the declaration.
fn described(declared: &str, files: &[(String, Vec<u8>)]) -> Result<String, Failure> {
    let unreadable = |error| internal(&format!("declarations that cannot be read ({error}): {declared}"));
    let mut declarations: Vec<serde_json::Map<String, Value>> =
        serde_json::from_str(declared).map_err(unreadable)?;
    for declaration in &mut declarations {
        let (Some(file), Some(line)) = (declaration["file"].as_str(), declaration["line"].as_u64()) else {
            continue;
        };
        if let Some((_, text)) = files.iter().find(|(path, _)| path == file) {
            let comment = comment_above(&String::from_utf8_lossy(text), line as usize);
            declaration.insert("description".into(), comment.into());
        }
    }
    Ok(json!(declarations).to_string())
}

/// Returns the comment that ends right above a line: `// ...`, or `/** ... */`.
fn comment_above(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().take(line.saturating_sub(1)).map(str::trim).collect();
    let count = match lines.last() {
        Some(last) if last.ends_with("*/") => {
            lines.iter().rev().position(|line| line.starts_with("/*")).map_or(0, |at| at + 1)
        }
        _ => lines.iter().rev().take_while(|line| line.starts_with("//")).count(),
    };
    let bare = |line: &&str| {
        let line = line.trim_end_matches("*/").trim_start_matches(['/', '*']);
        line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
    };
    let comment: Vec<_> = lines[lines.len() - count..].iter().map(bare).collect();
    comment.join("\n").trim().to_owned()
}

fn functions(declared: &str) -> Result<Vec<Function>, Failure> {
    let mut functions: Vec<Function> = serde_json::from_str(declared)
        .map_err(|error| internal(&format!("declarations that cannot be read ({error}): {declared}")))?;
    for function in &mut functions {
        let signature: Signature = function.signature.parse().map_err(|error| Failure {
            class: "SignatureError".into(),
            message: format!("{error}"),
            traceback: format!("    at {}:{}", function.file, function.line),
            ..Failure::default()
        })?;
        let kind = function.kind.declared(&signature).map_err(|what| format!("{}: {what}", signature.name));
        kind.and_then(|kind| {
            function.kind = kind;
            check(function, &signature)
        })
        .map_err(|message| Failure {
            class: "DeclarationError".into(),
            message,
            traceback: format!("    at {}:{}", function.file, function.line),
            ..Failure::default()
        })?;
        function.parsed = Some(signature.clone());
        function.takes_any = signature.takes_any();
        function.variadic = signature.variadic;
        function.parameters = signature.parameters.into_iter().map(|field| field.data_type).collect();
        function.returns = signature.returns;
    }
    Ok(functions)
}

/// Checks that the kind of the declaration fits the function's signature.
fn check(function: &Function, signature: &Signature) -> Result<(), String> {
    let Signature { name, .. } = signature;
    match (function.kind, signature.table) {
        (Kind::Table, false) => Err(format!(
            "{name}: the signature of a udtf ends with -> TABLE(column TYPE, ...); a function with one result is declared with udf"
        )),
        (Kind::Table, true) if function.set_up => Err(format!(
            "{name}: a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE"
        )),
        (Kind::Aggregate, false) if function.vectorized && signature.parameters.is_empty() => {
            Err(format!("{name}: a vectorized aggregate needs a parameter: its update is given columns"))
        }
        (Kind::Aggregate, true) => Err(format!("{name}: an aggregate has one result, and no TABLE(...)")),
        (Kind::Scalar, true) => {
            Err(format!("{name}: a function that returns TABLE(...) is declared with udtf, not with udf"))
        }
        (Kind::Stream, _) => {
            let is_set = |option: &str| match function.options.get(option) {
                Some(Value::Bool(is_set)) => *is_set,
                option => option.is_some_and(|option| !option.is_null()),
            };
            let mut tables = ["partitions", "projection", "cardinality"].into_iter();
            match tables.find(|option| is_set(option)) {
                Some(option) => Err(format!("{name}: a function of a TABLE has no option {option}")),
                None if function.nulls == "call" => {
                    Err(format!("{name}: a function of a TABLE has no option nulls: its columns may be NULL"))
                }
                None => Ok(()),
            }
        }
        (Kind::Table | Kind::Aggregate, _) if signature.variadic || signature.takes_any() => {
            Err(format!("{name}: only a udf takes any number or type of arguments"))
        }
        _ => Ok(()),
    }
}

fn internal(message: &str) -> Failure {
    Failure { class: "InternalError".into(), message: message.into(), ..Failure::default() }
}

fn explain(thrown: Thrown, time: Duration) -> Failure {
    let (class, message, traceback) = match thrown {
        Thrown::Exception(failure) => return failure,
        Thrown::Ended(Reason::Memory, stack) => {
            let message = format!("the file used more than {} MB while it was loaded", MEMORY >> 20);
            ("RangeError", message, stack)
        }
        Thrown::Ended(reason @ (Reason::NoMemory | Reason::NoHeap | Reason::Stuck), stack) => {
            ("RangeError", reason.to_string(), stack)
        }
        Thrown::Ended(_, stack) => {
            let message = format!(
                "the file was not loaded within {} s; the setting load_timeout changes this limit",
                time.as_secs_f64()
            );
            ("TimeoutError", message, stack)
        }
    };
    Failure { class: class.into(), message, traceback, ..Failure::default() }
}

/// Describes a type for the prelude.
fn describe(data_type: &DataType) -> Value {
    let name = data_type.to_string();
    let children = || data_type.children().map(describe);
    let kind = match data_type {
        DataType::Decimal { precision, scale } => {
            return json!({ "kind": "DECIMAL", "name": name, "precision": precision, "scale": scale });
        }
        DataType::Enum(values) => {
            let width = crosslane::code_width(values.len());
            return json!({ "kind": "ENUM", "name": name, "values": &values[..], "width": width });
        }
        DataType::Array(_, length) => {
            return json!({ "kind": "ARRAY", "name": name, "length": length, "child": children().next() });
        }
        DataType::Struct(fields) | DataType::Union(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .zip(children())
                .map(|(field, data_type)| json!({ "name": field.name, "type": data_type }))
                .collect();
            let kind = if matches!(data_type, DataType::Struct(_)) { "STRUCT" } else { "UNION" };
            return json!({ "kind": kind, "name": name, "fields": fields });
        }
        DataType::List(_) => "LIST",
        DataType::Map(_) => "MAP",
        _ => &name,
    };
    json!({ "kind": kind, "name": name, "child": children().next() })
}
