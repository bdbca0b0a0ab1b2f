"""``crosslane.Functions``: functions of files, called with columns, without a visible database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import duckdb

from crosslane._engines.dataframes.database import Database
from crosslane._engines.dataframes.function import Function
from crosslane._engines.duckdb import Source, cursor


class Functions:
    """Functions of files, called with columns, over all cores.

    ``fns.slug(column)`` calls the function ``slug`` for each row of the column. The result is a
    column of the same kind as the first column among the arguments:

    - pyarrow: an Array or a ChunkedArray, as the argument;
    - polars: a Series with the argument's name. An expression gives an expression;
    - pandas: a Series with the argument's index and name;
    - NumPy: an array. It is a masked array if it has integers or booleans with NULLs;
    - a list;
    - any other object with the Arrow C interface gives a pyarrow ChunkedArray.

    Arguments that are no columns are values for all rows. If there are only values, the result is a
    value. An aggregate returns a value, and a table function returns a pyarrow Table. A list is a
    column; ``pyarrow.scalar([1, 2])`` is one value that is a list.

    The functions run in an engine in memory, DuckDB. Types are cast, and NULLs, options and errors
    are treated, as in SQL. Threads may call functions at the same time. It can be pickled if all
    functions come from files; where it is unpickled, the files are loaded again, once per process.

    Args:
        functions: files of functions in any language, or functions of this program.
        threads: how many threads call functions; by default one per processor.
        settings: Crosslane's settings, as for :func:`crosslane.connect`, such as
            ``{"sandbox": "on"}``.

    Raises:
        TypeError: if something is neither a file nor a function.
        duckdb.Error: if a file cannot be loaded, or ``threads`` or a setting has no possible value.
        DeclarationError: if a function is declared in a way that cannot work.

    A call raises:
        TypeError: if the number of arguments is wrong, or an argument has no type in SQL.
        ValueError: if columns have different lengths, or Series of pandas have different indexes.
        duckdb.Error: if a function fails, or does not take arguments of these types.
        KeyboardInterrupt: after Ctrl-C.

    >>> import crosslane
    >>> with crosslane.Functions("examples/quickstart.py") as fns:
    ...     fns.slug(["Hello Wide World", None])
    ['hello-wide-world', None]
    """

    def __init__(
        self,
        *functions: Source,
        threads: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if not functions:
            raise TypeError(
                "crosslane.Functions takes files of functions, such as 'functions.py', or functions"
            )
        for one in functions:
            if not isinstance(one, (str, PathLike)) and not callable(one):
                raise TypeError(f"crosslane.Functions takes files and functions, one by one, and not {one!r}")
        self._use(Database(functions, threads, settings))

    def _use(self, database: Database) -> None:
        self._database = database
        self._functions = {name: Function(database, name) for name in database.declared}

    def __getitem__(self, name: str) -> Function:
        """The function of a name, also of one that is no attribute, such as ``close``.

        Raises:
            KeyError: if no function has the name; suggests similar ones.
        """
        try:
            return self._functions[name]
        except KeyError:
            raise KeyError(self._unknown(name)) from None

    def __getattr__(self, name: str) -> Function:
        try:
            return self._functions[name]
        except KeyError:
            raise AttributeError(self._unknown(name)) from None

    def _unknown(self, name: str) -> str:
        return f"there is no function {name}; {self._database.similar(name)}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._functions})

    def __repr__(self) -> str:
        signatures = [f"  {text}" for one in self._functions.values() for text in one.declared.signatures]
        return "\n".join(["<crosslane.Functions:", *signatures]) + ">"

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (self._database,)

    def __enter__(self) -> Functions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers when the calls in progress have ended, and the connections that
        :meth:`cursor` gave are closed. Further calls are errors."""
        self._database.close()

    def cancel(self) -> None:
        """Ends all calls in progress with an error, from another thread. Later calls are not ended."""
        self._database.cancel()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of DuckDB with these functions, for SQL and for other libraries.

        They take the place of DuckDB's own functions with the same names.
        """
        return cursor(self._database.cursor())

    def polars(self, namespace: str = "crosslane") -> None:
        """Adds a namespace to polars: ``pl.col("title").crosslane.slug()``, also of a Series.

        Args:
            namespace: its name. It takes the place of one that another ``Functions`` has added.

        Raises:
            AttributeError: if polars itself uses the name.
        """
        from crosslane._engines.dataframes import namespaces

        namespaces.polars(self, namespace)

    def pandas(self, accessor: str = "crosslane") -> None:
        """Adds an accessor to Series of pandas: ``frame["title"].crosslane.slug()``.

        Args:
            accessor: its name. It takes the place of one that another ``Functions`` has added.
        """
        from crosslane._engines.dataframes import namespaces

        namespaces.pandas(self, accessor)

    def ibis(self) -> Any:
        """The functions as Ibis's built-in functions, for a DuckDB backend that has them.

        ``ibis.duckdb.from_connection(fns.cursor())`` makes such a backend.
        """
        from crosslane._engines.dataframes.builtins import Builtins

        return Builtins(self)


def _of(database: Database) -> Functions:
    """The functions of a database that was unpickled."""
    functions = Functions.__new__(Functions)
    functions._use(database)
    return functions
