"""The command line: ``crosslane sql``, ``crosslane check``, ``crosslane doctor``."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from crosslane import __version__

#: A query that takes longer gets a progress bar.
_PATIENCE = 1.0
_FETCH = 10_000
_INTERRUPTED = 130

_out = Console()
_err = Console(stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="crosslane")
def main() -> None:
    """Functions written in Python and JavaScript, called from SQL, on every core."""


@main.command()
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
    metavar="FILE",
    help="The database file; by default one in memory.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "csv", "json", "jsonl", "markdown"]),
    default="table",
    show_default=True,
    help="How to print the result.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=40,
    show_default=True,
    help="Rows of a table to show; 0: all.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine; by default one per core.")
@click.option("--stats", is_flag=True, help="Show afterwards what the functions cost.")
def sql(
    query: str | None,
    files: tuple[str, ...],
    database: str,
    style: str,
    rows: int,
    threads: int | None,
    stats: bool,
) -> None:
    """Runs QUERY on DuckDB, with the functions of the given files. Without QUERY it is read from the input."""
    if query is None:
        if sys.stdin.isatty():
            raise click.UsageError("give a query, or pipe one in")
        query = sys.stdin.read()
    import duckdb

    import crosslane

    started = time.perf_counter()
    with _shown_errors():
        config = {"threads": threads} if threads else {}
        for file in files:
            if not Path(file).is_file():
                raise click.BadParameter(f"there is no file {file}", param_hint="-f")
        con = crosslane.connect(database, functions=files, config=config)
        # DuckDB measures the progress; its own bar would go to the output, between the rows.
        con.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        run = _Run(con, query)
        run.wait()
        if run.error:
            raise run.error
        count = _print(run, style, rows)
        if style == "table" and _err.is_terminal:
            seconds = time.perf_counter() - started
            _err.print(f"[dim]{count} row{'s' if count != 1 else ''} in {seconds:.2f} s[/dim]")
        if stats:
            _print_stats(con)
        with contextlib.suppress(duckdb.Error):
            con.close()


class _Run:
    """A query on a thread of its own, so that this one can draw, and listen to Ctrl-C."""

    def __init__(self, con: Any, query: str) -> None:
        self.con = con
        self.error: BaseException | None = None
        self.columns: list[tuple[str, str]] = []
        self._first: list[tuple[Any, ...]] = []
        self._cancel = con.cursor()
        self._thread = threading.Thread(target=self._execute, args=(query,), daemon=True)
        self._thread.start()

    def _execute(self, query: str) -> None:
        try:
            result = self.con.execute(query)
            self.columns = [(item[0], str(item[1])) for item in result.description or []]
            self._first = result.fetchmany(_FETCH)
        except BaseException as error:
            self.error = error

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """All rows of the result."""
        batch = self._first
        while batch:
            yield from batch
            batch = self.con.fetchmany(_FETCH) if len(batch) == _FETCH else []

    def wait(self) -> None:
        """Waits for the first rows; draws progress if that takes long; Ctrl-C ends the query, twice the program."""
        try:
            self._thread.join(_PATIENCE)
            if self._thread.is_alive() and _err.is_terminal:
                self._draw()
            else:
                self._join()
        except KeyboardInterrupt:
            try:
                self.con.interrupt()
                self._cancel.execute("FROM crosslane_cancel()").fetchall()
                self._join()
            except KeyboardInterrupt:
                os._exit(_INTERRUPTED)
            _err.print("interrupted")
            # Nothing of the query is wanted any more, and its workers end with this process.
            sys.stdout.flush()
            os._exit(_INTERRUPTED)

    def _join(self) -> None:
        # A join without a time would not let Ctrl-C through.
        while self._thread.is_alive():
            self._thread.join(0.05)

    def _draw(self) -> None:
        columns = [TextColumn("running"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
        with Progress(*columns, console=_err, transient=True) as progress:
            task = progress.add_task("query", total=None)
            while self._thread.is_alive():
                percentage = self.con.query_progress()
                if percentage and percentage > 0:
                    progress.update(task, total=100, completed=min(percentage, 100))
                self._thread.join(0.1)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def _print(run: _Run, style: str, most: int) -> int:
    names = [name for name, _ in run.columns]
    if not names:
        return 0
    count = 0
    if style == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        for row in run.rows():
            count += 1
            writer.writerow(["" if value is None else _text(value) for value in row])
        return count
    if style in ("json", "jsonl"):
        return _print_json(run, names, sys.stdout, lines=style == "jsonl")
    if style == "markdown":
        print("| " + " | ".join(names) + " |")
        print("|" + "---|" * len(names))
        for row in run.rows():
            count += 1
            print(
                "| "
                + " | ".join("" if value is None else _text(value).replace("|", "\\|") for value in row)
                + " |"
            )
        return count
    numeric = {"NUMBER", "BIGINT", "INTEGER", "DOUBLE", "FLOAT", "HUGEINT", "SMALLINT", "TINYINT", "UBIGINT"}
    table = Table(header_style="bold", show_edge=True)
    for name, kind in run.columns:
        right = kind.split("(")[0] in numeric or kind.startswith("DECIMAL")
        table.add_column(
            f"{escape(name)}\n[dim not bold]{escape(kind.lower())}[/]", justify="right" if right else "left"
        )
    for row in run.rows():
        count += 1
        if not most or count <= most:
            table.add_row(*["[dim]NULL[/]" if value is None else escape(_text(value)) for value in row])
    _out.print(table)
    if most and count > most:
        _out.print(f"[dim]... {count - most} more rows (--rows 0 shows all)[/]")
    return count


def _print_json(run: _Run, names: list[str], out: TextIO, *, lines: bool) -> int:
    count = 0
    for row in run.rows():
        text = json.dumps(dict(zip(names, row)), default=str, ensure_ascii=False)
        if lines:
            out.write(text + "\n")
        else:
            out.write(("[\n  " if count == 0 else ",\n  ") + text)
        count += 1
    if not lines:
        out.write("\n]\n" if count else "[]\n")
    return count


def _print_stats(con: Any) -> None:
    cursor = con.cursor()
    rows = cursor.execute(
        "SELECT function, rows, calls, errors, retries, lanes_lost, fanned_out, guest_seconds, ns_per_row,"
        " copy_in_us, wake_us, way_back_us, copy_out_us FROM crosslane_stats() WHERE calls > 0"
    ).fetchall()
    # What did not happen needs no column.
    rare = ["errors", "retries", "workers lost", "fanned out"]
    shown = [index for index in range(len(rare)) if any(row[3 + index] for row in rows)]
    table = Table(title="what the functions cost", title_justify="left", header_style="bold")
    table.add_column("function")
    for head in [
        "rows",
        "batches",
        *(rare[index] for index in shown),
        "in the function",
        "per row",
        "lane per batch",
    ]:
        table.add_column(head, justify="right")
    for function, count, calls, *rest in rows:
        seconds, per_row, *spans = rest[4:]
        table.add_row(
            escape(function),
            f"{count:,}",
            f"{calls:,}",
            *(f"{rest[index]:,}" for index in shown),
            f"{seconds:.2f} s",
            f"{per_row / 1e3:.2f} us" if per_row else "",
            "+".join(f"{span:.0f}" for span in spans) + " us",
        )
    _out.print(table)
    _out.print("[dim]lane per batch: copy in + wake + way back + copy out[/]")
    lanes = cursor.execute("SELECT sum(booted), sum(waited) FROM crosslane_pools()").fetchall()
    if lanes and lanes[0][0] is not None:
        _out.print(f"[dim]workers: {lanes[0][0]} started, {lanes[0][1]} times a query had to wait for one[/]")


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check(files: tuple[str, ...]) -> None:
    """Lists the functions of FILEs as SQL will see them, or says what is wrong and where."""
    table = Table(header_style="bold")
    for head in ("line", "signature", "kind"):
        table.add_column(head, justify="right" if head == "line" else "left", overflow="fold")
    failed = False
    for file in files:
        suffixes = {".js": _check_javascript, ".mjs": _check_javascript, ".rb": _check_ruby}
        examine = suffixes.get(Path(file).suffix, _check_python)
        try:
            declared = examine(file)
        except _Unloadable as error:
            failed = True
            name, message, traceback = error.args
            _err.print(f"[red]error[/] in {escape(file)}: {escape(name)}: {escape(message)}", highlight=False)
            if traceback:
                _err.print(escape(traceback), highlight=False)
            continue
        for place, signature, kind in declared:
            table.add_row(escape(place), escape(_plain_signature(signature)), kind)
    if table.row_count:
        _out.print(table)
    if failed:
        sys.exit(1)


class _Unloadable(Exception):
    """A file that cannot be loaded: its exception's class, message and traceback."""


