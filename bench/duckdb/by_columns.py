"""Functions as people write them, which are evaluated by columns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import crosslane

from ..figures import RESULTS, Line
from ..report import ratio
from .engines import Bench, milliseconds

#: A function as people write them, of which a file has 100.
FUNCTION = """
@udf({options})
def fare_{number}(miles: float, day: int) -> float:
    total = 2.5 + 1.75 * miles
    if day % 7 in (5, 6):
        total = total * 1.2
    elif miles > {number}:
        total = total - 1
    return round(total, 2)
"""


def by_columns(bench: Bench) -> Iterator[Line]:
    """Functions of numbers and texts, as people write them."""
    for name, call, table, rows, target in (
        ("a local variable and an if", "bit_xor(stepped(i))", "ints5", 5_000_000, 20),
        ("great-circle distance", "sum(distance(a * 90, b * 180, b * 90, a * 180))", "pairs", 5_000_000, 10),
        ("a fare", "sum(fare(miles, day))", "rides", 5_000_000, 12),
        ("two doubles, three operations", "sum(three_operations(a, b))", "pairs", 5_000_000, 25),
        ("a slug of 25 bytes", "sum(strlen(slug(s)))", "texts", 2_000_000, 15),
        ("a slug, one in ten is not ASCII", "sum(strlen(slug(s)))", "mixed", 2_000_000, 5),
        ("an f-string of a text and an int", "sum(strlen(label(s, i)))", "labels", 2_000_000, 10),
        ("days of a year, of a date", "sum(day_of_year(d))", "dates", 2_000_000, 10),
        ("a price of a dict", "sum(price(word, i))", "orders", 2_000_000, 10),
        ("an amount with commas", "sum(strlen(amount(a)))", "pairs", 5_000_000, 5),
    ):
        yield from bench.throughput(
            f"row function, {name}", f"SELECT {call} FROM {table}", rows, (None, target)
        )


def leaving(bench: Bench) -> Iterator[Line]:
    """A function whose rows all leave, beside the same function that is never evaluated by columns."""
    runs = {
        name: lambda name=name: bench.seconds(bench.ours, f"SELECT bit_xor({name}(i)) FROM ints5", 2)
        for name in ("always_leaves", "always_called")
    }
    taken = bench.alternate(runs)
    texts = (milliseconds(taken[name]) for name in ("always_leaves", "always_called"))
    line = ("a function whose rows all leave", "only called")
    yield Line(*line, *texts, ratio(taken["always_called"], taken["always_leaves"]), 0.97)


def loading(bench: Bench) -> Iterator[Line]:
    """The load of a file of 100 functions, with their programs over columns and without."""
    files = {"by columns": "", "called": "inline=False"}
    for name, options in files.items():
        functions = "".join(FUNCTION.format(options=options, number=number) for number in range(100))
        path = RESULTS / f"hundred_{name.replace(' ', '_')}.py"
        path.write_text(f"from crosslane import udf\n{functions}")

    def load(name: str) -> float:
        with crosslane.connect() as con:
            begun = time.perf_counter()
            crosslane.load(con, RESULTS / f"hundred_{name.replace(' ', '_')}.py")
            return time.perf_counter() - begun

    taken = bench.alternate({name: lambda name=name: load(name) for name in files})
    line = ("load of a file of 100 functions", "functions that are only called")
    texts = (milliseconds(taken[name]) for name in files)
    medians = [statistics.median(taken[name]) for name in files]
    yield Line(*line, *texts, medians[0] / medians[1], 1.1, "times")
