"""The databases of :func:`crosslane.testing.call`, which stay open between calls.

Each function has a database of its own, and so has each file. So functions of one name do not meet,
and they may have names of DuckDB's own functions.
"""

from __future__ import annotations

import atexit
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from crosslane import _guest
from crosslane._declare.pickles import dump
from crosslane._declare.programs import of_program
from crosslane._engines.duckdb import connect, load, register
from crosslane._runtime.sql import quoted

#: How many databases stay open. Each has one or two processes.
_MOST = 8
#: The beginning of the names of the functions that hand the rows of a call over to SQL.
ROWS = "crosslane_rows"
#: The column with a row's place among the rows of its call.
PLACE = "crosslane_row"
#: The error of an argument that does not have its type: what is wrong, the column, and the row.
_UNFIT = re.compile(
    rf"(?:Invalid Input Error: )+{ROWS}_\d+: \w+: (?:returned )?(.*)\n  in column (.*)\n  in row (\d+)",
    re.DOTALL,
)

#: Rows of arguments, or of a result.
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Signature:
    """A signature of a function in SQL."""

    name: str
    kind: str
    #: The language of the function.
    language: str
    text: str
    #: Names and types. Those of a stream function are the columns of its table.
    parameters: list[tuple[str, str]]
    #: The parameters that SQL passes by name.
    named: frozenset[str]
    variadic: bool

    @classmethod
    def of(cls, name: str, kind: str, language: str, text: str, options: str) -> Signature:
        """A signature by its columns of ``crosslane_functions()``."""
        if kind == "stream":
            parameters, variadic = _guest.stream_columns(text), False
        else:
            _, parameters, _, variadic = _guest.parse_signature(text)
        named = re.search(r"named=([^,]*)", options)
        by_name = frozenset(named[1].split() if named else ())
        return cls(name, kind, language, text, parameters, by_name, variadic)

    def columns(self, count: int) -> list[tuple[str, str]] | None:
        """Names and types of this number of arguments; None if it does not take so many."""
        further = count - len(self.parameters)
        if self.variadic and further >= -1:
            name, kind = self.parameters[-1]
            return [*self.parameters[:-1], *((f"{name} {rest + 1}", kind) for rest in range(further + 1))]
        if further > 0 or not {name for name, _ in self.parameters[count:]} <= self.named:
            return None
        return self.parameters[:count]


class Engine:
    """A database in memory with one function, or with the functions of a file."""

    def __init__(self, functions: str | None = None) -> None:
        """Loads a file, if one is given."""
        self.con = connect(config={"threads": 1})
        self._calls = itertools.count()
        #: The rows of calls in progress.
        self._rows: dict[int, Rows] = {}
        #: The functions that hand over rows, by the columns of the rows.
        self._tables: dict[tuple[tuple[str, str], ...], str] = {}
        self._lock = threading.Lock()
        try:
            self.con.execute("FROM crosslane_set('warm_lanes', 1)").fetchall()
            if functions is not None:
                load(self.con, functions, replace=True)
        except BaseException:
            self.con.close()
            raise

    def signatures(self, name: str | None) -> list[Signature]:
        """The signatures of a function; those of all functions without a name."""
        with self.con.cursor() as cursor:
            listed = cursor.execute(
                "SELECT function, kind, language, signature, options FROM crosslane_functions() "
                "WHERE NOT starts_with(function, ?) AND lower(function) = lower(coalesce(?, function))",
                [ROWS, name],
            ).fetchall()
        return [Signature.of(*one) for one in listed]

    @contextmanager
    def rows(self, signature: Signature, rows: dict[int, tuple[Any, ...]]) -> Iterator[tuple[str, list[str]]]:
        """What SQL reads the rows of a call from, and its columns. It also has the column :data:`PLACE`.

        Crosslane converts the values like those that a table function yields.

        Args:
            signature: a signature that takes as many arguments as the rows have.
            rows: rows of one length, by their places among all rows of the call.

        Raises:
            TypeError: from the query that reads the rows, if an argument does not have its type.
        """
        count = len(next(iter(rows.values()), signature.parameters))
        columns = signature.columns(count) or []
        key = tuple(columns)
        with self._lock:
            if key not in self._tables:
                name = f"{ROWS}_{len(self._tables)}"
                typed = "".join(f", {quoted(column)} {kind}" for column, kind in columns)
                # Its thread may still have it when the program ends, and must not have the connection then.
                given = self._rows
                register(
                    self.con,
                    lambda number: given[number],
                    f"{name}(number BIGINT) -> TABLE({PLACE} BIGINT{typed})",
                    lane="thread",
                )
                self._tables[key] = name
            number = next(self._calls)
        self._rows[number] = [(place, *row) for place, row in rows.items()]
        try:
            yield f"{self._tables[key]}({number})", [name for name, _ in columns]
        except duckdb.Error as error:
            if unfit := _UNFIT.match(str(error)):
                what, column, row = unfit.groups()
                place = list(rows)[int(row) - 1]
                raise TypeError(f"{signature.text}: row {place}, argument {column}: {what}") from None
            raise
        finally:
            del self._rows[number]


#: The databases by what they have, those last that were used last. The key of a function has an
#: address, so its engine keeps the function.
_open: OrderedDict[tuple[Any, ...], tuple[Engine, Any]] = OrderedDict()
_one_at_a_time = threading.Lock()


def of_file(file: Path) -> Engine:
    """The database with the functions of a file, as it is now."""
    state = file.stat()
    key = (str(file.resolve()), state.st_mtime_ns, state.st_size)
    return _engine(key, file, lambda: Engine(str(file)))


def of_function(function: Callable[..., Any], signature: str | None, lane: str, options: Any) -> Engine:
    """The database with a function, as it and all that it refers to are now."""

    def make() -> Engine:
        engine = Engine()
        try:
            register(engine.con, function, signature, lane=lane, replace=True, **options)  # type: ignore[arg-type]
        except BaseException:
            engine.con.close()
            raise
        return engine

    if lane == "process":
        # A worker has a copy of what the function refers to, and the copy may be outdated.
        declared = of_program(function, signature, options)
        return _engine((dump(*declared),), function, make)
    return _engine((lane, id(function), signature, repr(options)), function, make)


def _engine(key: tuple[Any, ...], kept: Any, make: Callable[[], Engine]) -> Engine:
    with _one_at_a_time:
        if key not in _open:
            _open[key] = (make(), kept)
            while len(_open) > _MOST:
                _open.popitem(last=False)[1][0].con.close()
        _open.move_to_end(key)
        return _open[key][0]


def close() -> None:
    """Closes the databases that :func:`call` keeps, and ends their worker processes.

    A later call opens new ones. The end of the program does the same.
    """
    with _one_at_a_time:
        while _open:
            _open.popitem()[1][0].con.close()


atexit.register(close)