def _check_python(file: str) -> list[tuple[str, str, str]]:
    """The place, signature and kind of each function."""
    from crosslane import _errors, _library

    try:
        declared = _library.load_file(file)
    except BaseException as error:
        raise _Unloadable(*_errors.describe(error, file)) from None
    return [(f"{_relative(item.file)}:{item.line}", item.signature, item.kind) for item in declared]


def _check_javascript(file: str) -> list[tuple[str, str, str]]:
    from crosslane import javascript_path

    host = javascript_path()
    if not host.exists():
        raise _Unloadable("Error", f"{host} is missing: the package was built without V8", "")
    return _checked([str(host), "check", file])


def _check_ruby(file: str) -> list[tuple[str, str, str]]:
    from crosslane import ruby_path

    if not ruby_path().exists():
        raise _Unloadable("Error", f"{ruby_path()} is missing: the package was built without Ruby", "")
    script = "Crosslane::Zygote.check(ARGV.first)"
    return _checked(
        ["ruby", f"-I{ruby_path()}", "-rcrosslane/zygote", "-e", script, str(Path(file).resolve())]
    )


def _checked(command: list[str]) -> list[tuple[str, str, str]]:
    """What a guest says of a file, as JSON on its last line."""
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise _Unloadable("Error", f"{command[0]}: {error.strerror}", "") from None
    if not run.stdout:
        raise _Unloadable("Error", f"{command[0]} gave up ({run.returncode}); see above", "")
    answer = json.loads(run.stdout.splitlines()[-1])
    if "failure" in answer:
        failure = answer["failure"]
        raise _Unloadable(failure["class"], failure["message"], failure["traceback"])
    return [
        (f"{_relative(item['file'])}:{item['line']}", item["signature"], _kind(item))
        for item in answer["functions"]
    ]


