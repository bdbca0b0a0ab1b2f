"""The events of a trace, as the engine gives them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, NamedTuple

import duckdb


class Event(NamedTuple):
    """A row of ``crosslane_events()``. Times are in microseconds from the start of the trace on."""

    kind: str
    function: str | None
    library: str
    lane: int | None
    pid: int | None
    thread: int
    start: float
    duration: float
    rows: int
    detail: str | None

    @property
    def is_of_worker(self) -> bool:
        """Whether a worker did it, and not a thread of the database."""
        return self.lane is not None and self.kind not in ("wait", "copy_in", "copy_out")


@dataclass(frozen=True)
class Recording:
    """A trace that has ended."""

    title: str
    events: list[Event]
    #: The events that the trace had no room for.
    dropped: int
    #: The samples of Python functions, as a tree (:mod:`crosslane._engines.profile`), if there are any.
    profile: dict[str, Any] | None = None
    #: The process of the database.
    process: int = field(default_factory=os.getpid)
    ended: datetime = field(default_factory=lambda: datetime.now().astimezone())


def begin(cursor: duckdb.DuckDBPyConnection) -> None:
    """Starts a trace; raises ``duckdb.Error`` if one is on."""
    cursor.execute("FROM system.main.crosslane_trace(true)").fetchall()


def end(cursor: duckdb.DuckDBPyConnection, title: str) -> Recording:
    """Ends the trace, and reads it."""
    try:
        ((_, _, dropped),) = cursor.execute("FROM system.main.crosslane_trace(false)").fetchall()
    except duckdb.ConnectionException as error:
        raise duckdb.ConnectionException(
            "the connection was closed during its trace, so the trace is lost; close it after the trace"
        ) from error
    rows: list[Any] = cursor.execute("FROM system.main.crosslane_events()").fetchall()
    return Recording(title, [Event._make(row) for row in rows], dropped)


def short(library: str) -> str:
    """The name of a library, without the folder of a file."""
    return PurePath(library).name if library.startswith("/") else library
