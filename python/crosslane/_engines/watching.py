"""A watch over files of functions: they are loaded again when they change."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

import duckdb

#: Seconds between two looks at the files.
INTERVAL = 0.2


class Reloaded(NamedTuple):
    """A file that had changed."""

    library: str
    """The file."""
    version: int | None
    """The number of this load of the file; None if the file could not be loaded."""
    error: str | None
    """Why the file could not be loaded; its functions stay as they were."""


def report(changes: Iterable[Reloaded]) -> None:
    """Prints to stderr what became of files that had changed."""
    for change in changes:
        if change.error is None:
            message = f"crosslane: loaded {change.library} again"
        else:
            message = f"crosslane: {change.library} was not loaded again, and its functions stay as they were: {change.error}"
        print(message, file=sys.stderr, flush=True)


def watch(
    con: duckdb.DuckDBPyConnection,
    own: duckdb.DuckDBPyConnection,
    reload: Callable[[duckdb.DuckDBPyConnection], list[Reloaded]],
) -> None:
    """Calls ``reload`` again and again, on a thread, until the connection is closed or forgotten.

    Args:
        con: the connection.
        own: another connection to the same database, which the thread uses and closes. A cursor of
            ``con`` would be in use when the program closes ``con``, which DuckDB refuses.
        reload: loads what has changed.
    """
    ended = threading.Event()
    thread = threading.Thread(
        target=_run, args=(weakref.ref(con), own, reload, ended), name="crosslane-watch", daemon=True
    )

    def end() -> None:
        ended.set()
        # The thread itself may be the last that has the connection.
        while thread.is_alive() and thread is not threading.current_thread():
            # Again and again, because an interrupt just before a query begins is lost.
            with contextlib.suppress(duckdb.Error):
                own.interrupt()
            thread.join(0.05)

    # Also before the interpreter ends: DuckDB must not be in a query then.
    weakref.finalize(con, end)
    thread.start()


def _run(
    ref: weakref.ref[duckdb.DuckDBPyConnection],
    own: duckdb.DuckDBPyConnection,
    reload: Callable[[duckdb.DuckDBPyConnection], list[Reloaded]],
    ended: threading.Event,
) -> None:
    with own:
        while not ended.wait(INTERVAL) and not _is_closed(ref()):
            try:
                report(reload(own))
            except duckdb.Error as error:
                if not ended.is_set():
                    print(f"crosslane: files are not watched any more: {error}", file=sys.stderr, flush=True)
                return


def _is_closed(con: duckdb.DuckDBPyConnection | None) -> bool:
    """Whether a connection is closed."""
    if con is None:
        return True
    try:
        con.cursor().close()
    except duckdb.ConnectionException:
        return True
    return False
