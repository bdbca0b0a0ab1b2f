"""The command ``crosslane sql``."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import click

from crosslane._cli.options import SETTINGS
from crosslane._cli.output import EXIT_CODES, Failed, err, shown_errors
from crosslane._cli.sql.query import (
    DATABASE,
    FORMAT,
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
from crosslane._cli.sql.stats import print_stats


@click.command(epilog=EXIT_CODES)
@QUERY
@FUNCTIONS
@DATABASE
@click.option("--read-only", is_flag=True, help="Open the database file for reading only.")
@FORMAT
@ROWS
@THREADS
@SETTINGS
@click.option("--watch", is_flag=True, help="Run QUERY again whenever a file of functions changes.")
@click.option("--stats", is_flag=True, help="Show afterwards what the functions cost.")
def sql(
    query: str | None,
    files: tuple[str, ...],
    database: str,
    read_only: bool,
    style: str,
    rows: int,
    threads: int | None,
    settings: dict[str, str],
    watch: bool,
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
    if watch and not files:
        raise click.UsageError("--watch needs a file of functions: -f FILE")
    import duckdb

    started = time.perf_counter()
    with shown_errors():
        con = connect(database, threads, functions=files, read_only=read_only, settings=settings)
        while watch:
            with contextlib.suppress(Failed), shown_errors():
                run_statements(con, query, style, rows, started, stats)
            _wait_for_change(con)
            started = time.perf_counter()
        run_statements(con, query, style, rows, started, stats)
        with contextlib.suppress(duckdb.Error):
            con.close()


def run_statements(con: Any, query: str, style: str, rows: int, started: float, stats: bool = False) -> None:
    """Runs all statements, and prints their results."""
    run = Run(con, statements_of(con, query), json=style in ("json", "jsonl"))
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
    sys.stdout.flush()


def _wait_for_change(con: Any) -> None:
    """Waits until a file of functions has changed and was loaded again."""
    from crosslane._engines import watching
    from crosslane._engines.duckdb import watched

    while True:
        time.sleep(watching.INTERVAL)
        changes = watched(con)
        watching.report(changes)
        if any(change.error is None for change in changes):
            return
