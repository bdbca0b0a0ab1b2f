//! The commands that users call in SQL: to load functions, inspect them, and set options.

use super::answers::{
    definition_row, describe, each_function, events, integer, lanes, loaded, loaded_row, pool, reloaded_row,
    restored_row, statistics,
};
use super::table_function::{Argument, Cell, Command, Parameter};
use crate::database::{Connection, Database, Permissions, Pickled};
use crate::signals::Asker;
use crosslane::{DataType, Error, Function, Signature};
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

/// The columns of commands that load: a row per function.
const LOADED: &str = "function VARCHAR, signature VARCHAR, kind VARCHAR, options VARCHAR, version BIGINT";

/// The columns of commands about definitions: a row per definition.
const DEFINITIONS: &str = "function VARCHAR, definition VARCHAR, error VARCHAR";

/// The flags of the commands that load; see [`Permissions`].
const PERMISSIONS: &[&CStr] = &[c"replace", c"outdate"];

/// The settings of the sandbox of files, which may be given for these files alone.
const SANDBOX: Parameter = Parameter::Options(&[
    c"sandbox",
    c"allow_read",
    c"allow_write",
    c"allow_net",
    c"allow_env",
    c"allow_run",
]);

/// The flag of the commands that load definitions, which say themselves what they replace.
const OUTDATE: &[&CStr] = &[c"outdate"];

