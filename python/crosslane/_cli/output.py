"""What all commands print with: the consoles, errors, tables and progress."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

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
