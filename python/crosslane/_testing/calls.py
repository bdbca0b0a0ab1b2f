"""Calls of functions for tests: :func:`call`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Unpack

import duckdb

from crosslane._declare.declaration import DeclarationError, Options
from crosslane._runtime.sql import quoted
from crosslane._testing import engines
from crosslane._testing.causes import cause_of
from crosslane._testing.engines import PLACE, Engine, Rows, Signature


def call(
    function: Callable[..., Any] | str | os.PathLike[str],
    rows: Iterable[Any],
    signature: str | None = None,
    *,
    lane: Literal["process", "thread"] = "process",
    **options: Unpack[Options],
) -> Any:
    """Calls a function as SQL does, and returns its results.

    Arguments and results are converted as in DuckDB, and the function runs in a worker. The rules
    for NULL hold, and so do all options, such as ``on_error`` and ``timeout``. The database and the
    workers stay open for the next call; :func:`close` ends them.

    Args:
        function: any callable that :func:`crosslane.register` takes, decorated or not. Or a
            function of a file in any language, such as ``"shop.js:slug"`` (``"shop.js"`` if the
            file has only one).
        rows: the rows of arguments. A row is a tuple of arguments; anything else is the only
            argument of its row.
        signature: the types, if annotations do not tell; a lambda needs one.
        lane: ``"process"`` or ``"thread"``, as for :func:`crosslane.register`. With ``"thread"``
            the function runs in this process, so that it sees what a test has replaced by a mock.
        options: those of :func:`crosslane.udf`. They replace options of a decorated function.

    Returns:
        A list with the result of each row, as the values that DuckDB's ``fetchall`` gives. Of an
        aggregate, the result of one group with all rows. Of a table function, which is called with
        one row of arguments, the list of the rows that it makes, as tuples. Of a stream function,
        whose rows are those of its input, the list of the rows that it makes.

    Raises:
        duckdb.Error: if the function fails, with the message that SQL shows. If the function is in
            Python and raised an exception of a class that this process knows, ``__cause__`` is an
            exception of that class with its message.
        TypeError: if a row has a wrong number of arguments, or an argument does not have its type.
        DeclarationError: if the function is declared in a way that cannot work, cannot be pickled,
            or the file has no such function.
        FileNotFoundError: if there is no such file.
    """
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise TypeError(f"rows is a list with a value or a tuple for each row, not {rows!r}")
    # A NamedTuple is a value, such as one of a STRUCT.
    given = [row if type(row) is tuple else (row,) for row in rows]
    if isinstance(function, (str, os.PathLike)):
        if signature is not None or options or lane != "process":
            raise TypeError(
                "call takes no signature, lane or options for a function of a file: the file declares them"
            )
        engine, name = _of_file(os.fspath(function))
    else:
        engine, name = engines.of_function(function, signature, lane, options), None
    found = engine.signatures(name)
    try:
        return _CALLS.get(found[0].kind, _scalar)(engine, found, given)
    except duckdb.Error as error:
        if found[0].language == "Python":
            error.__cause__ = cause_of(str(error), found[0].name)
        raise


def _of_file(text: str) -> tuple[Engine, str]:
    """The database of a file, and the name of its function."""
    path, name = text, ""
    if not Path(path).is_file():
        path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"call takes a function, or one of a file such as 'shop.js:slug'; there is no file {path or text}"
        )
    engine = engines.of_file(Path(path))
    names = {one.name.lower(): one.name for one in engine.signatures(None)}
    if name.lower() in names or (not name and len(names) == 1):
        return engine, name or next(iter(names.values()))
    wrong = f"has no function {name}" if name else "has several functions"
    raise DeclarationError(
        f"{path} {wrong}; name one of them: {', '.join(f'{path}:{one}' for one in names.values())}"
    )


def _scalar(engine: Engine, signatures: list[Signature], rows: Rows) -> list[Any]:
    """The result of each row."""
    results: dict[int, Any] = {}
    # Rows of one length are one query.
    for count in sorted({len(row) for row in rows}):
        part = {place: row for place, row in enumerate(rows) if len(row) == count}
        fitting = _fitting(signatures, count, next(iter(part)))
        columns = fitting[0].columns(count) or []
        if len(fitting) > 1 or any(re.search(r"\bANY\b", kind) for _, kind in columns):
            # The types of the values say which overload is called, and what ANY stands for.
            query = f"SELECT {_called(fitting[0], ['?'] * count)}"
            found = [_fetch(engine, query, row)[0] for row in part.values()]
        else:
            found = _of_rows(engine, fitting[0], part, f" ORDER BY {PLACE}")
        results.update(zip(part, (result for (result,) in found)))
    return [results[place] for place in range(len(rows))]


def _aggregate(engine: Engine, signatures: list[Signature], rows: Rows) -> Any:
    """The result of one group."""
    counts = {len(row): place for place, row in enumerate(rows)} or {len(signatures[0].parameters): 0}
    for count, place in counts.items():
        (signature,) = _fitting(signatures, count, place)
    if len(counts) > 1:
        raise TypeError(
            f"the rows have {' and '.join(map(str, sorted(counts)))} arguments, and they are one group"
        )
    return _of_rows(engine, signature, dict(enumerate(rows)))[0][0]


def _table(engine: Engine, signatures: list[Signature], rows: Rows) -> Rows:
    """The rows of a table function."""
    if len(rows) != 1:
        raise TypeError(
            f"a table function is called with one row of arguments, such as [(1, 'a')], not with {len(rows)}"
        )
    signature = _fitting(signatures, len(rows[0]), 0)[0]
    with engine.rows(signature, {0: rows[0]}) as (table, columns), engine.con.cursor() as cursor:
        arguments = []
        for index, name in enumerate(columns):
            # Arguments of table functions are constants, and variables count as such.
            cursor.execute(f"SET VARIABLE argument_{index} = (SELECT {quoted(name)} FROM {table})")
            by_name = f"{quoted(name)} := " if name in signature.named else ""
            arguments.append(f"{by_name}getvariable('argument_{index}')")
        return cursor.execute(f"FROM {_called(signature, arguments)}").fetchall()


def _stream(engine: Engine, signatures: list[Signature], rows: Rows) -> Rows:
    """The rows that a stream function makes of its input."""
    (signature,) = signatures
    for place, row in enumerate(rows):
        _fitting(signatures, len(row), place)
    with engine.rows(signature, dict(enumerate(rows))) as (table, _):
        return _fetch(engine, "FROM crosslane_map(?, ?)", (f"FROM {table} ORDER BY {PLACE}", signature.name))


_CALLS: dict[str, Callable[[Engine, list[Signature], Rows], Any]] = {
    "aggregate": _aggregate,
    "table": _table,
    "stream": _stream,
}


def _fitting(signatures: list[Signature], count: int, place: int) -> list[Signature]:
    """The signatures that take this number of arguments."""
    if fitting := [one for one in signatures if one.columns(count) is not None]:
        return fitting
    known = "; or ".join(one.text for one in signatures)
    plural = "" if count == 1 else "s"
    raise TypeError(f"row {place} has {count} argument{plural}; the function is {known}")


def _of_rows(engine: Engine, signature: Signature, rows: dict[int, tuple[Any, ...]], order: str = "") -> Rows:
    """What SQL gives for calls with the columns of rows."""
    with engine.rows(signature, rows) as (table, columns):
        return _fetch(engine, f"SELECT {_called(signature, list(map(quoted, columns)))} FROM {table}{order}")


def _called(signature: Signature, arguments: list[str]) -> str:
    return f"{quoted(signature.name)}({', '.join(arguments)})"


def _fetch(engine: Engine, query: str, parameters: tuple[Any, ...] = ()) -> Rows:
    with engine.con.cursor() as cursor:
        return cursor.execute(query, list(parameters)).fetchall()
