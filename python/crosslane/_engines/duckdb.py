"""DuckDB with Crosslane's functions, from Python."""

from __future__ import annotations

import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack
from weakref import WeakKeyDictionary

import duckdb

from crosslane import _guest
from crosslane._declare.declaration import Declaration, DeclarationError, Options
from crosslane._declare.library import refuse_while_loading
from crosslane._declare.programs import of_program
from crosslane._declare.signature.declared import Declared
from crosslane._engines import watching
from crosslane._engines.watching import Reloaded
from crosslane._runtime.children import end_with_this_process
from crosslane._runtime.languages import JAVASCRIPT, PACKAGE, RUBY
from crosslane._runtime.settings import text_of

#: What functions come from: a file, or a function itself.
Source = str | PathLike[str] | Callable[..., Any]


def extension_path() -> Path:
    """The DuckDB extension that comes with this package, to ``LOAD`` it from any client."""
    return PACKAGE / "crosslane.duckdb_extension"


def javascript_path() -> Path:
    """The JavaScript host of this package; it is missing if the build had no headers of Node.js."""
    return JAVASCRIPT


def ruby_path() -> Path:
    """The Ruby files of this package; they are missing if the build had no Ruby."""
    return RUBY


class SandboxOptions(TypedDict, total=False):
    """What the functions of a file may do; the settings of the same names say the same of all files."""

    sandbox: bool | Literal["on", "off", "strict"]
    allow_read: Iterable[str | PathLike[str]]
    allow_write: Iterable[str | PathLike[str]]
    allow_net: bool | Iterable[str]
    allow_env: Iterable[str]
    allow_run: Iterable[str | PathLike[str]]


