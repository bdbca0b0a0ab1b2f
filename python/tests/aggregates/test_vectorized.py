"""Vectorized aggregates: each call gets a column of a group's values."""

from __future__ import annotations

import duckdb
import pytest

from ..conftest import IS_NEWEST, Load, error, eventually, value
from .test_aggregates import QUERIES, at_rest

VECTORS = """
from crosslane import udaf
from typing import Annotated
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

@udaf(vectorized=True)
class Sums:
    def __init__(self):
        self.sum = 0
    def update(self, x: pa.Int64Array) -> None:
        assert len(x) > 0 and x.null_count == 0
        self.sum += pc.sum(x).as_py()
    def merge(self, other) -> None:
        self.sum += other.sum
    def finish(self) -> int:
        return self.sum

@udaf("lists(x VARCHAR[]) -> VARCHAR[][]", vectorized=True)
class Lists:
    def __init__(self):
        self.all = []
    def update(self, x):
        self.all += x.to_pylist()
    def merge(self, other):
        self.all += other.all
    def finish(self):
        return self.all

@udaf(vectorized=True, on_error="null", retries=1)
class Positive:
    def __init__(self):
        self.sum = 0
    def update(self, x: Annotated[np.ndarray, "BIGINT"], y: Annotated[np.ndarray, "DOUBLE"]) -> None:
        if x[0] == -1:
            raise ValueError("minus one")
        self.sum += float((x * y).sum())
    def merge(self, other) -> None:
        self.sum += other.sum
    def finish(self) -> float:
        return self.sum
"""


def test_vectorized_aggregates(
    totals: duckdb.DuckDBPyConnection, load: Load, subtests: pytest.Subtests
) -> None:
    load(VECTORS)
    totals.execute("PRAGMA verify_parallelism")
    for threads in (1, 4) if IS_NEWEST else (4,):
        with subtests.test(f"{threads} threads"):
            totals.execute(f"SET threads = {threads}")
            columns_are_aggregated(totals)


def columns_are_aggregated(con: duckdb.DuckDBPyConnection) -> None:
    for query in QUERIES:
        expected = con.execute(query.format(total="sum")).fetchall()
        assert con.execute(query.format(total="sums")).fetchall() == expected, query
    query = "SELECT few, list_sort({}([x::VARCHAR, few::VARCHAR])) FROM data GROUP BY few ORDER BY few"
    assert con.execute(query.format("lists")).fetchall() == con.execute(query.format("list")).fetchall()
    frame = "OVER (ORDER BY i ROWS BETWEEN 40 PRECEDING AND 3 FOLLOWING)"
    query = f"SELECT i, {{}}([i::VARCHAR]) {frame} FROM data WHERE i < 500 ORDER BY i"
    assert con.execute(query.format("lists")).fetchall() == con.execute(query.format("list")).fetchall()
    # The query has more rows than the engine collects at once.
    query = "SELECT sum(hash(g, t::BIGINT)) FROM (SELECT i % 999 AS g, {}(i) AS t FROM range(2500000) t(i) GROUP BY g)"
    assert value(con, query.format("sums")) == value(con, query.format("sum"))
    assert eventually(lambda: at_rest(con))


def test_vectorized_errors(load: Load) -> None:
    con = load(VECTORS)
    con.execute("SET threads = 1")
    query = "SELECT i % 2 AS g, positive(CASE WHEN i % 2 = 0 THEN -1 ELSE i END, 0.5) FROM range(2000) t(i) GROUP BY g ORDER BY g"
    assert con.execute(query).fetchall() == [(0, 0.0), (1, 500_000.0)]
    counted = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'positive'"
    assert con.execute(counted).fetchall() == [(1000, 1)]


KEPT = """
from crosslane import udaf

class Kept:
    "Keeps all columns."
    def __init__(self):
        self.parts = []
    def merge(self, other):
        self.parts += other.parts
"""


