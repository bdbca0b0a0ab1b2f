"""The commands ``crosslane dump`` and ``crosslane trust``: functions that a database keeps."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from crosslane._cli.output import EXIT_CODES, out, shown_errors

_FILE = click.argument(
    "database", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@click.command(epilog=EXIT_CODES)
@_FILE
def dump(database: Path) -> None:
    """Prints the functions that the database FILE keeps, as statements that define them."""
    import crosslane
    from crosslane._engines.statements import definitions

    with shown_errors(), crosslane.connect(database, read_only=True, restore=False) as con:
        for _, definition in definitions(con):
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
    from crosslane._engines.statements import definitions

    with shown_errors(), crosslane.connect(database, read_only=True, restore=False) as con:
        kept = definitions(con)
        if not kept:
            out.print("the database keeps no functions", highlight=False)
            return
        for _, definition in kept:
            sys.stdout.write(f"{definition};\n")
        sys.stdout.flush()
        names = ", ".join(function for function, _ in kept)
        if not yes and not sys.stdin.isatty():
            raise click.UsageError("there is nobody to ask; say --yes if you trust these functions")
        if yes or click.confirm(f"Do you trust the code of these functions ({names})?"):
            con.execute("CALL system.main.crosslane_trust()").fetchall()
            out.print(f"trusted: {names}", highlight=False, markup=False)
