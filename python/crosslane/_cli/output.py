"""What all commands print with: the consoles, errors, tables and progress."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import Progress


INTERRUPTED = 130
EXIT_CODES = """Exit codes: 0 if all went well, also if the reader of the output went away; 1 if a query, a function or a file
failed, or something is missing; 2 if the command was used wrongly; 130 after Ctrl-C."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The group of commands catches it.
        raise BrokenPipeError


out = _Console()
err = _Console(stderr=True)


def discard_output() -> None:
    """Drops the rest of the output, which Python would try to write again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def complain(text: str, where: str = "") -> None:
    """Prints an error. It may be longer than a line, so that paths are not broken."""
    err.print(f"[red]error[/]{where}: {escape(text)}", highlight=False, soft_wrap=True)


def visible(text: str, kept: str = "\n\t") -> str:
    """A text without what a terminal would hide, such as a carriage return, except for ``kept``."""
    return "".join(
        one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text
    )


class Failed(SystemExit):
    """The error of a database or of a function was printed."""


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Prints errors of the database and of functions without a traceback of Python, and warnings
    without their place."""
    import duckdb

    from crosslane import DeclarationError

    def warn(message: Warning | str, *_: Any) -> None:
        err.print(f"[yellow]warning[/]: {escape(str(message))}", highlight=False, soft_wrap=True)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn  # type: ignore[assignment]
            yield
    except (duckdb.Error, DeclarationError) as error:
        complain(str(error).removeprefix("Invalid Input Error: "))
        raise Failed(1) from None


def print_table(table: Table) -> None:
    """Prints a table. Lines have any length if the output is no terminal."""
    if out.is_terminal:
        out.print(table)
        return
    wide = out.options.update(max_width=sys.maxsize)
    _Console(width=max(1, Measurement.get(out, wide, table).maximum)).print(table)


def progress() -> Progress:
    """A progress bar on stderr that disappears at its end; no bar if stderr is no terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
