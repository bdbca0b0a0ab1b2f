"""The shared code of the soaks: functions with known results, queries that check rows, and the count of
findings."""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import textwrap
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from re import Pattern

import duckdb
from rich.console import Console
from rich.table import Table

#: Rows of the table ``numbers``.
ROWS = 250_000
#: A query that takes longer hangs.
HANG = 90.0
#: The findings: events that must not happen.
BAD = ("wrong rows", "unexpected errors", "hangs", "orphans", "leaks")
#: All processes below this one inherit this mark, even when their parents have ended.
MARK = os.environ.get("CROSSLANE_SOAK") or str(uuid.uuid4())

#: The same functions in each language. Their names begin with the language.
SOURCES = {
    "py": """
        from crosslane import udf
        import time
        @udf
        def py_next(x: int) -> int: return x + 1
        @udf
        def py_text(x: int) -> str: return f"{x}/{x * 7}" if x % 5 else "x" * (x % 300)
        @udf
        def py_list(x: int) -> list[int]: return [x, -x][: x % 3]
        @udf(on_error="null")
        def py_some(x: int) -> int: return x if x % 7 else 1 // 0
        @udf(retries=20)
        def py_sure(x: int) -> int:
            time.sleep(0.0002)
            return x * 3
    """,
    "js": """
        udf("js_next(x BIGINT) -> BIGINT", (x) => BigInt(x) + 1n);
        udf("js_text(x BIGINT) -> VARCHAR", (x) => Number(x) % 5 ? `${x}/${Number(x) * 7}` : "x".repeat(Number(x) % 300));
        udf("js_list(x BIGINT) -> BIGINT[]", (x) => [Number(x), -Number(x)].slice(0, Number(x) % 3));
        udf("js_some(x BIGINT) -> BIGINT", { on_error: "null" }, (x) => { if (Number(x) % 7) return x; throw Error("seven"); });
        udf("js_sure(x BIGINT) -> BIGINT", { retries: 20 }, (x) => { let y = 0; for (let i = 0; i < 3e4; i++) y += i; return y ? Number(x) * 3 : 0; });
    """,
    "rb": """
        udf("rb_next(x BIGINT) -> BIGINT") { |x| x + 1 }
        udf("rb_text(x BIGINT) -> VARCHAR") { |x| x % 5 == 0 ? "x" * (x % 300) : "#{x}/#{x * 7}" }
        udf("rb_list(x BIGINT) -> BIGINT[]") { |x| [x, -x].first(x % 3) }
        udf("rb_some(x BIGINT) -> BIGINT", on_error: "null") { |x| x % 7 == 0 ? raise("seven") : x }
        udf("rb_sure(x BIGINT) -> BIGINT", retries: 20) { |x| sleep 0.0002; x * 3 }
    """,
}

#: The result of each function, and the most rows of a query with it.
EXPECTED: dict[str, tuple[Callable[[int], object], int]] = {
    "next": (lambda x: x + 1, ROWS),
    "text": (lambda x: f"{x}/{x * 7}" if x % 5 else "x" * (x % 300), 60_000),
    "list": (lambda x: [x, -x][: x % 3], 30_000),
    "some": (lambda x: x if x % 7 else None, 30_000),
    "sure": (lambda x: x * 3, 1_000),
}


@dataclass
class Tally:
    """Counts of events."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: Counter[str] = field(default_factory=Counter)
    #: The first ten findings.
    findings: list[str] = field(default_factory=list)
    #: The time at which each thread began its query.
    running: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, what: str, count: int = 1) -> None:
        """Counts an event."""
        with self.lock:
            self.counts[what] += count

    def found(self, what: str, text: str) -> None:
        """Counts a finding."""
        with self.lock:
            self.counts[what] += 1
            if len(self.findings) < 10:
                self.findings.append(f"{what}: {text}")


def arguments(text: str) -> tuple[float, int]:
    """The seconds of a run and the seed of its choices, from the command line. The text begins with what it does."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of an earlier run")
    options = parser.parse_args()
    return options.seconds, random.randrange(1 << 32) if options.seed is None else options.seed


