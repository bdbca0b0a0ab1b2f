"""The command ``crosslane sql``."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from crosslane._cli.output import EXIT_CODES, complain, err
from crosslane._cli.sql.results import print_result
from crosslane._cli.sql.run import Run
from crosslane._cli.sql.stats import print_stats


@click.command(epilog=EXIT_CODES)
@click.argument("query", required=False)
@click.option(
    "-f",
    "--functions",
    "files",
    multiple=True,
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
@click.option("--read-only", is_flag=True, help="Open the database file for reading only.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "csv", "json", "jsonl", "markdown"]),
    default="table",
    help="How to print each result.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=40,
    help="Rows of a table to show; 0: all.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine; by default one per core.")
@click.option("--stats", is_flag=True, help="Show afterwards what the functions cost.")
def sql(
    query: str | None,
    files: tuple[str, ...],
    database: str,
    read_only: bool,
    style: str,
    rows: int,
    threads: int | None,
    stats: bool,
) -> None:
    """Runs QUERY on DuckDB, with the functions of the given files. Without QUERY it is read from
    the input.

    QUERY may be several statements; the result of each is printed. Values look as in DuckDB's own
    command line. In CSV a NULL is nothing and an empty string is "". In JSON, numbers are numbers,
    and those that JSON does not have are the strings "nan", "inf" and "-inf". Of columns with equal
    names, the later ones are called a_1, a_2, and so on. A table that does not fit the terminal is
    shown as a list of records.
    """
    query = query_of(query)
    if read_only and database == ":memory:":
        raise click.UsageError("--read-only needs a database file: --db FILE")
    import duckdb

    import crosslane

    started = time.perf_counter()
    with shown_errors():
        # A name of a table never means a variable of this program.
        config: dict[str, Any] = {"python_enable_replacements": "false"}
        if threads:
            config["threads"] = threads
        for file in files:
            if not Path(file).is_file():
                raise click.BadParameter(f"there is no file {file}", param_hint="-f")
        con = crosslane.connect(database, functions=files, read_only=read_only, config=config)
        statements = con.extract_statements(query)
        if not statements:
            raise click.UsageError("the query is empty")
        # DuckDB measures the progress, but must not print its own bar between the rows.
        con.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        run = Run(con, statements, json=style in ("json", "jsonl"))
        count = 0
        try:
            for columns, values in run.results():
                count += print_result(columns, values, style, rows)
        except KeyboardInterrupt:
            run.interrupt()
        finally:
            run.stop()
        if style == "table" and err.is_terminal:
            seconds = time.perf_counter() - started
            err.print(f"[dim]{count} row{'s' if count != 1 else ''} in {seconds:.2f} s[/dim]")
        if stats:
            print_stats(con)
        with contextlib.suppress(duckdb.Error):
            con.close()


def query_of(argument: str | None) -> str:
    """The query that was given, or the one that the input has."""
    if argument is not None:
        return argument
    if sys.stdin.isatty():
        raise click.UsageError("give a query, or pipe one in")
    return sys.stdin.read()


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Prints errors of the database and of functions without a traceback of Python."""
    import duckdb

    from crosslane import DeclarationError

    try:
        yield
    except (duckdb.Error, DeclarationError) as error:
        text = str(error).removeprefix("Invalid Input Error: ")
        complain(text)
        sys.exit(1)
