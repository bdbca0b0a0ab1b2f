"""Functions that cost something, with `memoize`, with `cache`, and without."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import count

import duckdb

import crosslane

from ..figures import Line
from .engines import FOLDER, Bench, compared, milliseconds
from .functions.cached import CACHE

#: Rows that are enough to measure a function of 100 us.
FEW = 20_000
MANY = 1_000_000


def memoize(bench: Bench) -> Iterator[Line]:
    """A function of 100 us with `memoize`, and the same function called for each row."""
    # In each round the arguments are new, so that nothing is kept from the round before.
    rounds = count()

    def query(function: str, rows: int, distinct: int) -> float:
        first = next(rounds) * MANY
        text = f"SELECT sum({function}({first} + i % {distinct})) FROM range({rows}) r(i)"
        return bench.seconds(bench.ours, text, 2)

    taken = bench.alternate(
        {
            "called": lambda: query("works_each", FEW, FEW),
            "different": lambda: query("works_kept", FEW, FEW),
            "repeated": lambda: query("works_kept", MANY, 1000),
        }
    )
    called = statistics.median(taken["called"]) * MANY / FEW
    line = ("1 million rows of 100 us, 1,000 distinct, memoize", "called for each row")
    texts = (milliseconds(taken["repeated"]), f"{called:.0f} s, from {FEW:,} rows")
    yield Line(*line, *texts, called / statistics.median(taken["repeated"]), 100)
    line = ("memoize, where all rows differ", "without memoize")
    yield compared(*line, taken["different"], taken["called"], 0.95)


def cache(bench: Bench) -> Iterator[Line]:
    """A function of 100 us whose results are in a file, and the same function called for each row."""
    rounds = count()
    for file in CACHE.parent.glob(f"{CACHE.name}*"):
        file.unlink()
    crosslane.load(bench.ours, FOLDER / "cached.py")

    def query(con: duckdb.DuckDBPyConnection, function: str, first: int) -> float:
        return bench.seconds(con, f"SELECT sum({function}({first} + i)) FROM range({FEW}) r(i)", 2)

    def found() -> float:
        with crosslane.connect(functions=[FOLDER / "cached.py"]) as con:
            return query(con, "works_cached", MANY)

    # From here on, the rows of `found` are in the file.
    query(bench.ours, "works_cached", MANY)
    taken = bench.alternate(
        {
            "called": lambda: query(bench.ours, "works_each", MANY),
            "new": lambda: query(bench.ours, "works_cached", (2 + next(rounds)) * MANY),
            "found": found,
        }
    )
    for name, line, target in (
        ("new", f"cache, {FEW:,} new rows of 100 us", 0.95),
        ("found", f"cache, {FEW:,} rows of 100 us that are in the file", 10),
    ):
        yield compared(line, "without cache", taken[name], taken["called"], target)
