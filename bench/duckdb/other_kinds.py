"""Table functions, aggregates and streams in Python."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import duckdb
import numpy
import pyarrow as pa
import pyarrow.compute as pc

import crosslane

from ..figures import Line
from ..report import ratio
from .engines import ROUNDS, Bench, compared, milliseconds
from .functions import aggregates as sums
from .functions import tables as generators


def tables(bench: Bench) -> Iterator[Line]:
    """Python generators of rows and of batches. DuckDB reads the same ones through a pyarrow reader."""
    rows = 5_000_000
    for name, read, target in (
        ("some_rows", generators.read_rows, 2),
        ("some_batches", generators.read_batches, 0.9),
    ):
        query = "SELECT bit_xor(i), max(s) FROM "

        def theirs(read: Callable[[int], object] = read, query: str = query) -> float:
            bench.theirs.register("reader", read(rows))
            return bench.seconds(bench.theirs, f"{query} reader", 2)

        def ours(name: str = name, query: str = query) -> float:
            return bench.seconds(bench.ours, f"{query} {name}({rows})", 2)

        taken = bench.alternate({"theirs": theirs, "ours": ours}, 7)
        line = (
            f"Python table function, {name.removeprefix('some_')}, 2 threads",
            "the generator in pyarrow's reader",
        )
        yield compared(*line, taken["ours"], taken["theirs"], target)
    limit = statistics.median(bench.seconds(bench.ours, "FROM billion() LIMIT 10", 2) for _ in range(ROUNDS))
    line = ("LIMIT 10 of a billion rows", "a limit")
    yield Line(*line, milliseconds([limit]), "the median", limit * 1e3, 50, "ms")


def aggregates(bench: Bench) -> Iterator[Line]:
    """Sums of groups: beside pandas, beside a loop in Python, and many groups beside few."""
    expected = bench.theirs.execute("SELECT sum(i) FROM grouped").fetchall()[0][0]

    def ours(function: str, groups: str) -> float:
        query = f"SELECT sum(s) FROM (SELECT {function}(i) AS s FROM grouped GROUP BY {groups})"
        bench.ours.execute("SET threads = 2")
        started = time.perf_counter()
        ((total,),) = bench.ours.execute(query).fetchall()
        seconds = time.perf_counter() - started
        assert total == expected, f"{function} by {groups}: {total} is not {expected}"
        return seconds

    def theirs(sum_all: Callable[[duckdb.DuckDBPyConnection], int]) -> float:
        bench.theirs.execute("SET threads = 2")
        started = time.perf_counter()
        total = sum_all(bench.theirs.execute("SELECT few, i FROM grouped"))
        seconds = time.perf_counter() - started
        assert total == expected, f"the peer: {total} is not {expected}"
        return seconds

    def by_pandas(rows: duckdb.DuckDBPyConnection) -> int:
        return int(rows.df().groupby("few")["i"].apply(lambda x: x.sum()).sum())

    def by_python(rows: duckdb.DuckDBPyConnection) -> int:
        return sums.in_python(rows.fetchall())

    for name, function, against, peer, target in (
        ("vectorized", "sum_of_columns", "pandas, groupby-apply", by_pandas, 2),
        ("row-wise", "sum_of_rows", "the loop in Python", by_python, 1.5),
    ):
        taken = bench.alternate(
            {
                "theirs": lambda peer=peer: theirs(peer),
                "ours": lambda function=function: ours(function, "few"),
            },
            7,
        )
        line = (f"Python aggregate, {name}, 1,000 groups", f"{against}, rows exported")
        yield compared(*line, taken["ours"], taken["theirs"], target)
    taken = bench.alternate(
        {groups: lambda groups=groups: ours("sum_of_rows", groups) for groups in ("few", "many")}, 5
    )
    line = ("Python aggregate, row-wise, 1,000,000 groups", "1,000 groups")
    yield compared(*line, taken["many"], taken["few"], 3, "times")


def streams(bench: Bench) -> Iterator[Line]:
    """A light function of a stream, by how many batches wait for its worker."""
    rows = 20_000_000
    table = pa.table({"i": numpy.arange(rows)})

    def run(depth: int) -> float:
        with crosslane.map(table, sums.light, depth=depth, lanes=1) as results:
            batches = iter(results)
            # The worker starts before the first one.
            first = next(batches)
            started = time.perf_counter()
            total, count = pc.sum(first["i"]).as_py(), first.num_rows
            for batch in batches:
                total += pc.sum(batch["i"]).as_py()
                count += batch.num_rows
        seconds = time.perf_counter() - started
        assert (total, count) == (rows * (rows + 1) // 2, rows), f"depth {depth}: {total} of {count} rows"
        return seconds

    taken = bench.alternate({str(depth): lambda depth=depth: run(depth) for depth in (1, 2, 4, 8)}, 7)
    bench.depths = {int(depth): rows / statistics.median(times) for depth, times in taken.items()}
    texts = (f"{bench.depths[depth] / 1e6:.0f} M rows/s" for depth in (2, 1))
    line = ("crosslane.map, light function, one worker, depth 2", "depth 1")
    yield Line(*line, *texts, ratio(taken["1"], taken["2"]), 1.3)
