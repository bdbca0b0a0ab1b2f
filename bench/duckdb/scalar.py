"""Scalar functions in Python: throughput, what a lane and a trace add, and first calls."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

import crosslane

from ..figures import ROOT, Line
from ..report import ratio
from .engines import FOLDER, FUNCTIONS, PYTHON, ROUNDS, Bench, compared, milliseconds, story_of

#: A program that calls over lanes which answer at once.
WORKERS = ROOT / "target" / "release" / "examples" / "workers"


def bigint(bench: Bench) -> Iterator[Line]:
    """A row function on BIGINT."""
    query = "SELECT bit_xor(plus_one(i)) FROM ints5"
    task = "5 million integers,\nPython, row by row"
    yield from bench.throughput("row function, bigint", query, 5_000_000, (1.7, 25), task)


def varchar(bench: Bench) -> Iterator[Line]:
    """A row function on VARCHAR."""
    query = "SELECT sum(strlen(bench_upper(s))) FROM texts"
    task = "2 million texts,\nPython, row by row"
    yield from bench.throughput("row function, varchar", query, 2_000_000, (1.7, 5), task)


def wide(bench: Bench) -> Iterator[Line]:
    """A row function on VARCHAR of 1 KB. A chunk of them is larger than a ring."""
    query = "SELECT sum(strlen(bench_upper(s))) FROM wide"
    yield from bench.throughput("row function, 1 KB varchar", query, 51_200, (None, 3))


def rows(bench: Bench) -> Iterator[Line]:
    """Row functions with statements, with NULLs, and with two columns."""
    for name, call, table, target in (
        ("called for each row", "plus_one_called(i)", "ints5", 3.5),
        ("with an if", "plus_one_if(i)", "ints5", 15),
        ("10 % NULLs", "plus_one(i)", "nulls", 20),
        ("two doubles", "sum_of_two(a, b)::BIGINT", "pairs", 15),
    ):
        query = f"SELECT bit_xor({call}) FROM {table}"
        yield from bench.throughput(f"row function, {name}", query, 5_000_000, (None, target))


def vectorized(bench: Bench) -> Iterator[Line]:
    """A vectorized function."""
    query = "SELECT bit_xor(plus_one_vectorized(i)) FROM ints"
    task, peer = "10 million integers,\nPython with pyarrow", "DuckDB's Arrow functions"
    yield from bench.throughput("vectorized, bigint", query, 10_000_000, (None, 2.5), task, peer)


def dataframes(bench: Bench) -> Iterator[Line]:
    """A column through `crosslane.Functions`, and the same query in its DuckDB."""
    rows = 10_000_000
    column = pa.chunked_array([pa.array(range(rows))])

    def seconds(run: Callable[[], pa.ChunkedArray]) -> float:
        started = time.perf_counter()
        result = run()
        taken = time.perf_counter() - started
        total = pc.sum(result).as_py()
        assert total == rows * (rows + 1) // 2, f"the sum is {total}"
        return taken

    with crosslane.Functions(FUNCTIONS, threads=2) as fns, fns.cursor() as con:
        con.register("integers", pa.table({"i": column}))
        query = "SELECT plus_one(i) FROM integers"
        runs = {
            "ours": lambda: seconds(lambda: fns.plus_one(column)),
            "theirs": lambda: seconds(lambda: con.sql(query).to_arrow_table().column(0)),
        }
        taken = bench.alternate(runs)
    line = ("crosslane.Functions, 10 million integers", "the query in DuckDB")
    yield compared(*line, taken["ours"], taken["theirs"], 1.1, "times")


def scaling(bench: Bench) -> Iterator[Line]:
    """A heavy function from one thread to two."""
    query = "SELECT bit_xor(heavy(i)) FROM quarter"
    runs = {str(n): lambda n=n: bench.seconds(bench.ours, query, n) for n in (1, 2)}
    taken = bench.alternate(runs, 5)
    yield compared("20 us function, 1 to 2 threads", "itself", taken["2"], taken["1"], 1.85)


def fan_out(bench: Bench) -> Iterator[Line]:
    """A heavy function over a small table."""
    query = "SELECT bit_xor(heavy(i)) FROM small"
    runs = {
        "theirs": lambda: bench.seconds(bench.theirs, query, 2),
        "ours": lambda: bench.seconds(bench.ours, query, 2),
    }
    taken = bench.alternate(runs, 3 * ROUNDS)
    times = (taken["ours"], taken["theirs"])
    story = story_of("a small table, Python\nfunction of 20 us", PYTHON, *times)
    yield compared("20 us function, 5,000 rows", "DuckDB's own", *times, 1.8, story=story)


def waiting(bench: Bench) -> Iterator[Line]:
    """An async function that waits."""
    query = "SELECT bit_xor(wait(i)) FROM waits"
    theirs = bench.seconds(bench.theirs, query, 2)
    ours = bench.alternate({"ours": lambda: bench.seconds(bench.ours, query, 2)})["ours"]
    line = ("1 ms of waiting, async", "DuckDB's own", milliseconds(ours), milliseconds([theirs]))
    story = story_of("10,000 requests\nof 1 ms, async", PYTHON, ours, [theirs])
    yield Line(*line, theirs / statistics.median(ours), 40, story=story)


def _spans(bench: Bench, function: str) -> list[float]:
    row = bench.ours.execute(
        "SELECT calls, copy_in_us, travel_us, copy_out_us FROM crosslane_stats() WHERE function = ?",
        [function],
    ).fetchall()[0]
    calls = row[0]
    return [calls, *((mean or 0) * calls for mean in row[1:])]


def spans(bench: Bench) -> Iterator[Line]:
    """The time that a lane adds to a chunk of 2,048 rows."""
    for name, function, query, target in (
        ("bigint", "plus_one", "SELECT bit_xor(plus_one(i)) FROM ints5", 6),
        ("25-byte varchar", "bench_upper", "SELECT sum(strlen(bench_upper(s))) FROM texts", 20),
    ):
        for threads in (1, 2):
            totals = []
            for _ in range(9):
                before = _spans(bench, function)
                bench.seconds(bench.ours, query, threads)
                after = _spans(bench, function)
                calls = after[0] - before[0]
                totals.append([(b - a) / calls for a, b in zip(before[1:], after[1:])])
            spans = [statistics.median(values) for values in zip(*totals)]
            detail = " + ".join(f"{span:.1f}" for span in spans)
            label = f"a lane's own time, {name}, {threads} thread{'s' if threads > 1 else ''}"
            yield Line(label, "a limit", detail, "in+ways+out", sum(spans), target, "us")


def tracing(bench: Bench) -> Iterator[Line]:
    """Queries that are traced, and the same queries without a trace."""

    def traced(query: str) -> float:
        bench.ours.execute("CALL crosslane_trace(true)")
        try:
            return bench.seconds(bench.ours, query, 2)
        finally:
            bench.ours.execute("CALL crosslane_trace(false)")

    for name, call in (("called for each row", "plus_one_called(i)"), ("by columns", "plus_one(i)")):
        query = f"SELECT bit_xor({call}) FROM ints5"
        runs = {"on": lambda q=query: traced(q), "off": lambda q=query: bench.seconds(bench.ours, q, 2)}
        taken = bench.alternate(runs, 3 * ROUNDS)
        line = (f"row function, {name}, traced", "not traced")
        yield compared(*line, taken["on"], taken["off"], 1.03, "times")


def workers(bench: Bench) -> Iterator[Line]:
    """The cost of a call with 64 workers, over lanes that answer at once."""
    cargo = ["cargo", "build", "--locked", "--release", "--quiet"]
    subprocess.run([*cargo, "-p", "crosslane", "--example", "workers"], cwd=ROOT, check=True)

    def cost(workers: int) -> float:
        command = [WORKERS, str(workers), str(640_000 // workers)]
        return float(subprocess.run(command, check=True, capture_output=True).stdout) / 1e9

    taken = bench.alternate({"one": lambda: cost(1), "many": lambda: cost(64)})
    texts = (f"{statistics.median(taken[name]) * 1e9:.0f} ns" for name in ("many", "one"))
    yield Line(
        "a call's cost, 64 workers", "one worker", *texts, ratio(taken["many"], taken["one"]), 2, "times"
    )


def first_call(bench: Bench) -> Iterator[Line]:
    """The first call on a warm pool, beside a cold start of Python."""

    def cold() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import pyarrow"], check=True)
        return time.perf_counter() - started

    def warm() -> float:
        con = crosslane.connect(functions=FUNCTIONS)
        while con.execute("SELECT min(idle) FROM crosslane_pools()").fetchall()[0][0] < 1:
            time.sleep(0.01)
        time.sleep(0.2)
        started = time.perf_counter()
        con.execute("SELECT plus_one(i) FROM range(1) r(i)").fetchall()
        taken = time.perf_counter() - started
        con.close()
        return taken

    taken = bench.alternate({"cold": cold, "warm": warm}, 7)
    yield compared("first call, warm pool", "cold import pyarrow", taken["warm"], taken["cold"], 20)


def stateful(bench: Bench) -> Iterator[Line]:
    """The first query of a function with a long set-up on a warm pool, beside one without set-up."""

    def first_query(function: str) -> float:
        con = crosslane.connect(functions=FOLDER / "stateful.py")
        ready = "SELECT bool_and(idle >= 1 AND busy = 0) FROM crosslane_pools()"
        while not con.execute(ready).fetchall()[0][0]:
            time.sleep(0.01)
        taken = bench.seconds(con, f"SELECT bit_xor({function}(i)) FROM range(1000000) r(i)", 2)
        con.close()
        return taken

    taken = bench.alternate(
        {name: lambda name=name: first_query(name) for name in ("stateful", "stateless")}, 5
    )
    # Both functions take the same time, within a tenth.
    line = ("set-up of 1 s, warm pool: its first query", "without set-up")
    yield compared(*line, taken["stateful"], taken["stateless"], 0.9)