def connect(
    database: str | PathLike[str] = ":memory:",
    functions: Source | Iterable[Source] = (),
    *,
    read_only: bool = False,
    config: dict[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    restore: bool = True,
    watch: bool = False,
) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with Crosslane loaded, and with the given files and functions.

    If the configuration turns off external access or locks the configuration, that is done after
    all is loaded.

    Args:
        database: the database file; by default a database in memory.
        functions: files of functions, functions, or several of both.
        read_only: whether to open the file for reading only.
        config: DuckDB's own settings.
        settings: Crosslane's settings, as ``crosslane_set`` takes them. They are set before any functions
            are loaded. A list means its items with commas between them.
        restore: whether functions are loaded that the database keeps, from CREATE FUNCTION. Those that
            this user does not trust are not loaded; a warning tells which.
        watch: whether files are loaded again when they change, until the connection is closed. Each
            such load is reported on stderr. :func:`reload` says what happens.

    Raises:
        duckdb.Error: if DuckDB cannot open the file, or a file of functions cannot be loaded.
        DeclarationError: if a function is declared in a way that cannot work.
    """
    refuse_while_loading()
    config = {"allow_unsigned_extensions": "true", **(config or {})}
    # With these settings, nothing could be loaded.
    last = [
        (name, config.pop(name))
        for name in ("enable_external_access", "lock_configuration")
        if name in config
    ]
    place = str(database)
    is_kept = place != ":memory:"
    if watch and not is_kept:
        # Another connection can find it by this name.
        place = f":memory:crosslane-{uuid.uuid4().hex}"
    con = duckdb.connect(place, read_only=read_only, config=config)
    try:
        own = duckdb.connect(place, read_only=read_only, config=config) if watch else None
        prepare(con)
        with con.cursor() as cursor:
            for name, value in (settings or {}).items():
                cursor.execute("FROM system.main.crosslane_set(?, ?)", [name, text_of(value)])
        if restore and is_kept:
            _restore(con)
        if isinstance(functions, (str, PathLike)) or callable(functions):
            functions = [functions]
        load_all(con, functions)
        for name, setting in last:
            con.execute(f"SET {name} = '{setting}'")
    except BaseException:
        con.close()
        raise
    if own is not None:
        watching.watch(con, own, watched)
    return con


def _restore(con: duckdb.DuckDBPyConnection) -> None:
    """Loads the functions that the database keeps. Warns of those that stay unknown."""
    failed: dict[str, list[str]] = {}
    for function, _, error in run_command(con, "crosslane_restore", []):
        if error is not None:
            failed.setdefault(error, []).append(function)
    for error, names in failed.items():
        message = f"functions that this database defines were not loaded ({', '.join(names)}): {error}"
        warnings.warn(message, stacklevel=3)


def load_all(con: duckdb.DuckDBPyConnection, functions: Iterable[Source], *, replace: bool = False) -> None:
    """Loads files and registers functions, in their order; ``replace`` as for :func:`load`."""
    for is_file, items in groupby(functions, lambda item: isinstance(item, (str, PathLike))):
        if is_file:
            # All files at once, because most of the time is spent on starting interpreters.
            run_command(con, "crosslane_load_files", [list(map(str, items))], replace=replace)
        else:
            for item in items:
                register(con, item, replace=replace)


def load(
    con: duckdb.DuckDBPyConnection,
    path: str | PathLike[str],
    *,
    replace: bool = False,
    **sandbox: Unpack[SandboxOptions],
) -> list[str]:
    """Loads a file of functions, or loads it again if it changed; returns the signatures.

    Args:
        con: the connection; Crosslane is loaded into it if necessary. Its results and its
            transaction are left alone: a transaction that has run queries already sees the
            functions after its end.
        path: the file.
        replace: whether the functions may take the names of macros, which are dropped, and of
            built-in functions, which change for the whole database.
        sandbox: what the functions of this file may do, where it differs from the settings:
            ``sandbox=True`` or ``"strict"``, ``allow_read=[...]``, ``allow_write=[...]``, ``allow_net=["host:443"]`` or
            ``allow_net=True``, ``allow_env=[...]``, ``allow_run=[...]``.

    Raises:
        duckdb.Error: if the file cannot be loaded, with the error and its place in the file.
    """
    prepare(con)
    allowed = {name: text_of(value) for name, value in sandbox.items()}
    return [row[1] for row in run_command(con, "crosslane_load", [str(path)], replace=replace, **allowed)]


def reload(con: duckdb.DuckDBPyConnection) -> list[Reloaded]:
    """Loads the files again that have changed since they were loaded, or whose modules have: those
    that a file has imported from its own folder.

    Queries that run already finish with the functions that they began with. A file that cannot be
    loaded stays as it was.

    Args:
        con: the connection; the files are those of its database.

    Returns:
        What became of each file that had changed.

    Raises:
        duckdb.Error: if the database may not load files any more.
    """
    prepare(con)
    return [Reloaded(*row) for row in run_command(con, "crosslane_reload", [])]


def watched(con: duckdb.DuckDBPyConnection) -> list[Reloaded]:
    """As :func:`reload`, on a connection that no other code uses. A file that could not be loaded is
    tried again when a file of its folder has changed since."""
    with _one_at_a_time:
        return [Reloaded(*row) for row in _run(con, "crosslane_reload", [], watch=True)]


def register(
    con: duckdb.DuckDBPyConnection,
    function: Callable[..., Any],
    signature: str | None = None,
    *,
    lane: Literal["process", "thread"] = "process",
    replace: bool = False,
    **options: Unpack[Options],
) -> str:
    """Makes one function callable from SQL, from a notebook or a script; returns its signature.

    The function is pickled, and runs in worker processes: it cannot change this program's
    variables. Workers import the modules that they find in the folders where this program finds
    them. Objects of ``__main__`` and of all other modules are pickled by value, also closures and
    lambdas. With ``lane="thread"`` the function runs in this process instead, on threads of its
    own: it sees the program's variables, open files, models and sockets. Such functions share the
    interpreter's lock:
    calls that wait run side by side, and calls that compute take turns.

    It replaces a function of the same name; with ``overload=True`` only a function that takes the
    same types.

    Args:
        con: the connection; Crosslane is loaded into it if necessary.
        function: any callable, such as a function, plain or decorated with :func:`crosslane.udf`, a
            bound method, a class, or a built-in function. Nothing is changed about it. It is a
            table function if it is decorated with :func:`crosslane.udtf` or its signature says so,
            and a class may be an aggregate (:func:`crosslane.udaf`).
        signature: the types, if annotations do not tell; a lambda needs one.
        lane: ``"process"`` or ``"thread"``. All functions with process lanes share their processes.
            Each registration starts the processes anew.
        replace: whether it may take the name of a macro, which is dropped, or of a built-in
            function, which changes for the whole database.
        options: those of :func:`crosslane.udf` or :func:`crosslane.udtf`. They replace options of a
            decorated function.

    Raises:
        DeclarationError: if its types are missing or cannot work, or if something that it refers to
            cannot be pickled.
        duckdb.Error: if it cannot be loaded in a worker.

    >>> con = connect()
    >>> register(con, lambda x: x + 1, "increment(x BIGINT) -> BIGINT")
    'increment(x BIGINT) -> BIGINT'
    >>> con.execute("SELECT increment(41)").fetchall()
    [(42,)]
    """
    if lane not in ("process", "thread"):
        raise DeclarationError(f"lane is 'process' or 'thread', not {lane!r}")
    prepare(con)

    def declare() -> tuple[Declaration, list[Declared]]:
        return of_program(function, signature, options)

    try:
        declaration, declared = declare()
    except DeclarationError:
        # It may name types that were created in the database.
        with con.cursor() as cursor:
            types = dict(cursor.execute("FROM system.main.crosslane_types()").fetchall())
        if not types:
            raise
        declaration, declared = _guest.with_types(types, declare)
    if lane == "process":
        from crosslane._declare.pickles import dump

        arguments = [[one.signature for one in declared], dump(declaration, declared)]
        flags = {"replace": replace, "overload": declaration.overload}
        return run_command(con, "crosslane_load_pickle", arguments, **flags)[0][1]
    if declaration.memory_limit is not None:
        raise declaration.error("memory_limit is for worker processes, not for threads of this one")
    from crosslane._engines.host_lanes import Host

    engine = Host(declared).engine
    # The engine makes a copy of the socket.
    with engine:
        library = f"{getattr(function, '__module__', '') or '__main__'}.{declared[0].name}"
        if declaration.overload:
            # Each overload is a library of its own.
            _, parameters, _, variadic = _guest.parse_signature(declared[0].signature)
            library += f"({', '.join(kind for _, kind in parameters)}{', ...' * variadic})"
        return run_command(con, "crosslane_load_threads", [library, str(engine.fileno())], replace=replace)[
            0
        ][1]


def unregister(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Removes a function from SQL that was registered or loaded from a file, with all its
    overloads.

    Queries that run already finish. The other functions of a file stay; when none is left, its
    processes or threads end. The name can be registered or loaded again with any types; the name of
    a table function only with the same parameters. If the function had replaced a built-in function
    of DuckDB, that function is back when the database is opened again. Until then, calls of the
    name are an error that says so.

    Args:
        con: the connection; the function goes for all connections to the database.
        name: the name in SQL.

    Raises:
        duckdb.Error: if Crosslane has no function of this name; it suggests those with a similar
            one.

    >>> con = connect()
    >>> _ = register(con, lambda x: x + 1, "increment(x BIGINT) -> BIGINT")
    >>> unregister(con, "increment")
    >>> con.execute("FROM duckdb_functions() WHERE function_name = 'increment'").fetchall()
    []
    """
    prepare(con)
    with _one_at_a_time, con.cursor() as cursor:
        cursor.execute("FROM system.main.crosslane_drop(?)", [name]).fetchall()
        _renew(cursor)


#: DuckDB's numbers of connections, which only idle connections can be asked for.
_numbers: WeakKeyDictionary[duckdb.DuckDBPyConnection, int] = WeakKeyDictionary()


def cursor(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Another connection to the same database, as by ``con.cursor()``, for :func:`cancel`."""
    made = con.cursor()
    _know(made)
    return made


def cancel(con: duckdb.DuckDBPyConnection) -> None:
    """Ends the query that runs on this connection at once, also inside a function; from another
    thread.

    Queries of other connections go on.

    Args:
        con: a connection that :func:`connect` or :func:`cursor` gave, or that functions were loaded
            on before it ran any query.

    Raises:
        ValueError: for any other connection: only the connection knows its number, and it is busy.
            Its query is told to stop, and stops when its functions are done with the rows that they
            have.
    """
    con.interrupt()
    number = _numbers.get(con)
    if number is None:
        raise ValueError(
            "crosslane.cancel does not know this connection; make it with crosslane.connect(...) or crosslane.cursor(con), or "
            "ask it for its number before (SELECT current_connection_id()) and run CALL crosslane_cancel_connection(number)"
        )
    with con.cursor() as other:
        other.execute("FROM system.main.crosslane_cancel_connection(?)", [number]).fetchall()


def _know(con: duckdb.DuckDBPyConnection) -> None:
    """Notes the number of a connection, unless it has a pending result."""
    if con not in _numbers and con.description is None:
        ((_numbers[con],),) = con.execute("SELECT system.main.current_connection_id()").fetchall()


def prepare(con: duckdb.DuckDBPyConnection) -> None:
    """Loads the extension unless the database has it, and sets this interpreter for workers."""
    refuse_while_loading()
    end_with_this_process()
    _know(con)
    with con.cursor() as cursor:
        try:
            cursor.execute("FROM system.main.crosslane_settings() LIMIT 1").fetchall()
        except duckdb.CatalogException:
            path = extension_path()
            if not path.exists():
                raise DeclarationError(
                    f"{path} is missing: the package was not built; run `pip install .` again"
                ) from None
            try:
                cursor.execute(f"LOAD '{str(path).replace(chr(39), chr(39) * 2)}'")
                cursor.execute("FROM system.main.crosslane_set('python', ?)", [sys.executable]).fetchall()
            except duckdb.Error as error:
                if "allow_unsigned_extensions" in str(error):
                    raise duckdb.PermissionException(
                        "this connection allows no unsigned extensions, and Crosslane is one: open the database with"
                        " crosslane.connect(...), or with duckdb.connect(...,"
                        ' config={"allow_unsigned_extensions": "true"})'
                    ) from error
                if not _locked(cursor):
                    raise
                raise duckdb.PermissionException(
                    f"{error}\nThis database is locked down. Load Crosslane and the functions first, then lock it:"
                    " crosslane.connect(..., functions, config={...}) does it in this order"
                ) from error


def _locked(cursor: duckdb.DuckDBPyConnection) -> bool:
    query = "SELECT system.main.current_setting('lock_configuration') OR NOT system.main.current_setting('enable_external_access')"
    return bool(cursor.execute(query).fetchall()[0][0])


#: Held while names change, so that one thread does not add a function that another makes DuckDB
#: forget.
_one_at_a_time = threading.Lock()


def run_command(
    con: duckdb.DuckDBPyConnection, command: str, arguments: list[Any], **flags: bool | str
) -> list[tuple[Any, ...]]:
    """Runs a command that loads functions, outside the connection's results and transaction. Returns its
    rows."""
    with _one_at_a_time, con.cursor() as cursor:
        return _run(cursor, command, arguments, **flags)


def _run(
    cursor: duckdb.DuckDBPyConnection, command: str, arguments: list[Any], **flags: bool | str
) -> list[tuple[Any, ...]]:
    marks = "?, " * len(arguments) + "".join(f"{flag} := ?, " for flag in flags)
    query = f"FROM system.main.{command}({marks}outdate := true)"
    rows = cursor.execute(query, [*arguments, *flags.values()]).fetchall()
    if rows:
        _renew(cursor)
    return rows


def _renew(cursor: duckdb.DuckDBPyConnection) -> None:
    """Registers outdated names anew, so that DuckDB knows only the functions that they have now."""
    for (name,) in cursor.execute("FROM system.main.crosslane_outdated()").fetchall():
        _forget(cursor, name)
        cursor.execute("FROM system.main.crosslane_renew(?)", [name]).fetchall()


def _forget(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    """Makes DuckDB forget all functions of a name.

    DuckDB would still call functions of the name that were loaded before with other types, and has
    no command to drop them. But when its Python client removes a function that it has added, all
    functions of that name go.
    """
    cursor.create_function(name, lambda _: True, [_UNUSED], "BOOLEAN")  # type: ignore[arg-type, list-item]
    cursor.remove_function(name)


#: A type that no function has.
_UNUSED = "STRUCT(crosslane_unused BOOLEAN)"
