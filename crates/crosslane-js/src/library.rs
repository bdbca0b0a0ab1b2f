//! A library: a JavaScript file and the modules that it imports, loaded into a snapshot.

use crate::isolate::{Host, Isolate, Reason, Thrown};
use crate::snapshot::{self, Builder, Snapshot};
use crosslane::{DataType, Failure, Signature};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What loading may use, in bytes.
const MEMORY: usize = 512 << 20;
/// The module that gives `udf` to editors and type checkers, which do not know globals.
const OURS: &str = "crosslane";
const OURS_SOURCE: &[u8] = b"export const { udf, Timestamp } = globalThis; export default udf;";

/// A function that a file declared.
#[derive(Debug, Clone, Deserialize)]
pub struct Function {
    /// As it was written.
    pub signature: String,
    /// What the engine is told: all options by name.
    #[serde(flatten)]
    pub options: serde_json::Map<String, Value>,
    /// `skip` or `call`.
    pub nulls: String,
    /// Whether it takes whole columns.
    pub vectorized: bool,
    /// `fail` or `null`.
    pub on_error: String,
    /// How often a failed row is called again.
    pub retries: u32,
    /// Seconds.
    pub timeout: Option<f64>,
    /// Bytes.
    pub memory_limit: Option<u64>,
    /// The user's file.
    pub file: String,
    /// The line of the declaration, from 1.
    pub line: u32,
    /// The types of the parameters.
    #[serde(skip)]
    pub parameters: Vec<DataType>,
    /// The type of the result.
    #[serde(skip, default = "unknown")]
    pub returns: DataType,
}

fn unknown() -> DataType {
    DataType::Boolean
}

/// A loaded file.
#[derive(Debug)]
pub struct Library {
    /// What its isolates boot from.
    pub snapshot: Arc<Snapshot>,
    /// The functions in the order of their declaration.
    pub functions: Vec<Function>,
}

impl Library {
    /// Loads a file in this process, within `time`.
    ///
    /// # Errors
    /// What the file threw, with its place; or that it took too long or too much memory.
    pub fn load(path: &Path, time: Duration, host: impl Host + 'static) -> Result<Self, Failure> {
        let (snapshot, declared) = load(path, time, host, |_| {})?;
        Self::new(snapshot, &declared)
    }

    /// A library of what [`load`] gave.
    ///
    /// # Errors
    /// A function whose signature cannot be read.
    pub fn new(snapshot: Snapshot, declared: &str) -> Result<Self, Failure> {
        Ok(Self { snapshot: Arc::new(snapshot), functions: functions(declared)? })
    }
}

/// How far the loading of a file has come.
#[derive(Debug)]
pub enum Stage<'a> {
    /// The file has run.
    Loaded,
    /// There is a snapshot that is not warmed up, and what it declares, as JSON.
    Cold(&'a Snapshot, &'a str),
}