#: These functions need a module that is slow to import.
PARTS = """
from crosslane import udaf
from typing import Annotated
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

@udaf(vectorized=True)
class Labels(Kept):
    def update(self, x: Annotated[pd.Series, "DOUBLE"], text: Annotated[pd.Series, "VARCHAR"], n: Annotated[pd.Series, "BIGINT"] | None) -> None:
        for column in (x, text, n):
            assert list(column.index) == list(range(len(column))), column.index
            assert column[0] == column.iloc[0]
        assert str(n.dtype) == "Int64"
        self.parts.append(float((x * pd.Series(np.ones(len(x)))).sum()))
    def finish(self) -> float:
        return sum(self.parts)

def most(arrays):
    return max((array.nbytes if array.base is None else array.base.nbytes) // len(array) for array in arrays)

@udaf("numpys(x BIGINT) -> BIGINT", vectorized=True)
class Numpys(Kept):
    "The most memory of an array, in bytes a row."
    def update(self, x: Annotated[np.ndarray, "BIGINT"]) -> None:
        self.parts.append(x)
    def finish(self):
        return most(self.parts)

@udaf("pandases(x BIGINT) -> BIGINT", vectorized=True)
class Pandases(Kept):
    def update(self, x: Annotated[pd.Series, "BIGINT"]) -> None:
        self.parts.append(x)
    def finish(self):
        return most([x.to_numpy() for x in self.parts])

@udaf("polarses(x BIGINT) -> VARCHAR", vectorized=True)
class Polarses(Kept):
    "What they hold."
    def update(self, x: Annotated[pl.Series, "BIGINT"]) -> None:
        self.parts.append(x)
    def finish(self):
        return str(sorted(pl.concat(self.parts).to_list()))

@udaf("arrows(x BIGINT) -> BIGINT", vectorized=True)
class Arrows(Kept):
    "How many bytes there are of its arrays, and of their pickles."
    def update(self, x) -> None:
        self.parts.append(x)
    def finish(self):
        return sum(buffer.size for array in self.parts for buffer in array.buffers() if buffer)
    def __getstate__(self):
        return self.__dict__
"""


PICKLED = """
@udaf("pickled(x BIGINT) -> BIGINT", vectorized=True)
class Pickled(Kept):
    "How many bytes of arrays arrived."
    def update(self, x) -> None:
        self.parts.append(x[:1])
        self.arrived = 0
    def __getstate__(self):
        return self.parts
    def __setstate__(self, parts):
        self.parts = parts
        self.arrived = sum(buffer.size for array in parts for buffer in array.buffers() if buffer)
    def merge(self, other):
        self.arrived = max(self.arrived, other.arrived)
    def finish(self):
        return self.arrived
"""


def test_groups_have_columns_of_their_own(load: Load) -> None:
    con = load(KEPT + PARTS)
    for groups in (1, 3, 700, 2500):
        query = f"SELECT i % {groups} AS g, {{}} FROM range(10000) t(i) GROUP BY g ORDER BY g"
        assert (
            con.execute(query.format("labels(i, i::VARCHAR, i)")).fetchall()
            == con.execute(query.format("sum(i)::DOUBLE")).fetchall()
        )
        con.execute("SET threads = 1")
        # A group may share an array that is as large as a few rows.
        query = (
            f"SELECT max(b) FROM (SELECT i % {groups} AS g, {{}}(i) AS b FROM range(200000) t(i) GROUP BY g)"
        )
        for function in ("numpys", "pandases"):
            assert int(str(value(con, query.format(function)))) <= 8 * 256
        assert int(str(value(con, query.format("arrows")))) <= 8 * max(256, 200000 // groups + 1)
        con.execute("SET threads = 4")
        query = f"SELECT i % {groups} AS g, {{}} FROM range(4000) t(i) GROUP BY g ORDER BY g"
        assert (
            con.execute(query.format("polarses(i)")).fetchall()
            == con.execute(query.format("list(i ORDER BY i)::VARCHAR")).fetchall()
        )


@pytest.mark.any_duckdb
def test_a_part_of_an_array_is_pickled_alone(load: Load) -> None:
    con = load(KEPT + PICKLED)
    con.execute("SET threads = 1")
    copied = "SELECT pickled(i) OVER (ORDER BY i ROWS 100 PRECEDING) AS b FROM range(1000) t(i)"
    assert 8 <= int(str(value(con, f"SELECT max(b) FROM ({copied})"))) <= 64


def test_a_time_limit_is_one_for_each_group(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        import time

        @udaf("steady(x BIGINT) -> BIGINT", vectorized=True, timeout=0.5)
        class Steady:
            def __init__(self):
                self.rows = 0
            def update(self, x):
                time.sleep(0.002 if x[0].as_py() >= 0 else 60)
                self.rows += len(x)
            def merge(self, other):
                self.rows += other.rows
            def finish(self):
                return self.rows
        """
    )
    con.execute("SET threads = 1")
    # The engine calls update for all groups at once, when their results are due.
    query = "SELECT count(*), sum(s) FROM (SELECT i % 600 AS g, steady(i - {}) AS s FROM range(1800) t(i) GROUP BY g)"
    assert con.execute(query.format(0)).fetchall() == [(600, 1800)]
    assert "steady: timed out after 0.5 s" in error(con, query.format(7))
