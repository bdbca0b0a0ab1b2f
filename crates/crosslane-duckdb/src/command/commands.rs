//! The commands: what a user calls in SQL to load, look and set.

use crate::connection::Connection;
use crate::database::{AnyLibrary, Database, Permissions, Pickled};
use crate::table::{Argument, Cell, Command, Parameter};
use crosslane::stats::{Counter, LaneStats};
use crosslane::{Calling, DataType, Error, Function, Kind, OnError, Signature};
use crosslane_process::guests::language_of;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TEXT: DataType = DataType::Varchar;
const COUNT: DataType = DataType::BigInt;
const NUMBER: DataType = DataType::Double;

/// What loading returns, a row per function.
const LOADED: &[(&CStr, DataType)] =
    &[(c"function", TEXT), (c"signature", TEXT), (c"kind", TEXT), (c"options", TEXT), (c"version", COUNT)];

/// The flags of the commands that load; see [`Permissions`].
const PERMISSIONS: &[&CStr] = &[c"replace", c"outdate"];

static COMMANDS: [Command; 17] = [
    Command {
        name: c"crosslane_load",
        parameters: &[Parameter::Text],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            let library =
                database.load_file(Path::new(text(arguments, 0)?), permissions(arguments), asker)?;
            Ok(loaded(&library))
        },
    },
    Command {
        name: c"crosslane_load_files",
        parameters: &[Parameter::Texts],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            let Some(Argument::Texts(paths)) = arguments.first() else { return Err(wrong_argument()) };
            let paths: Vec<_> = paths.iter().map(PathBuf::from).collect();
            let libraries = database.load_files(&paths, permissions(arguments), asker)?;
            Ok(libraries.iter().flat_map(|library| loaded(library)).collect())
        },
    },
    Command {
        name: c"crosslane_load_pickle",
        parameters: &[Parameter::Texts, Parameter::Bytes],
        flags: &[c"overload", c"replace", c"outdate"],
        columns: LOADED,
        run: |database, arguments, asker| {
            let [Argument::Texts(signatures), Argument::Bytes(bytes), Argument::Flag(overload), ..] =
                arguments
            else {
                return Err(wrong_argument());
            };
            let signatures =
                signatures.iter().map(|text| text.parse()).collect::<Result<Vec<Signature>, _>>()?;
            let pickled = Pickled { signatures: signatures.clone(), bytes: bytes.clone() };
            let library = database.load_pickle(pickled, *overload, permissions(arguments), asker)?;
            let rows = library.functions.iter().filter(|function| signatures.contains(&function.signature));
            Ok(rows.map(|function| loaded_row(&library, function)).collect())
        },
    },
    Command {
        name: c"crosslane_load_threads",
        parameters: &[Parameter::Text, Parameter::Text],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            let descriptor = text(arguments, 1)?;
            let number = descriptor.parse().ok().filter(|number| *number >= 0);
            let number = number.ok_or_else(|| Error::Engine(format!("{descriptor:?} is no descriptor")))?;
            // SAFETY: the descriptor is only copied, at once; the host program keeps its own open until this returns.
            let socket = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
            let socket =
                socket.map_err(|error| Error::Engine(format!("descriptor {descriptor}: {error}")))?;
            let (name, socket) = (text(arguments, 0)?.to_owned(), UnixStream::from(socket));
            let library = database.load_threads(name, socket, permissions(arguments), asker)?;
            Ok(loaded(&library))
        },
    },
    Command {
        name: c"crosslane_attach",
        parameters: &[Parameter::Text, Parameter::Option(c"token")],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            let token = match arguments.get(1) {
                Some(Argument::Text(token)) => Some(token.clone()),
                _ => None,
            };
            let library = database.attach(text(arguments, 0)?, token, permissions(arguments), asker)?;
            Ok(loaded(&library))
        },
    },
    Command {
        name: c"crosslane_drop",
        parameters: &[Parameter::Text],
        flags: &[],
        columns: &[(c"function", TEXT), (c"signature", TEXT)],
        run: |database, arguments, _| {
            let dropped = database.drop_function(text(arguments, 0)?)?;
            let texts = |function: &Function| [function.name().to_owned(), function.signature.to_string()];
            Ok(dropped.iter().map(|function| texts(function).map(Cell::Text).into()).collect())
        },
    },
    Command {
        name: c"crosslane_outdated",
        parameters: &[],
        flags: &[],
        columns: &[(c"function", TEXT)],
        run: |database, _, _| {
            Ok(database.outdated().into_iter().map(|name| vec![Cell::Text(name)]).collect())
        },
    },
    Command {
        name: c"crosslane_renew",
        parameters: &[Parameter::Text],
        flags: &[],
        columns: &[(c"function", TEXT)],
        run: |database, arguments, _| {
            let name = text(arguments, 0)?;
            database.renew(name)?;
            Ok(vec![vec![Cell::Text(name.into())]])
        },
    },
    Command {
        name: c"crosslane_functions",
        parameters: &[],
        flags: &[],
        columns: &[
            (c"function", TEXT),
            (c"signature", TEXT),
            (c"kind", TEXT),
            (c"options", TEXT),
            (c"library", TEXT),
            (c"version", COUNT),
            (c"file", TEXT),
            (c"line", COUNT),
            (c"language", TEXT),
            (c"parameters", TEXT),
            (c"returns", TEXT),
            (c"description", TEXT),
        ],
        run: |database, _, _| Ok(each_function(database, describe)),
    },
    Command {
        name: c"crosslane_types",
        parameters: &[],
        flags: &[],
        columns: &[(c"name", TEXT), (c"type", TEXT)],
        run: |database, _, _| {
            let row =
                |(name, of): (&str, &DataType)| vec![Cell::Text(name.into()), Cell::Text(of.to_string())];
            Ok(database.types()?.iter().map(row).collect())
        },
    },
    Command {
        name: c"crosslane_stats",
        parameters: &[],
        flags: &[],
        columns: &[
            (c"function", TEXT),
            (c"calls", COUNT),
            (c"rows", COUNT),
            (c"errors", COUNT),
            (c"retries", COUNT),
            (c"lanes_lost", COUNT),
            (c"fanned_out", COUNT),
            (c"guest_seconds", NUMBER),
            (c"ns_per_row", NUMBER),
            (c"copy_in_us", NUMBER),
            (c"travel_us", NUMBER),
            (c"copy_out_us", NUMBER),
            (c"mb_out", NUMBER),
        ],
        run: |database, _, _| Ok(each_function(database, |_, function| statistics(function))),
    },
    Command {
        name: c"crosslane_lanes",
        parameters: &[],
        flags: &[],
        columns: &[
            (c"library", TEXT),
            (c"lane", COUNT),
            (c"pid", COUNT),
            (c"busy", DataType::Boolean),
            (c"calls", COUNT),
            (c"rows", COUNT),
            (c"guest_seconds", NUMBER),
            (c"waited_seconds", NUMBER),
        ],
        run: |database, _, _| {
            Ok(database.catalog.libraries().iter().flat_map(|library| lanes(library)).collect())
        },
    },
    Command {
        name: c"crosslane_pools",
        parameters: &[],
        flags: &[],
        columns: &[
            (c"library", TEXT),
            (c"idle", COUNT),
            (c"busy", COUNT),
            (c"booted", COUNT),
            (c"discarded", COUNT),
            (c"waited", COUNT),
        ],
        run: |database, _, _| Ok(database.catalog.libraries().iter().map(|library| pool(library)).collect()),
    },
    Command {
        name: c"crosslane_set",
        parameters: &[Parameter::Text, Parameter::Any],
        flags: &[],
        columns: &[(c"name", TEXT), (c"value", TEXT)],
        run: |database, arguments, _| {
            let name = text(arguments, 0)?;
            database.set(name, text(arguments, 1)?)?;
            let value = database.settings().get(name).unwrap_or_default();
            Ok(vec![vec![Cell::Text(name.into()), Cell::Text(value)]])
        },
    },
    Command {
        name: c"crosslane_settings",
        parameters: &[],
        flags: &[],
        columns: &[(c"name", TEXT), (c"value", TEXT), (c"description", TEXT)],
        run: |database, _, _| {
            let settings = database.settings();
            let row = |(name, meaning): (&str, &str)| {
                vec![name.to_owned(), settings.get(name).unwrap_or_default(), meaning.to_owned()]
            };
            Ok(settings.names().map(|pair| row(pair).into_iter().map(Cell::Text).collect()).collect())
        },
    },
    Command {
        name: c"crosslane_cancel",
        parameters: &[],
        flags: &[],
        columns: &[(c"cancelled", DataType::Boolean)],
        run: |database, _, _| {
            database.groups.cancel_all_before(u64::MAX);
            Ok(vec![vec![Cell::Boolean(true)]])
        },
    },
    Command {
        name: c"crosslane_cancel_connection",
        parameters: &[Parameter::Integer],
        flags: &[],
        columns: &[(c"cancelled", DataType::Boolean)],
        run: |database, arguments, _| {
            let Some(Argument::Integer(connection)) = arguments.first() else { return Err(wrong_argument()) };
            let connection = u64::try_from(*connection).unwrap_or(u64::MAX);
            Ok(vec![vec![Cell::Boolean(database.groups.cancel(connection))]])
        },
    },
];

