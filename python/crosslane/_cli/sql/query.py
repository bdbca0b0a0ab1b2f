"""What the commands have in common that run a query: options, the query, and the database."""

from __future__ import annotations

import sys
from typing import Any

import click

from crosslane._cli.options import READABLE

QUERY = click.argument("query", required=False)
FUNCTIONS = click.option(
    "-f",
    "--functions",
    "files",
    multiple=True,
    type=READABLE,
    metavar="FILE",
    help="A file of functions; may be given often.",
)
DATABASE = click.option(
    "--db",
    "database",
    default=":memory:",
    show_default=False,
    metavar="FILE",
    help="The database file; by default one in memory.",
)
FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(["table", "csv", "json", "jsonl", "markdown"]),
    default="table",
    help="How to print each result.",
)
ROWS = click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=40,
    help="Rows of a table to show; 0: all.",
)
THREADS = click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of the engine; by default one per core."
)


def query_of(argument: str | None) -> str:
    """The query that was given, or the one that the input has."""
    if argument is not None:
        return argument
    if sys.stdin.isatty():
        raise click.UsageError("give a query, or pipe one in")
    return sys.stdin.read()


def connect(database: str, threads: int | None, **options: Any) -> Any:
    """A connection with Crosslane for statements of the command line; ``options`` are those of
    :func:`crosslane.connect`."""
    import crosslane

    # A name of a table never means a variable of this program.
    config: dict[str, Any] = {"python_enable_replacements": "false"}
    if threads:
        config["threads"] = threads
    con = crosslane.connect(database, config=config, **options)
    # DuckDB measures the progress, but must not print its own bar between the rows.
    con.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    return con


def statements_of(con: Any, query: str) -> list[Any]:
    """The statements of a query, of which there is at least one."""
    from crosslane._engines.statements import split

    statements = split(con, query)
    if not statements:
        raise click.UsageError("the query is empty")
    return statements
