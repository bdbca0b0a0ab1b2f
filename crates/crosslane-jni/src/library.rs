//! The libraries that this process has loaded, and what Spark needs to know of them.

use crosslane::call::CallGroup;
use crosslane::ddl::{self, Definition, Statement};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{DataType, Error, Field, Function, Library, Settings, TypeNames};
use crosslane_process::{ForkServer, Origin, Program, Source, Zygote, ZygoteOptions, definition, guests};
use serde_json::{Value, json};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How a user of Spark sets something.
const HOW_TO_SET: &str = "spark.crosslane.{name}={value}";

/// A library whose functions run in worker processes.
pub type ProcessLibrary = Library<Zygote>;

/// All calls of this process. Ctrl-C in a terminal ends them.
static GROUPS: Mutex<Vec<Weak<CallGroup>>> = Mutex::new(Vec::new());

/// A new group of calls, which are cancelled together.
pub fn group() -> Arc<CallGroup> {
    let group = Arc::new(CallGroup::default());
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|group| group.strong_count() > 0);
    groups.push(Arc::downgrade(&group));
    group
}

fn cancel_all() {
    let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.iter().filter_map(Weak::upgrade).for_each(|group| group.cancel());
}

/// The function that a statement defines, for Spark. None if the text is another statement.
///
/// # Errors
/// [`Error::Declaration`] if the definition cannot be understood, or cannot be a file.
pub fn definition(text: &str) -> Result<Option<Value>, Error> {
    let statements = ddl::statements(text);
    let [Statement::Create(text)] = statements[..] else { return Ok(None) };
    let wrong = |why: String| Error::Declaration(why);
    let definition = Definition::parse(text).map_err(|error| wrong(error.to_string()))?;
    let name = &definition.signature.name;
    let path = definition::file(&definition).map_err(|why| wrong(format!("function {name}: {why}")))?;
    Ok(Some(json!({
        "name": name,
        "or_replace": definition.or_replace,
        "if_not_exists": definition.if_not_exists,
        "path": path,
    })))
}

/// Loads a file, or functions that a Python program has pickled, under a name. If there are names
/// of modules, one fork server imports them for all libraries with the same interpreter.
///
/// # Errors
/// As [`Zygote::start`]; [`Error::Setting`] for a setting that does not exist, or cannot have this
/// value.
pub fn load(
    name: &str,
    pickles: Vec<Vec<u8>>,
    modules: Vec<String>,
    settings: &[(String, String)],
) -> Result<ProcessLibrary, Error> {
    crosslane_process::report_panics();
    let mut all = guests::settings(HOW_TO_SET);
    settings.iter().try_for_each(|(name, value)| all.set(name, value))?;
    let source = if pickles.is_empty() {
        let path = PathBuf::from(name);
        Source::File { path: path.canonicalize().map_err(|error| Error::Engine(format!("{name}: {error}")))? }
    } else {
        // Spark knows the functions by their indices.
        Source::Pickle { name: name.to_owned(), pickles, by_name: false }
    };
    let all = guests::settings_of(&source, all)?;
    let program = with_hash_seed(guests::program(&source, &all)?);
    let mut workers = pool_options(&all);
    if !modules.is_empty() {
        workers.idle_timeout = workers.idle_timeout.min(QUERY_IDLE);
    }
    let options = ZygoteOptions {
        origin: if modules.is_empty() {
            Origin::Process(program)
        } else {
            Origin::Fork { server: fork_server(program)?, modules }
        },
        source,
        types: TypeNames::default(),
        load_timeout: all.load_timeout,
        stuck: all.stuck(),
        sandbox: all.sandbox(),
        ring_size: all.ring_size,
        largest_batch: all.largest_batch,
        spin: all.spin,
        on_interrupt: Arc::new(|_| cancel_all()),
    };
    let start = move |stop| {
        let (zygote, loaded) = Zygote::start(options, stop)?;
        zygote.open_caches()?;
        Ok((zygote, loaded))
    };
    let (pool, loaded) = Pool::start(workers, start)?;
    Ok(Library { name: name.to_owned(), version: 1, functions: loaded.functions, pool })
}

/// How long idle workers of a query's functions live at most. Few queries run twice. The next
/// workers are forks of a process that has all they need, so they are there in milliseconds.
const QUERY_IDLE: Duration = Duration::from_secs(2);

/// The same with a fixed seed for Python's hashes of texts, unless the user has chosen one. They
/// must agree on all machines.
fn with_hash_seed(mut program: Program) -> Program {
    const SEED: &str = "PYTHONHASHSEED";
    if program.environment.is_empty() && env::var_os(SEED).is_none() {
        program.environment.push((SEED.to_owned(), "0".to_owned()));
    }
    program
}

/// The fork server of a program. It ends with the last library that uses it.
fn fork_server(program: Program) -> Result<Arc<ForkServer>, Error> {
    static SERVERS: Mutex<Vec<(Program, Weak<ForkServer>)>> = Mutex::new(Vec::new());
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    servers.retain(|(_, server)| server.strong_count() > 0);
    let known = servers.iter().find(|(known, _)| *known == program);
    if let Some(server) = known.and_then(|(_, server)| server.upgrade()) {
        return Ok(server);
    }
    let server = ForkServer::new(program.clone())?;
    servers.push((program, Arc::downgrade(&server)));
    Ok(server)
}

