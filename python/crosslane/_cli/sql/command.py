"""The command line: ``crosslane sql``, ``check``, ``doctor``, ``serve`` and ``bench``."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from crosslane import __version__

#: A query that takes longer gets a progress bar.
_PATIENCE = 1.0
_FETCH = 10_000
_INTERRUPTED = 130
#: A column that is this wide is still readable when its values are folded.
_READABLE = 20

_EXIT_CODES = """Exit codes: 0 if all went well, also if the reader of the output went away; 1 if a query, a function or a file
failed, or something is missing; 2 if the command was used wrongly; 130 after Ctrl-C."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # `_Group` says what happens then.
        raise BrokenPipeError


_out = _Console()
_err = _Console(stderr=True)


class _Group(click.Group):
    """Ends quietly when the reader of the output went away, and says what else is wrong with the output."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except (KeyboardInterrupt, RuntimeError) as error:
            # What DuckDB makes of a KeyboardInterrupt is a RuntimeError.
            if isinstance(error, RuntimeError) and str(error) != "Query interrupted":
                raise
            _err.print("interrupted")
            sys.exit(_INTERRUPTED)
        except BrokenPipeError:
            _discard_output()
            sys.exit(0)
        except OSError as error:
            _discard_output()
            _complain(str(error))
            sys.exit(1)


def _discard_output() -> None:
    # What is still in Python's buffer would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _complain(text: str, where: str = "") -> None:
    # A path is never cut by the end of a line.
    _err.print(f"[red]error[/]{where}: {escape(text)}", highlight=False, soft_wrap=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(__version__, prog_name="crosslane")
def main() -> None:
    """Functions written in Python, JavaScript, Ruby and Lua, called from SQL, on every core."""


@main.command(epilog=_EXIT_CODES)
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
@click.option("--read-only", is_flag=True, help="Open the database file for reading only.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "csv", "json", "jsonl", "markdown"]),
    default="table",
    show_default=True,
    help="How to print each result.",
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
    read_only: bool,
    style: str,
    rows: int,
    threads: int | None,
    stats: bool,
) -> None:
    """Runs QUERY on DuckDB, with the functions of the given files. Without QUERY it is read from the input.

    QUERY may be several statements; the result of each is printed. Values look as in DuckDB's own command line. In CSV a
    NULL is nothing and an empty string is "". In JSON, numbers are numbers, and those that JSON does not have are the
    strings "nan", "inf" and "-inf". Of columns with equal names, the later ones are called a_1, a_2, and so on. A
    table that does not fit the terminal is shown as a list of records.
    """
    if query is None:
        if sys.stdin.isatty():
            raise click.UsageError("give a query, or pipe one in")
        query = sys.stdin.read()
    if read_only and database == ":memory:":
        raise click.UsageError("--read-only needs a database file: --db FILE")
    import duckdb

    import crosslane

    started = time.perf_counter()
    with _shown_errors():
        # Tables are the database's, and never variables of this program.
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
        # DuckDB measures the progress; its own bar would go to the output, between the rows.
        con.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        run = _Run(con, statements, json=style in ("json", "jsonl"))
        count = 0
        try:
            for columns, values in run.results():
                count += _print(columns, values, style, rows)
        except KeyboardInterrupt:
            run.interrupt()
        finally:
            run.stop()
        if style == "table" and _err.is_terminal:
            seconds = time.perf_counter() - started
            _err.print(f"[dim]{count} row{'s' if count != 1 else ''} in {seconds:.2f} s[/dim]")
        if stats:
            _print_stats(con)
        with contextlib.suppress(duckdb.Error):
            con.close()


#: The columns of a result: names and types.
_Columns = list[tuple[str, str]]
#: A row of a result, as DuckDB prints its values.
_Row = tuple[str | None, ...]

#: A column without its values, for its type.
_TYPED = "CASE WHEN false THEN COLUMNS(*) END"
_PRINTED = "CAST(COLUMNS(*) AS VARCHAR)"
#: `to_json` knows all types, but has no short text for a FLOAT, and drops zeros of a DECIMAL.
_JSON = f"""CASE WHEN typeof(COLUMNS(*)) IN ('FLOAT', 'DOUBLE') OR typeof(COLUMNS(*)) LIKE 'DECIMAL(%)'
    THEN {_PRINTED} ELSE CAST(to_json(COLUMNS(*)) AS VARCHAR) END"""
#: The whole result of a statement that has none.
_NOTHING = ([("Count", "BIGINT")], [("Success", "BOOLEAN")])


def _with_texts(statements: list[Any]) -> Iterator[tuple[Any, str]]:
    """Each statement with its text, if it can be put into another one."""
    import duckdb

    whole = True
    for statement in statements:
        if statement.type == duckdb.StatementType.SELECT:
            yield statement, _without_end(statement.query) if whole else ""
            whole = True
        else:
            # DuckDB 1.5 makes several statements of a PIVOT: the first has no text, and the last another one.
            whole = whole and statement.query != ""
            yield statement, ""


def _without_end(statement: str) -> str:
    """A statement up to its semicolon."""
    import duckdb

    text = statement.encode()
    ends = (place for place, _ in duckdb.tokenize(statement) if text[place : place + 1] == b";")
    return text[: next(ends, None)].decode().strip()


class _Run:
    """Statements on a thread of their own, so that this one can draw, and listen to Ctrl-C."""

    def __init__(self, con: Any, statements: list[Any], *, json: bool) -> None:
        self._con = con
        self._statements = statements
        self._values = _JSON if json else _PRINTED
        self._cancel = con.cursor()
        self._before = dict(self._cancel.execute("SELECT function, rows FROM crosslane_stats()").fetchall())
        self._stopped = False
        #: For each result its columns, its rows in batches, and an empty batch. None or an error is the last item.
        self._made: queue.Queue[Any] = queue.Queue(maxsize=2)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for statement, text in _with_texts(self._statements):
                if self._stopped:
                    break
                for item in self._execute(statement, text) if text else self._execute_alone(statement):
                    self._made.put(item)
            self._made.put(None)
        except BaseException as error:
            self._made.put(error)

    def _execute(self, statement: Any, text: str) -> Iterator[_Columns | list[_Row]]:
        """Runs a statement inside one that makes text of its values."""
        import duckdb

        try:
            result = self._con.execute(f"SELECT {_TYPED}, {self._values} FROM (\n{text}\n)")
        except (duckdb.BinderException, duckdb.CatalogException):
            # Says the same about the text that was given.
            self._con.sql(statement)
            raise
        half = len(result.description) // 2
        yield [(name, str(kind)) for name, kind, *_ in result.description[:half]]
        while rows := result.fetchmany(_FETCH):
            yield [row[half:] for row in rows]
        yield []

    def _execute_alone(self, statement: Any) -> Iterator[_Columns | list[_Row]]:
        """Runs a statement that cannot stand in another."""
        result = self._con.sql(statement)
        if result is None:
            return
        kinds = [str(kind) for kind in result.types]
        if list(zip(result.columns, kinds)) in _NOTHING:
            return
        values = result.project(self._values)
        yield list(zip(values.columns, kinds))
        if rows := values.fetchall():
            yield rows
        yield []

    def results(self) -> Iterator[tuple[_Columns, Iterator[_Row]]]:
        """The columns and the rows of each result, as they come."""
        while columns := self._take():
            yield columns, chain.from_iterable(iter(self._take, []))

    def _take(self) -> Any:
        """Waits for the next item of the thread; draws progress if that takes long; raises the query's error."""
        item = self._wait_at_terminal() if _err.is_terminal else self._made.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _wait_at_terminal(self) -> Any:
        with contextlib.suppress(queue.Empty):
            return self._made.get(timeout=_PATIENCE)
        columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
        progress = Progress(*columns, console=_err, transient=True)
        task = progress.add_task("running", total=None)
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    return self._made.get(timeout=0.1)
                percentage = self._con.query_progress()
                # DuckDB does not know it for all queries, and what it has counted is not always the whole work.
                if 0 < percentage < 100:
                    progress.start()
                    progress.update(task, description="running", total=100, completed=percentage)
                elif rows := self._rows_so_far():
                    progress.start()
                    progress.update(task, description=f"running, {rows}", total=None)
        finally:
            progress.stop()

    def _rows_so_far(self) -> str:
        """The rows of the functions that the statements have used, as text; empty if there are none yet."""
        stats = self._cancel.execute("SELECT function, rows FROM crosslane_stats()").fetchall()
        more = ((name, rows - self._before.get(name, 0)) for name, rows in stats)
        return ", ".join(f"{name}: {count:,} rows" for name, count in more if count)

    def stop(self) -> None:
        """Ends what still runs."""
        self._stopped = True
        if self._thread.is_alive():
            self._cancel.execute("FROM crosslane_cancel()").fetchall()
        while self._thread.is_alive():
            # Once more, in case that it came just before a statement began.
            self._con.interrupt()
            with contextlib.suppress(queue.Empty):
                self._made.get(timeout=0.05)

    def interrupt(self) -> NoReturn:
        """Ends the query and the program; at once if Ctrl-C comes again."""
        try:
            self.stop()
            _err.print("interrupted")
            sys.stdout.flush()
        finally:
            # Nothing of the query is wanted any more, and its workers end with this process.
            os._exit(_INTERRUPTED)


