"""DuckDB with Crosslane's functions, from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import duckdb

from crosslane._udf import Declaration, DeclarationError, declare

#: A file of functions, or a function.
Functions = str | PathLike[str] | Callable[..., Any]


def extension_path() -> Path:
    """The DuckDB extension that comes with this package, to ``LOAD`` it from any client."""
    return Path(__file__).with_name("crosslane.duckdb_extension")


def javascript_path() -> Path:
    """The JavaScript host that comes with this package; it does not exist if V8 was missing when it was built."""
    return Path(__file__).with_name("crosslane-js")


def ruby_path() -> Path:
    """The Ruby files that come with this package; they do not exist if Ruby was missing when it was built."""
    return Path(__file__).with_name("ruby")


def connect(
    database: str | PathLike[str] = ":memory:",
    functions: Functions | Iterable[Functions] = (),
    *,
    read_only: bool = False,
    config: dict[str, Any] | None = None,
) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with Crosslane loaded, and with the given files and functions.

    Args:
        database: the database file; by default a database in memory.
        functions: files of functions, functions, or several of both.
        read_only: whether to open the file for reading only.
        config: DuckDB's own settings.

    Raises:
        duckdb.Error: if DuckDB cannot open the file, or a file of functions cannot be loaded.
        DeclarationError: if a function is declared in a way that cannot work.

    """
    config = {"allow_unsigned_extensions": "true", **(config or {})}
    con = duckdb.connect(str(database), read_only=read_only, config=config)
    try:
        _prepare(con)
        if isinstance(functions, (str, PathLike)) or callable(functions):
            functions = [functions]
        for item in functions:
            if isinstance(item, (str, PathLike)):
                load(con, item)
            else:
                register(con, item)
    except BaseException:
        con.close()
        raise
    return con


def load(con: duckdb.DuckDBPyConnection, path: str | PathLike[str]) -> list[str]:
    """Loads a file of functions, or loads it again if it changed; returns the signatures.

    Raises:
        duckdb.Error: if the file cannot be loaded, with the error and its place in the file.
    """
    _prepare(con)
    return [row[1] for row in con.execute("FROM crosslane_load(?)", [str(path)]).fetchall()]


def register(
    con: duckdb.DuckDBPyConnection,
    function: Callable[..., Any],
    signature: str | None = None,
    *,
    lane: str = "process",
    **options: Any,
) -> str:
    """Makes one function callable from SQL, from a notebook or a script; returns its signature.

    The function is pickled by value, with what it refers to in ``__main__`` (closures and lambdas
    too), and runs in worker processes: it cannot change this program's variables. With ``lane="thread"``
    it runs in this very process instead, on threads of its own: it sees the program's variables, open
    files, models and sockets. Such functions share the interpreter's lock, so what waits runs side by side,
    and what computes takes turns. Registering a function of the same name again replaces it.

    Args:
        con: the connection; Crosslane is loaded into it if necessary.
        function: the function, plain or decorated with :func:`crosslane.udf`.
        signature: the types, if annotations do not tell; a lambda needs one.
        lane: ``"process"`` or ``"thread"``.
        options: those of :func:`crosslane.udf`.

    Raises:
        DeclarationError: if its types are missing or cannot work.
        duckdb.Error: if it cannot be loaded in a worker.

    >>> con = connect()
    >>> register(con, lambda x: x + 1, "increment(x BIGINT) -> BIGINT")
    'increment(x BIGINT) -> BIGINT'
    >>> con.execute("SELECT increment(41)").fetchall()
    [(42,)]
    """
    from crosslane._signature import resolve

    if lane not in ("process", "thread"):
        raise DeclarationError(f"lane is 'process' or 'thread', not {lane!r}")
    declaration = getattr(function, "__crosslane__", None)
    if not isinstance(declaration, Declaration) or signature is not None or options:
        if not callable(function):
            raise DeclarationError(f"register takes a function, not {function!r}")
        if signature and "name" not in options:
            options["name"] = signature.split("(")[0].strip().strip('"') or None
        declaration = declare(function, signature=signature, **options)
    declared = resolve(declaration)
    _prepare(con)
    name = f"{getattr(function, '__module__', '') or '__main__'}.{declared.name}"
    if lane == "process":
        import cloudpickle

        query, argument = "FROM crosslane_load_pickle(?, ?)", cloudpickle.dumps(declaration)
        return con.execute(query, [name, argument]).fetchall()[0][1]
    if declaration.memory_limit is not None:
        raise declaration.error("memory_limit is for worker processes, not for threads of this one")
    from crosslane._threads import Host

    engine = Host(declared).engine
    # The engine takes a copy of the socket.
    with engine:
        query = "FROM crosslane_load_threads(?, ?)"
        return con.execute(query, [name, str(engine.fileno())]).fetchall()[0][1]


def cancel(con: duckdb.DuckDBPyConnection) -> None:
    """Ends the query that runs on this connection at once, also inside a function; from another thread."""
    con.interrupt()
    con.cursor().execute("FROM crosslane_cancel()").fetchall()


def _prepare(con: duckdb.DuckDBPyConnection) -> None:
    """Loads the extension, unless the database has it, and lets functions run in this interpreter."""
    known = con.execute(
        "SELECT 1 FROM duckdb_functions() WHERE function_name = 'crosslane_load' LIMIT 1"
    ).fetchall()
    if known:
        return
    path = extension_path()
    if not path.exists():
        raise DeclarationError(f"{path} is missing: the package was not built; run `pip install .` again")
    con.execute(f"LOAD '{str(path).replace(chr(39), chr(39) * 2)}'")
    con.execute("FROM crosslane_set('python', ?)", [sys.executable]).fetchall()