fn pool_options(settings: &Settings) -> PoolOptions {
    PoolOptions { warm: settings.warm_lanes.max(1), idle_timeout: settings.idle_timeout }
}

/// Spark's name of a type, as `DataType.json` of Spark writes it.
///
/// # Errors
/// The SQL type, if Spark does not have it.
pub fn spark_type(data_type: &DataType) -> Result<Value, String> {
    use DataType as T;
    let name = match data_type {
        T::Boolean => "boolean",
        T::TinyInt => "byte",
        T::SmallInt => "short",
        T::Integer => "integer",
        T::BigInt => "long",
        T::Float => "float",
        T::Double => "double",
        T::Varchar | T::Json => "string",
        T::Blob => "binary",
        T::Date => "date",
        T::Timestamp => "timestamp_ntz",
        T::TimestampTz => "timestamp",
        T::Interval => "interval",
        T::Decimal { precision, scale } => return Ok(json!(format!("decimal({precision},{scale})"))),
        T::List(element) => {
            return Ok(json!({ "type": "array", "elementType": spark_type(element)?, "containsNull": true }));
        }
        T::Struct(fields) => return spark_struct(fields),
        T::Map(entry) => {
            let mut fields = entry.children();
            let (Some(key), Some(value)) = (fields.next(), fields.next()) else {
                return Err(data_type.to_string());
            };
            let (key, value) = (spark_type(key)?, spark_type(value)?);
            return Ok(
                json!({ "type": "map", "keyType": key, "valueType": value, "valueContainsNull": true }),
            );
        }
        other => return Err(other.to_string()),
    };
    Ok(json!(name))
}

fn spark_struct(fields: &[Field]) -> Result<Value, String> {
    let field = |field: &Field| {
        let data_type = spark_type(&field.data_type)?;
        Ok(json!({ "name": field.name, "type": data_type, "nullable": true, "metadata": {} }))
    };
    let fields = fields.iter().map(field).collect::<Result<Vec<_>, String>>()?;
    Ok(json!({ "type": "struct", "fields": fields }))
}

/// The language of a library's functions.
pub fn language(library: &ProcessLibrary) -> String {
    // Pickled functions are Python's, too. Their library's name has no suffix.
    guests::language_of(Path::new(&library.name)).to_lowercase()
}

/// What Spark needs to know of a function. `unsupported` says why Spark cannot call it.
pub fn described(function: &Function) -> Value {
    let signature = &function.signature;
    let parameters = function.parameters().iter().map(|field| {
        let data_type = spark_type(&field.data_type)?;
        Ok(json!({ "name": field.name, "type": data_type }))
    });
    let types = parameters.collect::<Result<Vec<_>, String>>();
    let types = types.and_then(|parameters| Ok((parameters, spark_type(&signature.returns)?)));
    let mut described = json!({
        "name": function.name(),
        "index": function.index,
        "kind": function.spec.kind,
        "calling": function.spec.calling.name(),
        "iterates": function.spec.iterates,
        "deterministic": function.spec.deterministic,
        "signature": signature.to_string(),
        "named": function.spec.named,
        "file": function.spec.file,
        "line": function.spec.line,
        "description": function.spec.description,
    });
    if signature.variadic || (signature.takes_any() && !signature.stream) {
        described["unsupported"] =
            json!("it takes any number or type of arguments, which only DuckDB passes");
    }
    match types {
        Ok((parameters, returns)) => {
            described["parameters"] = json!(parameters);
            described["returns"] = returns;
        }
        Err(data_type) => described["unsupported"] = json!(format!("Spark has no type {data_type}")),
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::FunctionSpec;

    #[track_caller]
    fn of(signature: &str) -> Value {
        described(&Function::new(0, FunctionSpec::new(signature.into())).unwrap())
    }

    #[test]
    fn types_are_spark_s() {
        let function = of(
            "f(a BIGINT, b DECIMAL(10,2), c VARCHAR[], d STRUCT(x DATE, y MAP(VARCHAR, DOUBLE))) -> TIMESTAMPTZ",
        );
        let types: Vec<_> =
            function["parameters"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
        assert_eq!(*types[0], json!("long"));
        assert_eq!(*types[1], json!("decimal(10,2)"));
        assert_eq!(types[2]["elementType"], json!("string"));
        assert_eq!(types[3]["fields"][1]["type"]["valueType"], json!("double"));
        assert_eq!(function["returns"], json!("timestamp"));
        assert!(function.get("unsupported").is_none());
    }

    #[test]
    fn what_spark_does_not_have_is_named() {
        assert_eq!(of("f(a UBIGINT) -> BIGINT")["unsupported"], json!("Spark has no type UBIGINT"));
        assert_eq!(of("f(a INTEGER) -> UUID[]")["unsupported"], json!("Spark has no type UUID"));
        assert!(of("f(*a INTEGER) -> INTEGER")["unsupported"].as_str().unwrap().contains("any number"));
    }
}