def write_sources(folder: Path, sources: dict[str, str]) -> list[Path]:
    """Writes the files of functions."""
    paths = [folder / f"soak.{language}" for language in sources]
    for path, text in zip(paths, sources.values()):
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return paths


def ask(
    con: duckdb.DuckDBPyConnection, tally: Tally, sql: str, explained: Pattern[str]
) -> list[tuple[object, ...]] | None:
    """The rows of a query. None if it ended with an error, which an attack must explain."""
    name = threading.current_thread().name
    tally.running[name] = (time.monotonic(), sql)
    try:
        rows = con.execute(sql).fetchall()
    except duckdb.Error as error:
        if explained.search(str(error)):
            tally.add("expected errors")
        else:
            tally.found("unexpected errors", f"{sql}: {error}")
        return None
    finally:
        del tally.running[name]
        tally.add("queries")
    tally.add("rows", len(rows))
    return rows


def query_scalar(
    con: duckdb.DuckDBPyConnection, tally: Tally, chance: random.Random, explained: Pattern[str]
) -> None:
    """Runs a query with a scalar function, and checks its rows."""
    kind, language = chance.choice(list(EXPECTED)), chance.choice(list(SOURCES))
    expected, most = EXPECTED[kind]
    first = chance.randrange(ROWS)
    count = min(int(most ** chance.random()), ROWS - first)
    sql = f"SELECT i, {language}_{kind}(i) FROM numbers WHERE i >= {first} AND i < {first + count}"
    rows = ask(con, tally, sql, explained)
    if rows is None:
        return
    if len(rows) != count:
        tally.found("wrong rows", f"{sql}: {len(rows)} rows instead of {count}")
    for i, result in rows:
        # A row whose worker was killed is NULL, like a row that raised.
        if result != expected(i) and not (kind == "some" and result is None):
            tally.found("wrong rows", f"{sql}: {result!r} for {i}")


def make_numbers(con: duckdb.DuckDBPyConnection) -> None:
    """Makes the table that all queries read."""
    con.execute(f"CREATE TABLE numbers AS SELECT i FROM range({ROWS}) r(i)")


def mark() -> None:
    """Marks all processes that this one starts later."""
    os.environ["CROSSLANE_SOAK"] = MARK


def marked() -> list[int]:
    """The living processes below this one, at any depth. The first process of a namespace does not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and f"CROSSLANE_SOAK={MARK}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return [pid for pid in found if pid not in (os.getpid(), os.getppid())]


def watch(tally: Tally) -> None:
    """Ends the program when a query hangs, and prints the stacks of all threads."""
    while True:
        time.sleep(1)
        for name, (began, sql) in list(tally.running.items()):
            if time.monotonic() - began > HANG:
                tally.found("hangs", f"{name}: {sql}")
                report(tally)
                faulthandler.dump_traceback()
                os._exit(1)


def wait_for_none(find: Callable[[], list[int]], seconds: float) -> list[int]:
    """Waits until the check finds nothing any more. Returns what it still finds after this time."""
    end = time.monotonic() + seconds
    while (left := find()) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def report(tally: Tally, growth: dict[str, str] | None = None) -> None:
    """Prints the events and the findings."""
    table = Table("what", "count", title="soak")
    for what in sorted(set(tally.counts).difference(BAD)):
        table.add_row(what, f"{tally.counts[what]:,}")
    table.add_section()
    for what in BAD:
        table.add_row(what, f"{tally.counts[what]:,}", style="red" if tally.counts[what] else "green")
    for what, text in (growth or {}).items():
        table.add_row(what, text)
    console = Console()
    console.print(table)
    for text in tally.findings:
        console.print(text, style="red", markup=False)
