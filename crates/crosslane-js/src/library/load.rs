//! Loads a library: makes a snapshot of a JavaScript file and the modules that it imports.

use crate::isolate::{self, Argument, Host, Isolate, Reason, Snapshot, Thrown};
use crate::library::loader::{Loader, note};
use crosslane::{Calling, DataType, Entry, ErrorPolicy, Failure, FunctionSpec, Kind, Signature};
use crosslane_process::Files;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The memory limit of loading, in bytes.
const MEMORY: usize = 512 << 20;

/// A function that a file declares.
#[derive(Debug, Clone)]
pub struct Function {
    /// The description for the engine.
    pub spec: FunctionSpec,
    /// The parsed signature.
    pub signature: Signature,
    /// The types of the parameters.
    pub parameters: Vec<DataType>,
}

impl Function {
    /// Makes a function of the declaration that the prelude has checked.
    fn new(mut declared: Value) -> Result<Self, Failure> {
        let signature: Result<Signature, _> = declared["signature"].as_str().unwrap_or_default().parse();
        let signature = signature.map_err(|error| wrong("SignatureError", format!("{error}"), &declared))?;
        let Signature { name, parameters, .. } = &signature;
        let kind: Kind = serde_json::from_value(declared["kind"].clone()).map_err(unreadable)?;
        let kind = kind.declared(&signature).map_err(|what| format!("{name}: {what}"));
        let kind = kind.and_then(|kind| check(kind, &declared, &signature).map(|()| kind));
        let kind = kind.map_err(|message| wrong("DeclarationError", message, &declared))?;
        let admits = declared["nulls"] == "call" || kind == Kind::Stream;
        // How many parameters of a table function have no default.
        let required = declared["required"].as_i64().unwrap_or_default();
        let is_named = |place| kind == Kind::Table && place >= required;
        declared["kind"] = json!(kind);
        declared["admits_null"] = json!(vec![admits; parameters.len()]);
        declared["named"] = (0..parameters.len() as i64).map(is_named).collect();
        declared["ends_late_calls"] = json!(true);
        let spec = serde_json::from_value(declared).map_err(unreadable)?;
        let parameters = parameters.iter().map(|field| field.data_type.clone()).collect();
        Ok(Self { spec, parameters, signature })
    }

    /// Returns whether the function takes whole columns.
    pub(crate) fn is_vectorized(&self) -> bool {
        self.spec.calling == Calling::Vectorized
    }

    /// Returns the types of a call's arguments, from the text in the call.
    ///
    /// # Errors
    /// If the text is invalid, or if the function takes no arguments of these types.
    pub fn for_types(&self, types: &str) -> Result<Vec<DataType>, String> {
        let concrete = self.signature.for_types(types)?;
        Ok(concrete.parameters.into_iter().map(|field| field.data_type).collect())
    }

    /// Adds a note to a failure of the function's set-up.
    pub(crate) fn in_set_up(&self, failure: Failure) -> Failure {
        let note = format!("in the set-up of {}, before its first row on this lane", self.signature.name);
        Failure { set_up: true, ..noted(&note, failure) }
    }

    /// Adds a note to a failure of the function's tear-down. The note has the function's file and
    /// line, because the log names no query.
    pub(crate) fn in_tear_down(&self, failure: Failure) -> Failure {
        let FunctionSpec { file, line, .. } = &self.spec;
        let note = format!("in the tear-down of {}, declared at {file}:{line}", self.signature.name);
        noted(&note, failure)
    }

    /// Returns how failed calls are retried, and how their rows end.
    pub(crate) fn error_policy(&self) -> ErrorPolicy {
        ErrorPolicy { retries: self.spec.retries, on_error: self.spec.on_error }
    }

