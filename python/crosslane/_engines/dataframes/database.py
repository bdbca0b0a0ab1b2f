"""A database in memory with functions, which :class:`crosslane.Functions` calls."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias
from weakref import WeakSet

import duckdb

from crosslane import _guest
from crosslane._engines.duckdb import Source, connect, load_all
from crosslane._runtime.settings import text_of


@dataclass(frozen=True)
class Declared:
    """All functions of one name."""

    name: str
    #: ``aggregate``, ``table`` or ``stream``. Any other kind is a function of rows.
    kind: str
    #: A text for each overload.
    signatures: tuple[str, ...]
    #: The names of the parameters of each overload, and whether the last one takes all further
    #: arguments. Empty for a function that makes or takes a table.
    parameters: tuple[tuple[list[str], bool], ...]
    #: The SQL types of the results.
    results: frozenset[str]
    description: str | None

    @classmethod
    def of(cls, name: str, rows: list[tuple[str, ...]]) -> Declared:
        """The functions of a name, by their rows of ``crosslane_functions()``."""
        signatures, kinds, descriptions = zip(*rows)
        has_parameters = kinds[0] not in ("table", "stream")
        parsed = list(map(_guest.parse_signature, signatures)) if has_parameters else []
        return cls(
            name,
            kinds[0],
            signatures,
            tuple(([one for one, _ in parameters], variadic) for _, parameters, _, variadic in parsed),
            frozenset(result for _, _, result, _ in parsed),
            next(filter(None, descriptions), None),
        )

    def __str__(self) -> str:
        return " or ".join(self.signatures)

    def check_count(self, count: int) -> None:
        """Raises a TypeError if no overload takes so many arguments."""
        for names, variadic in self.parameters:
            if count == len(names) or (variadic and count >= len(names) - 1):
                return
        plural = "" if count == 1 else "s"
        raise TypeError(f"{self.name} was called with {count} argument{plural}, but it is {self}")

    def label(self, place: int) -> str:
        """What an error calls an argument: its name, if there are no overloads."""
        if len(self.parameters) == 1:
            ((names, _),) = self.parameters
            return names[min(place, len(names) - 1)]
        return f"argument {place + 1}"


class Database:
    """A database in memory with functions. Threads may use it at the same time."""

    def __init__(
        self, sources: Iterable[Source], threads: int | None, settings: Mapping[str, Any] | None
    ) -> None:
        self._sources = tuple(
            os.path.abspath(source) if isinstance(source, (str, PathLike)) else source for source in sources
        )
        self._threads = threads
        self._settings = tuple((name, text_of(value)) for name, value in (settings or {}).items())
        self._process = os.getpid()
        config = {} if threads is None else {"threads": threads}
        con = connect(config=config, settings=dict(self._settings))
        try:
            # Users do not see the database, so its built-in functions and macros reserve no names.
            load_all(con, self._sources, replace=True)
            query = "SELECT function, signature, kind, description FROM crosslane_functions()"
            rows = con.execute(query).fetchall()
        except BaseException:
            con.close()
            raise
        self._con: duckdb.DuckDBPyConnection | None = con
        #: The connections of calls in progress.
        self._calls: set[duckdb.DuckDBPyConnection] = set()
        _databases.add(self)
        found: dict[str, list[tuple[str, ...]]] = {}
        for name, *rest in rows:
            found.setdefault(name, []).append(tuple(rest))
        #: The functions by their names.
        self.declared = {name: Declared.of(name, rest) for name, rest in found.items()}

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and belongs to this process."""
        return self._con is not None and self._process == os.getpid()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection to the database.

        Raises:
            duckdb.ConnectionException: if the database is closed, or this process is a fork of the
                one that made it.
        """
        con = self._con
        if con is None:
            raise duckdb.ConnectionException(
                "these functions are closed: make them again with crosslane.Functions(...)"
            )
        if self._process != os.getpid():
            raise duckdb.ConnectionException(
                f"these functions were made in process {self._process}, and a fork cannot use them: make them "
                "with crosslane.Functions(...) after the fork, or start processes with 'spawn'"
            )
        return con.cursor()

    @contextlib.contextmanager
    def call(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one call."""
        cursor = self.cursor()
        self._calls.add(cursor)
        try:
            yield cursor
        finally:
            cursor.close()
            self._calls.discard(cursor)

    def cancel(self) -> None:
        """Ends the calls in progress."""
        for cursor in list(self._calls):
            # The call may just have ended.
            with contextlib.suppress(duckdb.ConnectionException):
                cursor.interrupt()

    def end(self) -> None:
        """Ends the calls in progress and closes the database, before the program ends."""
        # Threads of other libraries, such as those of polars, must not be in a call when Python ends.
        deadline = time.monotonic() + _LONGEST_END
        while self._calls and time.monotonic() < deadline:
            self.cancel()
            time.sleep(0.01)
        self.close()

    def close(self) -> None:
        """Closes the database as soon as the calls in progress have ended."""
        # Their cursors keep the database open. `con.close()` would wait for them and keep Python's lock.
        self._con = None

    def similar(self, name: str) -> str:
        """Advice for a name that no function has."""
        names = {one.lower(): one for one in self.declared}
        found = [names[one] for one in difflib.get_close_matches(name.lower(), names)]
        return f"did you mean {' or '.join(found)}?" if found else f"there are {', '.join(self.declared)}"

    def __reduce__(self) -> tuple[Any, ...]:
        for source in self._sources:
            if not isinstance(source, str):
                raise TypeError(
                    f"crosslane.Functions with a function of this program cannot be pickled: put {source!r} into a file"
                )
        return _in_this_process, (self._sources, self._threads, self._settings)


#: The seconds that the end of a program waits for calls to end.
_LONGEST_END = 5
#: All databases of this process.
_databases: WeakSet[Database] = WeakSet()


@atexit.register
def _end_all() -> None:
    for database in list(_databases):
        if database.is_usable:
            database.end()


#: The texts of settings, by their names.
_Settings: TypeAlias = tuple[tuple[str, str], ...]
#: Databases that were unpickled, by their process, files, threads and settings. Workers of other libraries
#: unpickle the same functions for each of their tasks.
_unpickled: dict[tuple[int, tuple[str, ...], int | None, _Settings], Database] = {}


def _in_this_process(sources: tuple[str, ...], threads: int | None, settings: _Settings) -> Database:
    key = (os.getpid(), sources, threads, settings)
    database = _unpickled.get(key)
    if database is None or not database.is_usable:
        database = _unpickled[key] = Database(sources, threads, dict(settings))
    return database