def _kind(item: dict[str, Any]) -> str:
    return "vectorized" if item["vectorized"] else "async" if item["asynchronous"] else "row"


def _plain_signature(signature: str) -> str:
    from crosslane import _guest

    name, parameters, returns = _guest.parse_signature(signature)
    return f"{name}({', '.join(f'{parameter} {kind}' for parameter, kind in parameters)}) -> {returns}"


def _relative(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


@main.command()
def doctor() -> None:
    """Says what works here, what is missing, and how to get it."""
    from crosslane._doctor import examine

    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    healthy = True
    for finding in examine():
        mark = {"good": "[green]✓[/]", "optional": "[yellow]-[/]", "bad": "[red]✗[/]"}[finding.state]
        text = escape(finding.text) + (f"\n[cyan]{escape(finding.advice)}[/]" if finding.advice else "")
        table.add_row(mark, finding.what, text)
        healthy = healthy and finding.state != "bad"
    _out.print(table)
    sys.exit(0 if healthy else 1)


@contextlib.contextmanager
def _shown_errors() -> Iterator[None]:
    """Errors of the database and of functions as text, without Python's traceback."""
    import duckdb

    from crosslane import DeclarationError

    try:
        yield
    except (duckdb.Error, DeclarationError) as error:
        text = str(error).removeprefix("Invalid Input Error: ")
        _err.print("[red]error:[/] " + escape(text), highlight=False)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