static COMMANDS: [Command; 24] = [
    Command {
        name: c"crosslane_load",
        parameters: &[Parameter::Text, SANDBOX],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            load_files(database, &[text(arguments, 0)?.into()], arguments, asker)
        },
    },
    Command {
        name: c"crosslane_load_files",
        parameters: &[Parameter::Texts, SANDBOX],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            let Some(Argument::Texts(paths)) = arguments.first() else { return Err(wrong_argument()) };
            let paths: Vec<_> = paths.iter().map(PathBuf::from).collect();
            load_files(database, &paths, arguments, asker)
        },
    },
    Command {
        name: c"crosslane_reload",
        parameters: &[],
        flags: &[c"watch", c"replace", c"outdate"],
        columns: "library VARCHAR, version BIGINT, error VARCHAR",
        run: |database, arguments, asker| {
            let watch = matches!(arguments.first(), Some(Argument::Flag(true)));
            let reloaded = database.reload(watch, permissions(arguments), asker)?;
            Ok(reloaded.into_iter().map(reloaded_row).collect())
        },
    },
    Command {
        name: c"crosslane_create",
        parameters: &[Parameter::Text],
        flags: OUTDATE,
        columns: LOADED,
        run: |database, arguments, asker| {
            let library = database.create(text(arguments, 0)?, permissions(arguments), asker)?;
            Ok(library.map(|library| loaded(&library)).unwrap_or_default())
        },
    },
    Command {
        name: c"crosslane_restore",
        parameters: &[],
        flags: OUTDATE,
        columns: DEFINITIONS,
        run: |database, arguments, asker| {
            Ok(database.restore(permissions(arguments), asker)?.iter().map(restored_row).collect())
        },
    },
    Command {
        name: c"crosslane_definitions",
        parameters: &[],
        flags: &[],
        columns: DEFINITIONS,
        run: |database, _, _| Ok(database.definitions()?.iter().map(definition_row).collect()),
    },
    Command {
        name: c"crosslane_trust",
        parameters: &[],
        flags: &[],
        columns: DEFINITIONS,
        run: |database, _, _| Ok(database.trust()?.iter().map(definition_row).collect()),
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
            // SAFETY: the descriptor is only copied, at once; the host program keeps its own open
            // until this returns.
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
        parameters: &[Parameter::Text, Parameter::Options(&[c"token"])],
        flags: PERMISSIONS,
        columns: LOADED,
        run: |database, arguments, asker| {
            let Some(Argument::Options(given)) = arguments.get(1) else { return Err(wrong_argument()) };
            let token = given.first().map(|(_, token)| token.clone());
            let library = database.attach(text(arguments, 0)?, token, permissions(arguments), asker)?;
            Ok(loaded(&library))
        },
    },
    Command {
        name: c"crosslane_drop",
        parameters: &[Parameter::Text],
        flags: &[],
        columns: "function VARCHAR, signature VARCHAR",
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
        columns: "function VARCHAR",
        run: |database, _, _| {
            Ok(database.outdated().into_iter().map(|name| vec![Cell::Text(name)]).collect())
        },
    },
    Command {
        name: c"crosslane_renew",
        parameters: &[Parameter::Text],
        flags: &[],
        columns: "function VARCHAR",
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
        columns: "function VARCHAR, signature VARCHAR, kind VARCHAR, options VARCHAR, library VARCHAR, \
                  version BIGINT, file VARCHAR, line BIGINT, language VARCHAR, parameters VARCHAR, \
                  returns VARCHAR, description VARCHAR",
        run: |database, _, _| Ok(each_function(database, describe)),
    },
    Command {
        name: c"crosslane_types",
        parameters: &[],
        flags: &[],
        columns: "name VARCHAR, type VARCHAR",
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
        columns: "function VARCHAR, calls BIGINT, rows BIGINT, by_columns BIGINT, reused BIGINT, errors BIGINT, \
                  retries BIGINT, lanes_lost BIGINT, fanned_out BIGINT, guest_seconds DOUBLE, ns_per_row DOUBLE, \
                  copy_in_us DOUBLE, travel_us DOUBLE, copy_out_us DOUBLE, mb_out DOUBLE",
        run: |database, _, _| Ok(each_function(database, |_, function| statistics(function))),
    },
    Command {
        name: c"crosslane_lanes",
        parameters: &[],
        flags: &[],
        columns: "library VARCHAR, lane BIGINT, pid BIGINT, busy BOOLEAN, calls BIGINT, rows BIGINT, \
                  guest_seconds DOUBLE, waited_seconds DOUBLE",
        run: |database, _, _| {
            Ok(database.catalog.libraries().iter().flat_map(|library| lanes(library)).collect())
        },
    },
    Command {
        name: c"crosslane_pools",
        parameters: &[],
        flags: &[],
        columns: "library VARCHAR, idle BIGINT, busy BIGINT, booted BIGINT, discarded BIGINT, waited BIGINT",
        run: |database, _, _| Ok(database.catalog.libraries().iter().map(|library| pool(library)).collect()),
    },
    Command {
        name: c"crosslane_trace",
        parameters: &[Parameter::Boolean],
        flags: &[],
        columns: "tracing BOOLEAN, events BIGINT, dropped BIGINT",
        run: |database, arguments, _| {
            let trace = &database.trace;
            match arguments.first() {
                Some(Argument::Flag(true)) if !trace.start() => {
                    let what =
                        "this database is traced already; end that trace with CALL crosslane_trace(false)";
                    return Err(Error::Engine(what.into()));
                }
                Some(Argument::Flag(on)) if !on => trace.stop(),
                _ => {}
            }
            let status = trace.status();
            Ok(vec![vec![Cell::Boolean(status.on), integer(status.events as u64), integer(status.dropped)]])
        },
    },
    Command {
        name: c"crosslane_events",
        parameters: &[],
        flags: &[],
        columns: "kind VARCHAR, function VARCHAR, library VARCHAR, lane BIGINT, pid BIGINT, thread BIGINT, \
                  start_us DOUBLE, duration_us DOUBLE, rows BIGINT, detail VARCHAR",
        run: |database, _, _| Ok(events(&database.trace)),
    },
    Command {
        name: c"crosslane_set",
        parameters: &[Parameter::Text, Parameter::Any],
        flags: &[],
        columns: "name VARCHAR, value VARCHAR",
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
        columns: "name VARCHAR, value VARCHAR, description VARCHAR",
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
        columns: "cancelled BOOLEAN",
        run: |database, _, _| {
            database.groups.cancel_all_before(u64::MAX);
            Ok(vec![vec![Cell::Boolean(true)]])
        },
    },
    Command {
        name: c"crosslane_cancel_connection",
        parameters: &[Parameter::Integer],
        flags: &[],
        columns: "cancelled BOOLEAN",
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

fn load_files(
    database: &Arc<Database>,
    paths: &[PathBuf],
    arguments: &[Argument],
    asker: Asker,
) -> Result<Vec<Vec<Cell>>, Error> {
    let Some(Argument::Options(given)) = arguments.get(1) else { return Err(wrong_argument()) };
    let libraries = database.load_files(paths, given, permissions(arguments), asker)?;
    Ok(libraries.iter().flat_map(|library| loaded(library)).collect())
}

fn text(arguments: &[Argument], index: usize) -> Result<&str, Error> {
    match arguments.get(index) {
        Some(Argument::Text(text)) => Ok(text),
        _ => Err(wrong_argument()),
    }
}

/// The permissions of a command that loads. Its last argument is `outdate`, and the one before is
/// `replace`, if the command has that.
fn permissions(arguments: &[Argument]) -> Permissions {
    let mut last = arguments.iter().rev().map(|argument| match argument {
        Argument::Flag(flag) => *flag,
        _ => false,
    });
    let mut next = || last.next().unwrap_or_default();
    Permissions { outdate: next(), replace: next(), ..Permissions::default() }
}

fn wrong_argument() -> Error {
    Error::Engine("DuckDB passed an argument of another type than was declared".into())
}