/// Loads a file, and gives a snapshot that is warmed up, and what it declares as JSON. Between the stages V8 may end the
/// process: what the file made may not fit into a snapshot, and warming up calls functions with samples.
///
/// # Errors
/// As [`Library::load`].
pub fn load(
    path: &Path,
    time: Duration,
    host: impl Host + 'static,
    mut stage: impl FnMut(Stage<'_>),
) -> Result<(Snapshot, String), Failure> {
    let explain = |thrown| {
        let mut failure = explain(thrown, time);
        // A thrown value that is no error knows no place.
        if failure.traceback.is_empty() {
            failure.traceback = format!("    at {}", path.display());
        }
        failure
    };
    let source = fs::read(path).map_err(|error| Failure {
        class: "Error".into(),
        message: format!("{}: {error}", path.display()),
        ..Failure::default()
    })?;
    let mut builder = Builder::new(Box::new(Loader { host }), MEMORY).map_err(explain)?;
    builder.load(&path.display().to_string(), &source, time).map_err(explain)?;
    let declared = builder.declarations().map_err(explain)?;
    let functions = functions(&declared)?;
    let types: Vec<Value> = functions
        .iter()
        .map(|function| {
            let parameters: Vec<_> = function.parameters.iter().map(describe).collect();
            json!({ "parameters": parameters, "returns": describe(&function.returns) })
        })
        .collect();
    builder.prepare(&Value::from(types).to_string()).map_err(explain)?;
    stage(Stage::Loaded);
    let cold = builder.snapshot();
    stage(Stage::Cold(&cold, &declared));
    let warm = snapshot::warmed(&cold, functions.len()).map_err(explain)?;
    Ok((warm, declared))
}

/// Loads a file into an isolate of its own, without a snapshot: what others do for each isolate, to compare with.
///
/// # Errors
/// As [`Library::load`].
pub fn from_source(path: &Path, time: Duration, host: impl Host + 'static) -> Result<Isolate, Failure> {
    let source = fs::read(path).map_err(|error| internal(&error.to_string()))?;
    let explain = |thrown| explain(thrown, time);
    let mut isolate = Isolate::start(None, Box::new(Loader { host }), MEMORY, MEMORY).map_err(explain)?;
    isolate.load(&path.display().to_string(), &source).map_err(explain)?;
    Ok(isolate)
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
        function.parameters = signature.parameters.into_iter().map(|field| field.data_type).collect();
        function.returns = signature.returns;
    }
    Ok(functions)
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

/// A type as the prelude wants it.
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
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .zip(children())
                .map(|(field, data_type)| json!({ "name": field.name, "type": data_type }))
                .collect();
            return json!({ "kind": "STRUCT", "name": name, "fields": fields });
        }
        DataType::List(_) => "LIST",
        DataType::Map(_) => "MAP",
        _ => &name,
    };
    json!({ "kind": kind, "name": name, "child": children().next() })
}

/// Reads the modules.
struct Loader<H> {
    host: H,
}

impl<H: Host> Host for Loader<H> {
    fn print(&mut self, error: bool, text: &str) {
        self.host.print(error, text);
    }

    fn fatal(&mut self, what: &str) {
        self.host.fatal(what);
    }

    fn resolve(&mut self, specifier: &str, referrer: &str) -> Result<(String, Vec<u8>), String> {
        if specifier == OURS {
            return Ok((format!("{OURS}:module"), OURS_SOURCE.to_vec()));
        }
        let relative = ["./", "../", "/"].iter().any(|start| specifier.starts_with(start));
        if !relative {
            return Err(match specifier.split_once(':') {
                Some(("node", _)) => {
                    format!("cannot import \"{specifier}\": functions have no files, sockets or processes")
                }
                _ => format!(
                    "cannot import \"{specifier}\": only paths such as \"./{specifier}.js\" are imported. Bundle \
                     the package into one file (npx esbuild {specifier} --bundle --format=esm \
                     --outfile={specifier}.mjs) and import that"
                ),
            });
        }
        let path = Path::new(referrer).parent().unwrap_or(Path::new("/")).join(specifier);
        let missing = |error: std::io::Error| {
            let other = ["js", "mjs", "json"].map(|extension| {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{extension}"));
                PathBuf::from(name)
            });
            let hint = other.iter().find(|path| path.is_file());
            let hint = hint
                .and_then(|path| path.extension())
                .map(|extension| format!("; did you mean \"{specifier}.{}\"?", extension.to_string_lossy()));
            format!("cannot import \"{specifier}\": {error}{}", hint.unwrap_or_default())
        };
        let path = path.canonicalize().map_err(missing)?;
        let source = fs::read(&path).map_err(missing)?;
        let source = if path.extension().is_some_and(|extension| extension == "json") {
            let value: Value = serde_json::from_slice(&source)
                .map_err(|error| format!("cannot import \"{specifier}\": {error}"))?;
            format!("export default {value};").into_bytes()
        } else {
            source
        };
        Ok((path.display().to_string(), source))
    }
}
