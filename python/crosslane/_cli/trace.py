"""The command ``crosslane trace``."""

from __future__ import annotations

from typing import Any

import click

from crosslane._cli.options import READABLE, WRITABLE
from crosslane._cli.output import EXIT_CODES, shown_errors
from crosslane._cli.sql.command import query_of
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
@click.argument("query", required=False)
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
    "-f",
    "--functions",
    "files",
    multiple=True,
    type=READABLE,
    metavar="FILE",
    help="A file of functions; may be given often.",
)
@click.option(
    "--db",
    "database",
    default=":memory:",
    show_default=False,
    metavar="FILE",
    help="The database file; by default one in memory.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=40,
    help="Rows of a result to show; 0: all.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine; by default one per core.")
def trace(
    query: str | None, output: str, files: tuple[str, ...], database: str, rows: int, threads: int | None
) -> None:
    """Runs QUERY on DuckDB as `crosslane sql` does, and writes what happened in it to a file.

    Without QUERY it is read from the input. The trace has the loads of the files, too. It is also
    written if the query fails, or is ended by Ctrl-C.
    """
    import crosslane
    from crosslane._engines.statements import split

    query = query_of(query)
    config: dict[str, Any] = {"python_enable_replacements": "false"}
    if threads:
        config["threads"] = threads
    with shown_errors(), crosslane.connect(database, config=config) as con:
        statements = split(con, query)
        if not statements:
            raise click.UsageError("the query is empty")
        with crosslane.trace(con, output, title=query.strip()):
            for file in files:
                crosslane.load(con, file)
            run = Run(con, statements, json=False)
            try:
                for columns, values in run.results():
                    print_result(columns, values, "table", rows)
            finally:
                run.stop()