    /// Returns the types of the columns of an entry's batches. `None` if the function has no such
    /// entry. Bytes that pass from isolate to isolate have the type VARCHAR here.
    pub(crate) fn takes(&self, entry: Entry) -> Option<Vec<DataType>> {
        let entry = self.spec.kind.entry(entry, &self.signature)?;
        let of_bytes = entry.leading.iter().map(|field| match field.data_type {
            DataType::Blob => DataType::Varchar,
            ref other => other.clone(),
        });
        Some(of_bytes.chain(entry.arguments.iter().map(|field| field.data_type.clone())).collect())
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
            "stream": self.spec.kind == Kind::Stream,
            "returns": describe(&self.signature.returns)
        })
    }
}

/// Adds a note before the traceback of a failure.
fn noted(note: &str, failure: Failure) -> Failure {
    let traceback = format!("  {note}\n{}", failure.traceback).trim_end().to_owned();
    Failure { traceback, ..failure }
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
    let mut builder = isolate::builder(None, Box::new(loader), MEMORY).map_err(explain)?;
    isolate::load_within(&mut builder, &path.display().to_string(), &source, time).map_err(explain)?;
    let declared = builder.call(c"declarations", &[], &[]).map_err(explain)?.text;
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
        .map(|function| match function.signature.takes_any() {
            false => function.described(function.parameters.iter(), function.signature.variadic),
            // Each call has its own types.
            true => Value::Null,
        })
        .collect();
    let types = Value::from(types).to_string();
    builder.call(c"prepare", &[], &[Argument::Text(&types)]).map_err(explain)?;
    stage(Stage::Loaded);
    let cold = builder.into_snapshot();
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
    let mut declarations: Vec<Value> = serde_json::from_str(declared).map_err(unreadable)?;
    for declaration in &mut declarations {
        let (Some(file), Some(line)) = (declaration["file"].as_str(), declaration["line"].as_u64()) else {
            continue;
        };
        if let Some((_, text)) = files.iter().find(|(path, _)| path == file) {
            let comment = comment_above(&String::from_utf8_lossy(text), line as usize);
            declaration["description"] = comment.into();
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
    let declared: Vec<Value> = serde_json::from_str(declared).map_err(unreadable)?;
    declared.into_iter().map(Function::new).collect()
}

/// Makes the failure of a wrong declaration, with its place.
fn wrong(class: &str, message: String, declared: &Value) -> Failure {
    let file = declared["file"].as_str().unwrap_or_default();
    let traceback = format!("    at {file}:{}", declared["line"]);
    Failure { class: class.into(), message, traceback, ..Failure::default() }
}

/// Checks that the kind of the declaration fits the function's signature.
fn check(kind: Kind, declared: &Value, signature: &Signature) -> Result<(), String> {
    let name = &signature.name;
    let is_set = |option: &str| match &declared[option] {
        Value::Bool(is_set) => *is_set,
        option => !option.is_null(),
    };
    match (kind, signature.table) {
        (Kind::Table, false) => Err(format!(
            "{name}: the signature of a udtf ends with -> TABLE(column TYPE, ...); a function with one result is declared with udf"
        )),
        (Kind::Table, true) if is_set("set_up") => Err(format!(
            "{name}: a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE"
        )),
        (Kind::Aggregate, false) if is_set("vectorized") && signature.parameters.is_empty() => {
            Err(format!("{name}: a vectorized aggregate needs a parameter: its update is given columns"))
        }
        (Kind::Aggregate, true) => Err(format!("{name}: an aggregate has one result, and no TABLE(...)")),
        (Kind::Scalar, true) => {
            Err(format!("{name}: a function that returns TABLE(...) is declared with udtf, not with udf"))
        }
        (Kind::Stream, _) => {
            let mut tables = ["partitions", "projection", "cardinality"].into_iter();
            match tables.find(|option| is_set(option)) {
                Some(option) => Err(format!("{name}: a function of a TABLE has no option {option}")),
                None if declared["nulls"] == "call" => {
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

fn unreadable(error: serde_json::Error) -> Failure {
    let message = format!("declarations that cannot be read: {error}");
    Failure { class: "InternalError".into(), message, ..Failure::default() }
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
