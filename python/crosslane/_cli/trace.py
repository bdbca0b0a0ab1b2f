"""The command ``crosslane trace``."""

from __future__ import annotations

import click

from crosslane._cli.options import SETTINGS, WRITABLE
from crosslane._cli.output import EXIT_CODES, shown_errors
from crosslane._cli.sql.query import (
    DATABASE,
    FUNCTIONS,
    QUERY,
    ROWS,
    THREADS,
    connect,
    query_of,
    statements_of,
)
from crosslane._cli.sql.results import print_result
from crosslane._cli.sql.run import Run


def _check(_context: click.Context, _parameter: click.Parameter, file: str) -> str:
    """Refuses a file that cannot get a trace, before the query runs."""
    from crosslane._engines.tracing.trace import format_of

    try:
        format_of(file)
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error)) from None
    return file


@click.command(epilog=EXIT_CODES)
@QUERY
@click.option(
    "-o",
    "--output",
    type=WRITABLE,
    callback=_check,
    required=True,
    metavar="FILE",
    help="The trace: .html for browsers, .json for Perfetto.",
)
@click.option(
    "--profile", is_flag=True, help="Also show which lines of Python functions took the time (.html)."
)
@FUNCTIONS
@DATABASE
@ROWS
@THREADS
@SETTINGS
def trace(
    query: str | None,
    output: str,
    profile: bool,
    files: tuple[str, ...],
    database: str,
    rows: int,
    threads: int | None,
    settings: dict[str, str],
) -> None:
    """Runs QUERY on DuckDB as `crosslane sql` does, and writes what happened in it to a file.

    Without QUERY it is read from the input. The trace has the loads of the files, too. It is also
    written if the query fails, or is ended by Ctrl-C.
    """
    import crosslane

    if profile and not output.lower().endswith(".html"):
        raise click.UsageError("a profile is shown by the page of a trace, whose file ends with .html")
    query = query_of(query)
    with shown_errors(), connect(database, threads, settings=settings) as con:
        statements = statements_of(con, query)
        with crosslane.trace(con, output, title=query.strip(), profile=profile):
            for file in files:
                crosslane.load(con, file)
            run = Run(con, statements, json=False)
            try:
                for columns, values in run.results():
                    print_result(columns, values, "table", rows)
            finally:
                run.stop()