pub(crate) fn register(database: &Arc<Database>, connection: &Connection) -> Result<(), Error> {
    COMMANDS.iter().try_for_each(|command| command.register(database, connection))
}

fn text(arguments: &[Argument], index: usize) -> Result<&str, Error> {
    match arguments.get(index) {
        Some(Argument::Text(text)) => Ok(text),
        _ => Err(wrong_argument()),
    }
}

/// What the last flags of a command that loads say.
fn permissions(arguments: &[Argument]) -> Permissions {
    let flag = |index| {
        matches!(arguments[arguments.len() - PERMISSIONS.len()..].get(index), Some(Argument::Flag(true)))
    };
    Permissions { replace: flag(0), outdate: flag(1) }
}

fn wrong_argument() -> Error {
    Error::Engine("DuckDB passed an argument of another type than was declared".into())
}

fn each_function(
    database: &Arc<Database>,
    row: impl Fn(&AnyLibrary, &Function) -> Vec<Cell>,
) -> Vec<Vec<Cell>> {
    let libraries = database.catalog.libraries();
    let functions =
        libraries.iter().flat_map(|library| library.functions.iter().map(move |it| (library, it)));
    // Others were dropped, or their names taken by another library.
    let current = functions.filter(|(library, function)| database.catalog.is_current(library, function));
    current.map(|(library, function)| row(library, function)).collect()
}

