"""Traces of blocks of a program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path

import duckdb

from crosslane._engines.duckdb import prepare
from crosslane._engines.profile import profiled
from crosslane._engines.tracing.chrome import to_chrome
from crosslane._engines.tracing.page import to_page
from crosslane._engines.tracing.recording import Recording, begin, end

#: What is written into a file, by the end of its name.
_FORMATS = {".html": to_page, ".json": to_chrome}


def format_of(path: str | PathLike[str]) -> Callable[[Recording], str]:
    """What makes the text of a trace for a file.

    Raises:
        ValueError: if the name of the file ends with neither ``.html`` nor ``.json``.
        OSError: if its folder is missing, it is a folder itself, or it may not be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"the file of a trace ends with .html or .json, not {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for the trace {path.name}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, and no file for a trace")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"the trace {path} cannot be written: this user may not write there")
    return _FORMATS[path.suffix.lower()]


@contextlib.contextmanager
def trace(
    con: duckdb.DuckDBPyConnection, path: str | PathLike[str], *, title: str = "", profile: bool = False
) -> Iterator[None]:
    """Records what happens in a database during a ``with`` block, and writes it to a file at the end.

    It records the queries of all connections to the database: when workers were started, waited
    for, and given arguments, how long functions took, retries and exceptions. It has room for
    262,144 events, and then counts those that come later. The file is also written if the block
    ends with an exception.

    Args:
        con: a connection to the database; Crosslane is loaded into it if necessary. It must stay
            open during the block.
        path: the file. ``.html`` is a page for browsers that needs no other file. ``.json`` is a
            trace file for Perfetto (https://ui.perfetto.dev) and Chrome. It is replaced if it
            exists.
        title: a text that the page shows above the trace, such as the query.
        profile: whether the page also shows which lines of Python functions took the time. It knows
            only functions of files that are loaded in the block.

    Raises:
        ValueError: if the name of the file ends with neither ``.html`` nor ``.json``, or with ``.json``
            if there is a profile.
        OSError: if the file cannot be written. If that is known before the block, the block does not
            run.
        duckdb.Error: if the database is traced already, or the block has closed the connection.
    """
    to_text = format_of(path)
    if profile and to_text is not to_page:
        raise ValueError("a profile is shown by the page of a trace, whose file ends with .html")
    # The block may change the working folder.
    path = Path(path).absolute()
    prepare(con)
    with con.cursor() as cursor, profiled() if profile else contextlib.nullcontext() as samples:
        begin(cursor)
        try:
            yield
        finally:
            recording = end(cursor, title)
            if samples is not None:
                recording = replace(recording, profile=samples.end())
            text = to_text(recording)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