#: Strings, which are left alone, and the numbers that JSON does not have.
_NO_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|(-?)(nan|inf)(?:inity)?', re.IGNORECASE)


def _json(value: str | None) -> str:
    """What DuckDB's `to_json` gave, as valid JSON."""
    if value is None:
        return "null"
    return _NO_JSON.sub(lambda found: f'"{found[1]}{found[2].lower()}"' if found[2] else found[0], value)


def _csv(value: str | None) -> str:
    if value is None:
        return ""
    if not value or any(mark in value for mark in ',"\r\n'):
        return '"' + value.replace('"', '""') + '"'
    return value


def _markdown(value: str | None) -> str:
    return "NULL" if value is None else value.replace("|", "\\|").replace("\n", "<br>")


def _print(columns: _Columns, rows: Iterator[_Row], style: str, most: int) -> int:
    """Prints a result and returns the number of its rows."""
    names = [name for name, _ in columns]
    if style == "csv":
        return _print_lines(",".join(map(_csv, row)) for row in chain([names], rows)) - 1
    if style == "markdown":
        lines = chain([names], [["---"] * len(names)], rows)
        return _print_lines(f"| {' | '.join(map(_markdown, line))} |" for line in lines) - 2
    if style in ("json", "jsonl"):
        keys = [json.dumps(name, ensure_ascii=False) for name in names]
        objects = (
            "{" + ", ".join(f"{key}: {_json(value)}" for key, value in zip(keys, row)) + "}" for row in rows
        )
        return _print_lines(objects) if style == "jsonl" else _print_array(objects)
    return _print_table(columns, rows, most)


