"""The commands ``crosslane dump`` and ``crosslane trust``: functions that a database keeps."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import click

from crosslane._cli.output import EXIT_CODES, out, shown_errors, visible

_FILE = click.argument(
    "database", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@click.command(epilog=EXIT_CODES)
@_FILE
def dump(database: Path) -> None:
    """Prints the functions that the database FILE keeps, as statements that define them."""
    import crosslane

    with shown_errors(), crosslane.connect(database, read_only=True, restore=False) as con:
        for _, definition in _definitions(con):
            sys.stdout.write(f"{definition};\n")


@click.command(epilog=EXIT_CODES)
@_FILE
@click.option("--yes", is_flag=True, help="Trust them without a question.")
def trust(database: Path, yes: bool) -> None:
    """Trusts the functions that the database FILE keeps, after it has shown them.

    Only functions that you have defined or trusted on this machine are loaded when a database is
    opened. A function that is changed later has to be trusted again.
    """
    import crosslane

    with shown_errors(), crosslane.connect(database, read_only=True, restore=False) as con:
        kept = _definitions(con)
        if not kept:
            out.print("the database keeps no functions", highlight=False)
            return
        for _, definition in kept:
            sys.stdout.write(f"{visible(definition)};\n")
        sys.stdout.flush()
        names = ", ".join(visible(function) for function, _ in kept)
        if not yes and not sys.stdin.isatty():
            raise click.UsageError("there is nobody to ask; say --yes if you trust these functions")
        if yes or click.confirm(f"Do you trust the code of these functions ({names})?"):
            con.execute("CALL system.main.crosslane_trust()").fetchall()
            out.print(f"trusted: {names}", highlight=False, markup=False, soft_wrap=True)


def _definitions(con: Any) -> list[tuple[str, str]]:
    """The functions that a database keeps. Warns of rows that define none."""
    from crosslane._engines.statements import definitions

    kept = definitions(con)
    for function, _, error in kept:
        if error is not None:
            warnings.warn(f"a row for {visible(function)} defines no function: {error}", stacklevel=2)
    return [(function, definition) for function, definition, error in kept if error is None]
