"""Loads of files of functions, and loads of files that have changed."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator

import crosslane

from ..figures import RESULTS, Line
from .engines import ROUNDS, Bench, milliseconds

#: A typical function. A file has 100 of them.
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


def reloading(bench: Bench) -> Iterator[Line]:
    """A change of a file that is watched, until SQL calls the new function."""
    path = RESULTS / "changed.py"
    text = "import numpy\nfrom crosslane import udf\n@udf\ndef changed() -> int:\n    return {}\n"
    path.write_text(text.format(0))
    taken = []
    # The engine reports each reload.
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        con = crosslane.connect(functions=path, watch=True)
        for number in range(1, ROUNDS + 1):
            # A file that changes while it is loaded rests before its next load.
            time.sleep(0.3)
            path.write_text(text.format(number))
            begun = time.perf_counter()
            while con.execute("SELECT changed()").fetchall() != [(number,)]:
                time.sleep(0.005)
            taken.append(time.perf_counter() - begun)
        con.close()
    line = ("a changed file, until its new function answers", "a limit")
    yield Line(*line, milliseconds(taken), "1 s", statistics.median(taken), 1, "s")