def _print_lines(lines: Iterable[str]) -> int:
    count = 0
    for line in lines:
        sys.stdout.write(line + "\n")
        count += 1
    return count


def _print_array(values: Iterable[str]) -> int:
    count = 0
    for value in values:
        sys.stdout.write(("[\n  " if count == 0 else ",\n  ") + value)
        count += 1
    sys.stdout.write("\n]\n" if count else "[]\n")
    return count


_NUMERIC = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL")


def _print_table(columns: _Columns, rows: Iterator[_Row], most: int) -> int:
    shown = list(islice(rows, most or None))
    count = len(shown) + sum(1 for _ in rows)
    if [name for name, _ in columns] == ["explain_key", "explain_value"]:
        for _, plan in shown:
            sys.stdout.write(f"{plan}\n")
        return count
    table = Table(header_style="bold")
    for name, kind in columns:
        right = kind.split("(")[0].removeprefix("U") in _NUMERIC
        heading = Text.assemble(name, "\n", (kind.lower(), "dim not bold"))
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    cells = [[Text("NULL", "dim") if value is None else Text(value) for value in row] for row in shown]
    for row in cells:
        table.add_row(*row)
    if not _out.is_terminal or _fits(table):
        _print_whole(table)
    else:
        _print_records(columns, cells)
    if count > len(shown):
        _out.print(f"[dim]... {count - len(shown)} more rows (--rows 0 shows all)[/]", soft_wrap=True)
    return count


