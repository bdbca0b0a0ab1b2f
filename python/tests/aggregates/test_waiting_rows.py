"""Rows that wait for their aggregate: small groups are sent to a worker together."""

from __future__ import annotations

import duckdb
import pytest

from ..conftest import Load, error, eventually
from .test_aggregates import at_rest

WAITING = """
from crosslane import udaf
import time

@udaf("rows_of(a BOOLEAN, b TINYINT, c SMALLINT, d INTEGER, e BIGINT, f HUGEINT, g DOUBLE, h VARCHAR, i BLOB) -> VARCHAR", nulls="call")
class RowsOf:
    def __init__(self):
        self.rows = []
    def update(self, *row):
        self.rows.append(row)
    def merge(self, other):
        self.rows += other.rows
    def finish(self):
        return str(sorted(map(str, self.rows)))

@udaf
class Unmerged:
    "Cannot be merged, and has few rows."
    made = 0
    def __init__(self):
        self.sum = 0
    def update(self, x: int) -> None:
        self.sum += x
    def merge(self, other) -> None:
        raise ValueError("merged")
    def finish(self) -> int:
        return self.sum

class Trouble:
    def __init__(self):
        self.rows = 0
    def update(self, x: int, s: str | None) -> None:
        if x == 777:
            raise ValueError("trouble")
        self.rows += 1
    def merge(self, other) -> None:
        self.rows += other.rows
    def finish(self) -> int:
        return self.rows
strict = udaf(name="strict")(type("Strict", (Trouble,), {}))
lenient = udaf(name="lenient", on_error="null", retries=1)(type("Lenient", (Trouble,), {}))

@udaf(timeout=0.5)
class Steady:
    def update(self, x: int) -> None:
        time.sleep(0.05)
    def merge(self, other) -> None: ...
    def finish(self) -> int:
        return 1

@udaf
class Nothing:
    def __init__(self):
        self.rows = 0
    def update(self) -> None:
        self.rows += 1
    def merge(self, other) -> None:
        self.rows += other.rows
    def finish(self) -> int:
        return self.rows
"""


@pytest.fixture
def waiting(load: Load) -> duckdb.DuckDBPyConnection:
    con = load(WAITING)
    con.execute("SET threads = 2")
    con.execute("PRAGMA verify_parallelism")
    return con


def test_rows_wait_as_they_are(waiting: duckdb.DuckDBPyConnection) -> None:
    waiting.execute(
        "CREATE TABLE data AS SELECT i, i % 2 = 0 AS a, (i % 100)::TINYINT AS b, (i % 9000)::SMALLINT AS c, i::INTEGER AS d, "
        "i * 5000000000 AS e, i::HUGEINT << 70 AS f, i / 7 AS g, repeat('ä', i % 70) AS h, repeat('b', i % 90)::BLOB AS i2 "
        "FROM range(10000) t(i)"
    )
    columns = [f"CASE WHEN i % {n} > 0 THEN {name} END" for n, name in enumerate("abcdefgh", 5)]
    columns.append("CASE WHEN i % 13 > 0 THEN i2 END")
    for groups in (3, 450, 2000, 7500):
        query = f"SELECT i % {groups} AS part, {{}} FROM data GROUP BY part ORDER BY part"
        got = waiting.execute(query.format(f"rows_of({', '.join(columns)})")).fetchall()
        rows = waiting.execute(query.format(f"list(row({', '.join(columns)}))")).fetchall()
        assert got == [
            (part, str(sorted(str(tuple(row.values()) if isinstance(row, dict) else row) for row in group)))
            for part, group in rows
        ]


def test_few_rows_are_never_merged(waiting: duckdb.DuckDBPyConnection) -> None:
    waiting.execute("CREATE TABLE data AS SELECT i FROM range(200000) t(i)")
    query = "SELECT count(*), sum(hash(g, s)) FROM (SELECT i % 20000 AS g, {}(i) AS s FROM data GROUP BY g)"
    assert (
        waiting.execute(query.format("unmerged")).fetchall()
        == waiting.execute(query.format("sum")).fetchall()
    )
    frame = "OVER (ORDER BY i ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)"
    query = f"SELECT {{}}(i) {frame} FROM range(15) t(i)"
    assert (
        waiting.execute(query.format("unmerged")).fetchall()
        == waiting.execute(query.format("sum")).fetchall()
    )
    query = "SELECT unmerged(i) OVER (ORDER BY i ROWS 60 PRECEDING) FROM range(5000) t(i)"
    assert "ValueError: merged" in error(waiting, query)
    assert eventually(lambda: at_rest(waiting))


def test_every_thread_of_a_failed_query_says_why(load: Load) -> None:
    con = load("""
import time
from crosslane import udaf
@udaf("late(x BIGINT) -> BIGINT")
class Late:
    def update(self, x):
        pass
    def merge(self, other):
        time.sleep(0.005)
        raise ValueError("no merge")
    def finish(self):
        return 0
""")
    con.execute("SET threads = 8")
    query = "SELECT late(i) OVER (PARTITION BY i % 16 ORDER BY i ROWS 60 PRECEDING) FROM range(5000) t(i)"
    for _ in range(80):
        assert "ValueError: no merge" in error(con, query)


def test_rows_without_values_wait_too(waiting: duckdb.DuckDBPyConnection) -> None:
    for rows in (3, 15, 16, 200):
        query = f"SELECT i % 4000 AS g, {{}}() FROM range({rows} * 4000) t(i) GROUP BY g ORDER BY g"
        expected = waiting.execute(query.format("count")).fetchall()
        assert waiting.execute(query.format("nothing")).fetchall() == expected


def test_an_exception_for_a_row_that_waited(waiting: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT count(*), sum(t) FROM (SELECT i // {} AS g, {}(i, CASE WHEN i % 2 = 0 THEN 'ä' END) AS t FROM range(3000) t(i) GROUP BY g)"
    for of_a_group in (1, 3, 40):
        message = error(waiting, query.format(of_a_group, "strict"))
        assert "strict: ValueError: trouble" in message
        assert "x = 777, s = " in message
        assert (
            "in row 778 of the batch" in message or "in a row that waited, with x = 777, s = None" in message
        )
        groups = -(-3000 // of_a_group)
        assert waiting.execute(query.format(of_a_group, "lenient")).fetchall() == [(groups, 2999)]
    counted = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'lenient'"
    assert waiting.execute(counted).fetchall() == [(3, 3)]
    assert eventually(lambda: at_rest(waiting))


def test_a_time_limit_is_one_for_each_row(waiting: duckdb.DuckDBPyConnection) -> None:
    # An exchange of few groups would have many waiting rows.
    assert waiting.execute(
        "SELECT i % 2 AS g, steady(i) FROM range(28) t(i) GROUP BY g ORDER BY g"
    ).fetchall() == [
        (0, 1),
        (1, 1),
    ]
