"""Statements of SQL, among them ``CREATE FUNCTION ... LANGUAGE python AS $$ ... $$``."""

from __future__ import annotations

from typing import Any, NamedTuple

import duckdb

from crosslane import _guest
from crosslane._engines.duckdb import run_command, unregister


class Definition(NamedTuple):
    """A statement that defines or drops a function."""

    text: str
    drops: str | None
    """The name of the function that it drops, which may be a macro of the database."""
    if_exists: bool
    """Whether it is no error if there is no function to drop."""

    def run(self, con: duckdb.DuckDBPyConnection) -> list[str] | None:
        """Defines or drops the function, outside the connection's results and transaction.

        Returns:
            The signatures of what was defined. None for the drop of a function that is not
            Crosslane's, which the connection has to run.

        Raises:
            duckdb.Error: if the function cannot be defined or dropped.
        """
        if self.drops is None:
            return [row[1] for row in run_command(con, "crosslane_create", [self.text])]
        if not _is_ours(con, self.drops):
            return None
        unregister(con, self.drops)
        return []


def _is_ours(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    with con.cursor() as cursor:
        loaded = cursor.execute("SELECT function FROM system.main.crosslane_functions()").fetchall()
    return name.lower() in (row[0].lower() for row in [*loaded, *definitions(con)])


def definitions(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str, str | None]]:
    """The functions that the database keeps, with their definitions, the oldest first. What is no
    definition has an error."""
    with con.cursor() as cursor:
        return cursor.execute("FROM system.main.crosslane_definitions()").fetchall()


def split(con: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    """The statements of a text: those of DuckDB, and instances of :class:`Definition`.

    Raises:
        duckdb.Error: if DuckDB cannot parse its statements.
    """
    found: list[Any] = []
    for kind, text, name, if_exists in _guest.statements(sql):
        if kind == "other":
            found += con.extract_statements(text)
        else:
            found.append(Definition(text, name if kind == "drop" else None, if_exists))
    return found


def execute(con: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> duckdb.DuckDBPyConnection:
    """Runs statements as ``con.execute`` does. They may define functions in other languages.

    A definition takes effect at once, for all connections and whatever transaction is open. The
    database keeps it, unless it is TEMP.

    Args:
        con: a connection of :func:`crosslane.connect`, or one that functions were loaded into.
        sql: the statements.
        parameters: those of the last statement.

    Returns:
        The connection, with the result of the last statement. That of a definition are the
        signatures.

    Raises:
        duckdb.Error: if a statement fails; the statements before it have taken effect.

    >>> import crosslane
    >>> con = crosslane.connect()
    >>> crosslane.execute(con, '''
    ...     CREATE FUNCTION shout(text VARCHAR) RETURNS VARCHAR LANGUAGE python AS $$ text.upper() + "!" $$;
    ...     SELECT shout('hello')
    ... ''').fetchall()
    [('HELLO!',)]
    """
    pieces = _guest.statements(sql)
    for at, (kind, text, name, if_exists) in enumerate(pieces):
        signatures = None
        if kind != "other":
            signatures = Definition(text, name if kind == "drop" else None, if_exists).run(con)
        if signatures is not None:
            con.execute("SELECT unnest(?::VARCHAR[]) AS signature", [signatures])
        else:
            con.execute(text, parameters if at + 1 == len(pieces) else None)
    return con
