"""Both engines with the same tables and functions, and the code that measures their queries."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow.compute as pc

import crosslane

from ..figures import ROOT, Line, Story
from ..report import ratio
from .functions import by_columns, scalar

FOLDER = Path(__file__).parent / "functions"
FUNCTIONS = FOLDER / "scalar.py"
#: JavaScript libraries of 1.4 MB, to boot isolates with.
LIBRARIES = ROOT / "bench" / "js" / "libraries.js"
ROUNDS = 11
#: The peer that most lines compare with.
PYTHON = "DuckDB's Python functions"

#: The tables of both engines, by their names.
TABLES = {
    "ints": "SELECT i FROM range(10000000) r(i)",
    "ints5": "SELECT i FROM range(5000000) r(i)",
    "pairs": "SELECT random() AS a, random() AS b FROM range(5000000)",
    "nulls": "SELECT CASE WHEN i % 10 > 0 THEN i END i FROM range(5000000) r(i)",
    "texts": "SELECT printf('row number %014d', i) AS s FROM range(2000000) r(i)",
    "rides": "SELECT i * 37 % 2500 / 100 AS miles, i % 365 AS day FROM range(5000000) r(i)",
    "mixed": "SELECT CASE WHEN i % 10 = 0 THEN 'é' ELSE 'R' END || printf('ow number %013d', i) AS s "
    "FROM range(2000000) r(i)",
    "labels": "SELECT s, row_number() OVER () AS i FROM texts",
    "dates": "SELECT DATE '1990-01-01' + (i % 15000)::INTEGER AS d FROM range(2000000) r(i)",
    "orders": "SELECT ['pear', 'plum', 'fig', 'lime'][1 + i % 4] AS word, i % 200 AS i FROM range(2000000) r(i)",
    "wide": "SELECT rpad(i || ' ', 1024, 'x') AS s FROM range(51200) r(i)",
    "doubles": "SELECT random() AS a, random() AS b FROM range(10000000)",
    "titles": "SELECT 'Hello, World: this is title ' || i AS s FROM range(1000000) r(i)",
    "grouped": "SELECT i, (hash(i) % 1000)::BIGINT AS few, (hash(i) % 1000000)::BIGINT AS many FROM range(5000000) r(i)",
    "quarter": "SELECT i FROM range(245760) r(i)",
    "small": "SELECT i FROM range(5000) r(i)",
    "waits": "SELECT i FROM range(10000) r(i)",
}


def milliseconds(times: list[float]) -> str:
    """The median of some seconds, as text."""
    return f"{statistics.median(times) * 1e3:.{0 if statistics.median(times) > 0.01 else 1}f} ms"


def microseconds(times: list[float]) -> str:
    """The median of some short times in seconds, as text."""
    median = statistics.median(times) * 1e6
    return f"{median:.1f} us" if median < 1000 else f"{median / 1000:.1f} ms"


def story_of(task: str, peer: str, ours: list[float], theirs: list[float]) -> Story:
    """A comparison for users: the medians of a task."""
    return Story(task, peer, statistics.median(ours), statistics.median(theirs))


def compared(
    name: str,
    against: str,
    ours: list[float],
    theirs: list[float],
    target: float,
    unit: str = "x",
    shown: Callable[[list[float]], str] = milliseconds,
    story: Story | None = None,
) -> Line:
    """Our seconds beside those of the other: how much faster we are, or slower if the unit is ``times``."""
    value = ratio(theirs, ours) if unit == "x" else ratio(ours, theirs)
    return Line(name, against, shown(ours), shown(theirs), value, target, unit, story)


class Bench:
    """Both engines with the same tables and functions."""

    def __init__(self) -> None:
        self.ours = crosslane.connect(
            functions=[
                FOLDER / name
                for name in (
                    "scalar.py",
                    "by_columns.py",
                    "costly.py",
                    "scalar.js",
                    "tables.py",
                    "aggregates.py",
                )
            ]
        )
        #: Rows per second of streams, by their depths.
        self.depths: dict[int, float] = {}
        self.theirs = duckdb.connect()
        for con in (self.ours, self.theirs):
            for name, query in TABLES.items():
                con.execute(f"CREATE TABLE {name} AS {query}")
        self._native()

    def _native(self) -> None:
        def wait(x: int) -> int:
            time.sleep(0.001)
            return x

        native = self.theirs.create_function
        native("plus_one", scalar.plus_one, ["BIGINT"], "BIGINT")
        native("plus_one_called", scalar.plus_one_called, ["BIGINT"], "BIGINT")
        native("plus_one_if", scalar.plus_one_if, ["BIGINT"], "BIGINT")
        native("sum_of_two", scalar.sum_of_two, ["DOUBLE", "DOUBLE"], "DOUBLE")
        native("bench_upper", scalar.bench_upper, ["VARCHAR"], "VARCHAR")
        native("stepped", by_columns.stepped, ["BIGINT"], "BIGINT")
        native("distance", by_columns.distance, ["DOUBLE"] * 4, "DOUBLE")
        native("fare", by_columns.fare, ["DOUBLE", "BIGINT"], "DOUBLE")
        native("three_operations", by_columns.three_operations, ["DOUBLE"] * 2, "DOUBLE")
        native("slug", by_columns.slug, ["VARCHAR"], "VARCHAR")
        native("label", by_columns.label, ["VARCHAR", "BIGINT"], "VARCHAR")
        native("day_of_year", by_columns.day_of_year, ["DATE"], "BIGINT")
        native("price", by_columns.price, ["VARCHAR", "BIGINT"], "DOUBLE")
        native("amount", by_columns.amount, ["DOUBLE"], "VARCHAR")
        native("plus_one_vectorized", lambda x: pc.add(x, 1), ["BIGINT"], "BIGINT", type="arrow")
        native("heavy", scalar.heavy, ["BIGINT"], "BIGINT")
        native("wait", wait, ["BIGINT"], "BIGINT")

    def seconds(self, con: duckdb.DuckDBPyConnection, query: str, threads: int) -> float:
        """The seconds that a query takes."""
        con.execute(f"SET threads = {threads}")
        started = time.perf_counter()
        con.execute(query).fetchall()
        return time.perf_counter() - started

    def alternate(self, runs: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
        """The seconds of runs that take turns. The first round is left out."""
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for round in range(rounds + 1):
            for name, run in runs.items():
                seconds = run()
                if round > 0:
                    taken[name].append(seconds)
        return taken

    def throughput(
        self,
        name: str,
        query: str,
        rows: int,
        targets: tuple[float | None, float | None],
        task: str | None = None,
        peer: str = PYTHON,
    ) -> Iterator[Line]:
        """Compares our rows per second at one and two threads with the peer's better thread count."""
        taken = self.alternate(
            {
                "theirs 1": lambda: self.seconds(self.theirs, query, 1),
                "ours 1": lambda: self.seconds(self.ours, query, 1),
                "theirs 2": lambda: self.seconds(self.theirs, query, 2),
                "ours 2": lambda: self.seconds(self.ours, query, 2),
            }
        )
        better = min("theirs 1", "theirs 2", key=lambda who: statistics.median(taken[who]))
        for threads, target in zip((1, 2), targets):
            if target:
                mine = taken[f"ours {threads}"]
                rates = [
                    f"{rows / statistics.median(times) / 1e6:.1f} M rows/s" for times in (mine, taken[better])
                ]
                plural = "s" if threads > 1 else ""
                label = f"{name}, {threads} thread{plural}"
                story = None
                if threads == 2 and task:
                    story = story_of(task, peer, mine, taken[better])
                yield Line(label, "DuckDB's own", *rates, ratio(taken[better], mine), target, story=story)
