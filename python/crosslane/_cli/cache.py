"""The command ``crosslane cache``: results that functions keep for later programs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from crosslane._cli.output import EXIT_CODES, Failed, complain, out, print_table

#: What marks a file as one of results. The crate `crosslane-cache` writes it.
_APPLICATION = 0x786C616E
#: The functions of a file, with the number of results, their bytes, and when they were made.
_FUNCTIONS = """
    SELECT id, name, functions.file, count(key), total(length(key) + length(result)), min(made), max(made)
    FROM functions LEFT JOIN results ON function = id
    GROUP BY id ORDER BY name, functions.file"""


@click.command(epilog=EXIT_CODES)
@click.argument("functions", nargs=-1, metavar="[FUNCTION]...")
@click.option(
    "--file", type=click.Path(path_type=Path), help="The file; by default the one in the user's cache."
)
@click.option("--clear", is_flag=True, help="Delete the results.")
def cache(functions: tuple[str, ...], file: Path | None, clear: bool) -> None:
    """Shows what functions with the option `cache` keep for later programs, or deletes it.

    Without a FUNCTION, it is about all functions of the file.
    """
    from crosslane import _guest

    path = file or Path(_guest.cache(), "results.db")
    if file is None and not path.exists():
        out.print("no function has kept a result", highlight=False)
        return
    with _opened(path) as connection:
        known = connection.execute(_FUNCTIONS).fetchall()
        names = {name for _, name, *_ in known}
        for function in functions:
            if function not in names:
                complain(
                    f"{path} has no results of {function}; it has those of {', '.join(sorted(names)) or 'none'}"
                )
                raise Failed(1)
        chosen = [row for row in known if not functions or row[1] in functions]
        if clear:
            for number, *_ in chosen:
                connection.execute("DELETE FROM results WHERE function = ?", [number])
            connection.commit()
            # This gives the space back.
            connection.execute("VACUUM")
            count = sum(row[3] for row in chosen)
            out.print(
                f"{count:,} results deleted; a program that runs still has those in its memory",
                highlight=False,
            )
            return
    table = Table(header_style="bold")
    for heading in ("function", "file"):
        table.add_column(heading, overflow="fold")
    for heading in ("results", "size", "oldest", "newest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for _, name, of, count, size, *made in chosen:
        times = ["" if at is None else f"{datetime.fromtimestamp(at / 1000):%Y-%m-%d %H:%M}" for at in made]
        table.add_row(escape(name), escape(of), f"{count:,}", decimal(int(size)), *times)
    print_table(table)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A file of results."""
    try:
        # SQLite would make a file that is not there.
        os.stat(path)
        with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if application != _APPLICATION:
                raise sqlite3.DatabaseError("it is a database of something else")
            yield connection
    except (OSError, sqlite3.Error) as error:
        complain(f"the cache {path} cannot be used: {getattr(error, 'strerror', None) or error}")
        raise Failed(1) from None
