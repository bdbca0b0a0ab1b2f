"""Runs statements on a thread of their own, and gives their results as text."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

from crosslane._cli.output import INTERRUPTED, err, progress
from crosslane._cli.sql.results import Columns, Row

#: Seconds after which a query gets a progress bar.
_PATIENCE = 1.0
_FETCH = 10_000
#: All columns without their values: only the types are of interest.
_TYPED = "CASE WHEN false THEN COLUMNS(*) END"
_PRINTED = "CAST(COLUMNS(*) AS VARCHAR)"
#: `to_json` converts all types, but writes a FLOAT with too many digits, and drops trailing zeros
#: of a DECIMAL.
_JSON = f"""CASE WHEN system.main.typeof(COLUMNS(*)) IN ('FLOAT', 'DOUBLE')
    OR system.main.starts_with(system.main.typeof(COLUMNS(*)), 'DECIMAL(')
    THEN {_PRINTED} ELSE CAST(system.main.to_json(COLUMNS(*)) AS VARCHAR) END"""
#: The columns that DuckDB returns for statements without a result.
_NOTHING = ([("Count", "BIGINT")], [("Success", "BOOLEAN")])


def _with_texts(statements: list[Any]) -> Iterator[tuple[Any, str]]:
    """Each statement, with its text, or an empty text if it cannot stand inside another."""
    import duckdb

    from crosslane._engines.statements import Definition

    whole = True
    for statement in statements:
        if isinstance(statement, Definition):
            yield statement, ""
        elif statement.type == duckdb.StatementType.SELECT:
            yield statement, _without_end(statement.query) if whole else ""
            whole = True
        else:
            # DuckDB 1.5 makes several statements of a PIVOT. The first has no text, and the text of
            # the last is not its own.
            whole = whole and statement.query != ""
            yield statement, ""


def _without_end(statement: str) -> str:
    """A statement up to its semicolon."""
    import duckdb

    text = statement.encode()
    ends = (place for place, _ in duckdb.tokenize(statement) if text[place : place + 1] == b";")
    return text[: next(ends, None)].decode().strip()


def _defined(signatures: list[str]) -> Iterator[Columns | list[Row]]:
    """The functions that a statement has defined, as a result."""
    if signatures:
        yield [("defined", "VARCHAR")]
        yield [(signature,) for signature in signatures]
        yield []


class Run:
    """Runs statements on a thread of its own: the main thread draws, and receives Ctrl-C."""

    def __init__(self, con: Any, statements: list[Any], *, json: bool) -> None:
        self._con = con
        self._statements = statements
        self._values = _JSON if json else _PRINTED
        self._cancel = con.cursor()
        self._before = dict(
            self._cancel.execute("SELECT function, rows FROM system.main.crosslane_stats()").fetchall()
        )
        self._stopped = False
        #: For each result: its columns, its rows in batches, and an empty batch. The last item is
        #: None or an exception.
        self._items: queue.Queue[Any] = queue.Queue(maxsize=2)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for statement, text in _with_texts(self._statements):
                if self._stopped:
                    break
                for item in self._execute(statement, text) if text else self._execute_alone(statement):
                    self._items.put(item)
            self._items.put(None)
        except BaseException as error:
            self._items.put(error)

    def _execute(self, statement: Any, text: str) -> Iterator[Columns | list[Row]]:
        """Runs a statement inside another that converts its values to text."""
        import duckdb

        try:
            result = self._con.execute(f"SELECT {_TYPED}, {self._values} FROM (\n{text}\n)")
        except (duckdb.BinderException, duckdb.CatalogException):
            # Raises the same error, with the position in the text that the user has given.
            self._con.sql(statement)
            raise
        half = len(result.description) // 2
        yield [(name, str(kind)) for name, kind, *_ in result.description[:half]]
        while rows := result.fetchmany(_FETCH):
            yield [row[half:] for row in rows]
        yield []

    def _execute_alone(self, statement: Any) -> Iterator[Columns | list[Row]]:
        """Runs a statement that cannot stand inside another."""
        from crosslane._engines.statements import Definition

        if isinstance(statement, Definition):
            signatures = statement.run(self._con)
            if signatures is not None:
                yield from _defined(signatures)
                return
            statement = statement.text
        result = self._con.sql(statement)
        if result is None:
            return
        kinds = [str(kind) for kind in result.types]
        if list(zip(result.columns, kinds)) in _NOTHING:
            return
        values = result.project(self._values)
        yield list(zip(values.columns, kinds))
        if rows := values.fetchall():
            yield rows
        yield []

    def results(self) -> Iterator[tuple[Columns, Iterator[Row]]]:
        """The columns and the rows of each result, as they come."""
        while columns := self._take():
            yield columns, chain.from_iterable(iter(self._take, []))

    def _take(self) -> Any:
        """The next item of the thread, or the error of the query. Draws progress."""
        item = self._wait_at_terminal() if err.is_terminal else self._items.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _wait_at_terminal(self) -> Any:
        with contextlib.suppress(queue.Empty):
            return self._items.get(timeout=_PATIENCE)
        bar = progress()
        task = bar.add_task("running", total=None)
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    return self._items.get(timeout=0.1)
                percentage = self._con.query_progress()
                # DuckDB does not know the progress of all queries, and may be at 100 % before the
                # query ends.
                if 0 < percentage < 100:
                    bar.start()
                    bar.update(task, description="running", total=100, completed=percentage)
                elif rows := self._rows_so_far():
                    bar.start()
                    bar.update(task, description=f"running, {rows}", total=None)
        finally:
            bar.stop()

    def _rows_so_far(self) -> str:
        """The numbers of rows of functions so far, as text; empty if there are none."""
        stats = self._cancel.execute("SELECT function, rows FROM system.main.crosslane_stats()").fetchall()
        more = ((name, rows - self._before.get(name, 0)) for name, rows in stats)
        return ", ".join(f"{name}: {count:,} rows" for name, count in more if count)

    def stop(self) -> None:
        """Ends the statement that still runs."""
        self._stopped = True
        if self._thread.is_alive():
            self._cancel.execute("FROM system.main.crosslane_cancel()").fetchall()
        while self._thread.is_alive():
            # Repeated, because an interrupt just before a statement begins is lost.
            self._con.interrupt()
            with contextlib.suppress(queue.Empty):
                self._items.get(timeout=0.05)

    def interrupt(self) -> NoReturn:
        """Ends the query and the program. A second Ctrl-C ends the program at once."""
        try:
            self.stop()
            err.print("interrupted")
            sys.stdout.flush()
        finally:
            # Does not wait for the query: its workers end with this process.
            os._exit(INTERRUPTED)