def _fits(table: Table) -> bool:
    """Whether the terminal has room for all columns, though some values may be folded."""
    wide = _out.options.update(max_width=sys.maxsize)
    widths = (
        max(Measurement.get(_out, wide, cell).maximum for cell in [column.header, *column.cells])
        for column in table.columns
    )
    return 1 + sum(3 + min(width, _READABLE) for width in widths) <= _out.width


def _print_whole(table: Table) -> None:
    """Prints a table; what is no terminal has lines of any length."""
    if _out.is_terminal:
        _out.print(table)
        return
    wide = _out.options.update(max_width=sys.maxsize)
    _Console(width=max(1, Measurement.get(_out, wide, table).maximum)).print(table)


def _print_records(columns: _Columns, rows: list[list[Text]]) -> None:
    """One line per value, under the number of the row."""
    for number, row in enumerate(rows, 1):
        record = Table(show_header=False, title=f"row {number}", title_justify="left", title_style="bold")
        record.add_column(overflow="fold")
        record.add_column(overflow="fold")
        for (name, kind), value in zip(columns, row):
            record.add_row(Text.assemble(name, " ", (kind.lower(), "dim")), value)
        _out.print(record)


def _print_stats(con: Any) -> None:
    cursor = con.cursor()
    rows = cursor.execute(
        "SELECT function, rows, calls, errors, retries, lanes_lost, fanned_out, guest_seconds, ns_per_row,"
        " copy_in_us, travel_us, copy_out_us FROM crosslane_stats() WHERE calls > 0"
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
    _print_whole(table)
    _out.print("[dim]lane per batch: copy in + both ways + copy out[/]", soft_wrap=True)
    lanes = cursor.execute("SELECT sum(booted), sum(waited) FROM crosslane_pools()").fetchall()
    if lanes and lanes[0][0] is not None:
        text = f"[dim]workers: {lanes[0][0]} started, {lanes[0][1]} times a query had to wait for one[/]"
        _out.print(text, soft_wrap=True)


@main.command(epilog=_EXIT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check(files: tuple[str, ...]) -> None:
    """Lists the functions of FILEs as SQL will see them, or says what is wrong and where."""
    table = Table(header_style="bold")
    for head in ("line", "signature", "kind"):
        table.add_column(head, justify="right" if head == "line" else "left", overflow="fold")
    failed = False
    checks = _checks()
    for file in files:
        examine = checks.get(Path(file).suffix, _check_python)
        try:
            _check_path(file)
            declared = examine(file)
        except _Unloadable as error:
            failed = True
            name, message, traceback = error.args
            _complain(f"{name}: {message}", f" in {escape(file)}")
            if traceback:
                _err.print(escape(traceback), highlight=False, soft_wrap=True)
            continue
        for place, signature, kind in declared:
            table.add_row(escape(place), escape(_plain_signature(signature)), kind)
    if table.row_count:
        _print_whole(table)
    if failed:
        sys.exit(1)


#: What tells the place, signature and kind of each function of a file.
_Check = Callable[[str], list[tuple[str, str, str]]]


def _checks() -> dict[str, _Check]:
    """How to check a file that is not Python's, by its suffix."""
    from crosslane._runtime.languages import guests

    checks: dict[str, _Check] = dict.fromkeys((".js", ".mjs", ".cjs", ".ts"), _check_guest)
    # Ruby looks for a relative path in its own folders.
    checks[".rb"] = lambda file: _check_guest(str(Path(file).resolve()))
    return checks | {suffix: _check_guest for guest in guests() for suffix in guest.suffixes}


class _Unloadable(Exception):
    """A file that cannot be loaded: its exception's class, message and traceback."""


def _check_path(file: str) -> None:
    """No engine loads a file whose path is no text."""
    try:
        str(Path(file).resolve()).encode()
    except UnicodeEncodeError:
        raise _Unloadable("ValueError", "its path is not UTF-8; rename it", "") from None


def _check_python(file: str) -> list[tuple[str, str, str]]:
    """The place, signature and kind of each function."""
    from crosslane._declare import library
    from crosslane._runtime import errors, forks

    try:
        declared = library.load_file(file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _Unloadable(*errors.describe(error)) from None
    _warn(file, forks.lost_threads())
    return _listed(file, [item.message() for item in declared])


def _check_guest(file: str) -> list[tuple[str, str, str]]:
    from crosslane._runtime.languages import command

    try:
        program = command(Path(file))
    except FileNotFoundError as error:
        raise _Unloadable("Error", str(error), "") from None
    return _checked(file, [*program, "check", file])


def _warn(file: str, lost: list[str]) -> None:
    """Says what threads of a file a fork would miss, if there are any."""
    from crosslane import _guest

    if lost:
        _err.print(f"[yellow]note[/] on {escape(file)}: {escape(_guest.note(lost))}", highlight=False)


def _checked(file: str, command: list[str]) -> list[tuple[str, str, str]]:
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
    _warn(file, answer.get("lost", []))
    return _listed(file, answer["functions"])


def _listed(file: str, functions: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The place, signature and kind of each function, if an engine would load them all."""
    from crosslane import _guest

    wrong = _guest.wrong_functions(file, json.dumps(functions))
    if wrong:
        raise _Unloadable(*wrong)
    return [_declared(function) for function in functions]


def _declared(function: dict[str, Any]) -> tuple[str, str, str]:
    """The place, signature and kind of a function, of which this is what the engine is told."""
    kind, calling = function.get("kind", "scalar"), function["calling"]
    said = ([kind] if kind != "scalar" else []) + ([calling] if kind == "scalar" or calling != "row" else [])
    return f"{_relative(function['file'])}:{function['line']}", function["signature"], ", ".join(said)


def _plain_signature(signature: str) -> str:
    from crosslane import _guest

    name, parameters, returns, variadic = _guest.parse_signature(signature)
    shown = [f"{parameter} {kind}" for parameter, kind in parameters]
    if variadic:
        shown[-1] = f"*{shown[-1]}"
    return f"{name}({', '.join(shown)}) -> {returns}"


def _relative(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


@main.command(epilog=_EXIT_CODES)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Says what works here, what is missing, and how to get it."""
    from crosslane._cli.doctor.examine import examine

    findings = list(examine())
    healthy = all(finding.state != "bad" for finding in findings)
    if as_json:
        report = {"version": __version__, "healthy": healthy, "findings": list(map(asdict, findings))}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        table = Table.grid(padding=(0, 1))
        table.add_column()
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for finding in findings:
            mark = {"good": "[green]✓[/]", "optional": "[yellow]-[/]", "bad": "[red]✗[/]"}[finding.state]
            text = escape(finding.text) + (f"\n[cyan]{escape(finding.advice)}[/]" if finding.advice else "")
            table.add_row(mark, finding.what, text)
        _print_whole(table)
    sys.exit(0 if healthy else 1)


def _settings(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        settings[name] = value
    return settings


def _token(file: str | None, option: str = "--token-file") -> str | None:
    """The token in an option's file, or else that of the environment."""
    if file is None:
        return os.environ.get("CROSSLANE_TOKEN") or None
    token = Path(file).read_text(encoding="utf-8").strip()
    if not token:
        raise click.BadParameter("the file is empty", param_hint=option)
    return token


@main.command(epilog=_EXIT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--listen",
    "addresses",
    multiple=True,
    metavar="ADDRESS",
    default=("crosslane://127.0.0.1",),
    help="crosslane://host:port, crosslane+tls://host:port or crosslane+unix:///path; may be given often. By default"
    " crosslane://127.0.0.1:7411.",
)
@click.option(
    "--flight",
    metavar="HOST:PORT",
    help="Speak Arrow Flight there, too, for Databend, RisingWave and others that call external functions so.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the token that clients must have; by default that of the variable CROSSLANE_TOKEN, if it is set.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False),
    help="The server's certificate, and those that vouch for it, in PEM.",
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False), help="The certificate's key, in PEM."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    help="Worker processes of each file at most; by default one per core.",
)
@click.option(
    "--connections", type=click.IntRange(min=1), default=1024, show_default=True, help="Connections at most."
)
@click.option(
    "--largest-batch",
    type=click.IntRange(1 << 16, 1 << 31),
    default=256 << 20,
    show_default=True,
    help="The most bytes of a batch, either way.",
)
@click.option(
    "--waiting-bytes",
    type=click.IntRange(min=1),
    help="The most bytes of messages that wait in the server, of all clients together; by default 1 GiB, or four times"
    " --largest-batch.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that calls have to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Show health, metrics and a live page there, over HTTP; port 7412 is ours. Without it, nothing is shown.",
)
@click.option(
    "--http-token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the token that who looks at metrics and the page must have.",
)
@click.option(
    "--http-public",
    is_flag=True,
    help="Let everybody who reaches HOST:PORT look, without a token and from other machines.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to write the lines of the log, which goes to stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["error", "warn", "info", "debug"]),
    default="info",
    show_default=True,
    help="What to log; debug also logs each connection.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A setting, as crosslane_set in SQL; may be given often.",
)
def serve(
    files: tuple[str, ...],
    addresses: tuple[str, ...],
    flight: str | None,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    workers: int,
    connections: int,
    largest_batch: int,
    waiting_bytes: int | None,
    drain: float,
    http: str | None,
    http_token_file: str | None,
    http_public: bool,
    log_format: str,
    log_level: str,
    settings: dict[str, str],
) -> None:
    """Offers the functions of FILEs to engines on this machine and others: CALL crosslane_attach('ADDRESS')."""
    from crosslane._runtime.languages import SERVER

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if http is None and (http_public or http_token_file is not None):
        raise click.UsageError("--http-token-file and --http-public belong to --http")
    if http_public and http_token_file is not None:
        raise click.UsageError("--http-token-file and --http-public exclude each other")
    http_token = None if http_token_file is None else _token(http_token_file, "--http-token-file")
    settings.setdefault("python", sys.executable)
    settings.setdefault("largest_batch", str(largest_batch))
    told = {
        "files": files,
        "listen": addresses,
        "token": _token(token_file),
        "tls": [tls_cert, tls_key] if tls_cert else None,
        "flight": flight,
        "settings": settings,
        "workers": workers,
        "connections": connections,
        "largest_batch": largest_batch,
        "waiting_bytes": waiting_bytes,
        "drain": drain,
        "log_format": log_format,
        "log_level": log_level,
        "http": http and {"address": http, "token": http_token, "public": http_public},
    }
    # In a file that has no name: others of this machine see a program's arguments.
    descriptor = os.memfd_create("crosslane-serve")
    os.write(descriptor, json.dumps(told).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.execv(SERVER, [str(SERVER)])


@main.group()
def bench() -> None:
    """Measures what runs."""


def _call(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:
    from crosslane._cli.load_test.measure import Call

    try:
        return Call.parse(given) if isinstance(given, str) else tuple(map(Call.parse, given))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _rates(_context: click.Context, _parameter: click.Parameter, given: str) -> list[int]:
    rates = [int(text) if text.strip().isdecimal() else 0 for text in given.split(",")]
    if not all(0 < rate < 1 << 32 for rate in rates):
        raise click.BadParameter(f"{given!r} is not calls per second, or several with commas between them")
    return rates


@bench.command("serve", epilog=_EXIT_CODES)
@click.argument("address")
@click.option(
    "--function",
    "light",
    required=True,
    metavar="CALL",
    callback=_call,
    help="What is called: NAME, or NAME(ARGUMENT, ...) with arguments in JSON.",
)
@click.option(
    "--heavy",
    multiple=True,
    metavar="CALL",
    callback=_call,
    help="What some calls call instead; may be given often.",
)
@click.option(
    "--heavy-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="The share of all heavy calls together.",
)
@click.option(
    "--qps",
    "rates",
    default="1000",
    show_default=True,
    metavar="N[,N...]",
    callback=_rates,
    help="Calls per second; several are measured one after the other.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="The measured time for each of --qps.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds before it, with the same load.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Connections, over which the calls are spread.",
)
@click.option("--poisson", is_flag=True, help="Calls come at random, and not at equal distances.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the server's token; by default that of the variable CROSSLANE_TOKEN, if it is set.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write all figures.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw latency over calls per second, as .svg or .png.",
)
def bench_serve(
    address: str,
    light: Any,
    heavy: Any,
    heavy_share: float,
    rates: list[int],
    seconds: float,
    warm_up: float,
    connections: int,
    poisson: bool,
    token_file: str | None,
    json_file: str | None,
    picture: str | None,
) -> None:
    """Measures how long calls of the server at ADDRESS take. Several servers have commas between them.

    Calls have one row each. Their times are planned before the first one, and latencies count from these times, so that a slow
    answer hides nothing of what would have waited for it. Calls that failed have no part in the latencies. Ctrl-C
    shows what was measured until then.
    """
    from crosslane._cli.load_test import measure

    if picture is not None:
        if Path(picture).suffix not in (".svg", ".png"):
            raise click.BadParameter("the name ends with .svg or .png", param_hint="--picture")
        if not measure.can_draw():
            _complain("--picture needs matplotlib: pip install matplotlib")
            sys.exit(1)
    plan = {
        "address": address,
        "light": light.told(),
        "heavy": [call.told() for call in heavy],
        "heavy_share": heavy_share,
        "rates": rates,
        "poisson": poisson,
        "seconds": seconds,
        "warm_up": warm_up,
        "patience": 5.0,
        "connections": connections,
    }
    steps: list[measure.Step] = []
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
    ended: Exception | KeyboardInterrupt | None = None
    try:
        with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as progress:
            task = progress.add_task("", total=len(rates))

            def advance(step: int, part: float) -> None:
                progress.update(task, description=f"{rates[step]:,} calls/s", completed=step + part)

            # Those that have ended are kept if a later one fails.
            for step in measure.measure({**plan, "token": _token(token_file)}, advance):
                steps.append(step)
    except (measure.Failed, KeyboardInterrupt) as error:
        ended = error
    if steps:
        _print_whole(measure.table(steps))
        failure = next((step["first_failure"] for step in steps if step["first_failure"]), None)
        if failure:
            _err.print(f"[red]the first failure[/]: {escape(failure)}", highlight=False, soft_wrap=True)
        if json_file is not None:
            report = {"version": __version__, **plan, "steps": steps}
            Path(json_file).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        if picture is not None:
            measure.draw(steps, f"{light.text} at {address}: latency from the planned time", Path(picture))
    if isinstance(ended, measure.Failed):
        _complain(str(ended))
        sys.exit(1)
    if ended is not None:
        raise ended


@contextlib.contextmanager
def _shown_errors() -> Iterator[None]:
    """Errors of the database and of functions as text, without Python's traceback."""
    import duckdb

    from crosslane import DeclarationError

    try:
        yield
    except (duckdb.Error, DeclarationError) as error:
        text = str(error).removeprefix("Invalid Input Error: ")
        _complain(text)
        sys.exit(1)