fn integer(value: u64) -> Cell {
    Cell::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn basics(function: &Function) -> Vec<Cell> {
    let name = function.name().to_owned();
    let texts = [name, function.signature.to_string(), kind(function), options(function)];
    texts.into_iter().map(Cell::Text).collect()
}

/// What a function is, and how it is called, as far as it is not called row by row.
fn kind(function: &Function) -> String {
    let calling = function.spec.calling;
    match function.spec.kind {
        Kind::Scalar => calling.name().to_owned(),
        kind if calling == Calling::Row => kind.name().to_owned(),
        kind => format!("{}, {}", kind.name(), calling.name()),
    }
}

fn loaded(library: &AnyLibrary) -> Vec<Vec<Cell>> {
    library.functions.iter().map(|function| loaded_row(library, function)).collect()
}

fn loaded_row(library: &AnyLibrary, function: &Function) -> Vec<Cell> {
    let mut row = basics(function);
    row.push(integer(library.version.into()));
    row
}

fn describe(library: &AnyLibrary, function: &Function) -> Vec<Cell> {
    let description = &function.spec.description;
    let mut row = basics(function);
    row.extend([
        Cell::Text(library.name.clone()),
        integer(library.version.into()),
        Cell::Text(function.spec.file.clone()),
        integer(function.spec.line.into()),
        Cell::Text(language_of(Path::new(&function.spec.file))),
        Cell::Text(function.signature.declared()),
        Cell::Text(function.signature.result()),
        if description.is_empty() { Cell::Null } else { Cell::Text(description.clone()) },
    ]);
    row
}

/// The options that differ from their defaults, as the user wrote them.
fn options(function: &Function) -> String {
    let spec = &function.spec;
    let mut options = Vec::new();
    if function.admits_null() && spec.admits_null.iter().all(|admits| *admits) {
        options.push("nulls=call".to_owned());
    }
    if !spec.deterministic {
        options.push("deterministic=false".to_owned());
    }
    if spec.calling == Calling::Async {
        options.push(format!("concurrency={}", spec.concurrency));
    }
    options.extend(spec.timeout.map(|seconds| format!("timeout={seconds}")));
    options.extend(spec.memory_limit.map(|bytes| format!("memory_limit={bytes}")));
    if spec.on_error == OnError::Null {
        options.push("on_error=null".to_owned());
    }
    if spec.retries > 0 {
        options.push(format!("retries={}", spec.retries));
    }
    if spec.overload {
        options.push("overload=true".to_owned());
    }
    if spec.set_up {
        options.push("set_up=true".to_owned());
    }
    let named = function.signature.parameters.iter().zip(&spec.named).filter(|(_, named)| **named);
    let named: Vec<_> = named.map(|(parameter, _)| parameter.name.as_str()).collect();
    if !named.is_empty() {
        options.push(format!("named={}", named.join(" ")));
    }
    if spec.partitions {
        options.push("partitions=true".to_owned());
    }
    options.extend(spec.cardinality.map(|rows| format!("cardinality={rows}")));
    options.join(", ")
}

fn statistics(function: &Function) -> Vec<Cell> {
    let stats = function.stats.totals();
    let calls = stats.calls.get();
    let mean = |counter: &Counter| match calls {
        0 => Cell::Null,
        _ => Cell::Double(counter.get() as f64 / calls as f64 / 1e3),
    };
    let per_row = match stats.rows.get() {
        0 => Cell::Null,
        rows => Cell::Double(stats.guest.get() as f64 / rows as f64),
    };
    vec![
        Cell::Text(function.name().into()),
        integer(calls),
        integer(stats.rows.get()),
        integer(stats.errors.get()),
        integer(stats.retries.get()),
        integer(stats.deaths.get()),
        integer(stats.fanned_out.get()),
        Cell::Double(stats.guest.get() as f64 / 1e9),
        per_row,
        mean(&stats.copy_in),
        mean(&stats.travel),
        mean(&stats.copy_out),
        Cell::Double(stats.bytes_out.get() as f64 / 1e6),
    ]
}

fn lanes(library: &AnyLibrary) -> Vec<Vec<Cell>> {
    let row = |stats: &Arc<LaneStats>| {
        vec![
            Cell::Text(library.name.clone()),
            integer(stats.id),
            Cell::Integer(stats.process.into()),
            Cell::Boolean(stats.is_busy()),
            integer(stats.calls.get()),
            integer(stats.rows.get()),
            Cell::Double(stats.guest.get() as f64 / 1e9),
            Cell::Double(stats.waited.get() as f64 / 1e9),
        ]
    };
    library.pool.lanes().iter().map(row).collect()
}

fn pool(library: &AnyLibrary) -> Vec<Cell> {
    let stats = library.pool.stats();
    vec![
        Cell::Text(library.name.clone()),
        integer(stats.idle as u64),
        integer(stats.busy as u64),
        integer(stats.booted),
        integer(stats.discarded),
        integer(stats.waited),
    ]
}
