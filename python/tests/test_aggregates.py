"""Aggregates: classes whose instances hold what was accumulated of a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane import udaf

from .conftest import Load, error, eventually, processes, value

TOTALS = """
from crosslane import udaf
@udaf
class Total:
    "Adds integers."
    def __init__(self):
        self.sum = 0
    def update(self, x: int) -> None:
        self.sum += x
    def merge(self, other) -> None:
        self.sum += other.sum
    def finish(self) -> int:
        return self.sum

@udaf("things(x VARCHAR[]) -> VARCHAR[][]")
class Things:
    def __init__(self):
        self.all = []
    def update(self, x):
        self.all.append(x)
    def merge(self, other):
        self.all += other.all
    def finish(self):
        return self.all

@udaf
class Newest:
    "Slots, two parameters, and NULL."
    __slots__ = ("value", "rows")
    def __init__(self):
        self.value = None
        self.rows = 0
    def update(self, x: float | None, weight: int) -> None:
        self.rows += weight
        if x is not None:
            self.value = x
    def merge(self, other: "Newest") -> None:
        self.rows += other.rows
        self.value = other.value if self.value is None else self.value
    def finish(self) -> str:
        return f"{self.value} {self.rows}"
"""


def at_rest(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether all lanes are back in their pool."""
    return value(con, "SELECT coalesce(sum(busy), 0) FROM crosslane_pools()") == 0


@pytest.fixture
def totals(load: Load) -> duckdb.DuckDBPyConnection:
    con = load(TOTALS)
    con.execute("SELECT setseed(0.5)")
    con.execute(
        "CREATE TABLE data AS SELECT i, (random() * 100)::BIGINT AS few, (random() * 20000)::BIGINT AS many, "
        "CASE WHEN random() < 0.9 THEN (random() * 1000)::BIGINT END AS x FROM range(60000) t(i)"
    )
    return con


#: A group of which no row counts has the result of a new instance, 0, where `sum` says NULL.
QUERIES = [
    "SELECT {total}(x) FROM data",
    "SELECT few, {total}(x) FROM data GROUP BY few ORDER BY few",
    "SELECT count(*), sum(hash(many, coalesce(t, 0)::BIGINT)) FROM (SELECT many, {total}(x) AS t FROM data GROUP BY many)",
    "SELECT few, {total}(DISTINCT x), {total}(x) FILTER (x % 2 = 0) FROM data GROUP BY few ORDER BY few",
    "SELECT few, {total}(x ORDER BY i DESC) FROM data GROUP BY few ORDER BY few",
    "SELECT few, {total}(x) AS t FROM data GROUP BY few HAVING t > 260000 ORDER BY t, few",
    "SELECT few % 3 AS a, few % 2 AS b, {total}(x), grouping(a) FROM data GROUP BY ROLLUP (a, b) ORDER BY ALL",
    "SELECT {total}(x), {total}(i), count(*) FROM data WHERE x >= 0",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (PARTITION BY few) AS t FROM data)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (PARTITION BY few ORDER BY i) AS t FROM data)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (ORDER BY i ROWS BETWEEN 50 PRECEDING AND 20 FOLLOWING) AS t "
    "FROM data WHERE i < 9000)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (ORDER BY i ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING "
    "EXCLUDE CURRENT ROW) AS t FROM data WHERE i < 9000)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(DISTINCT x) OVER (ORDER BY i ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) "
    "AS t FROM data WHERE i < 2000)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (PARTITION BY few) AS t FROM data) WHERE t > 265000",
]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_it_gives_what_duckdbs_own_gives(totals: duckdb.DuckDBPyConnection, threads: int) -> None:
    totals.execute(f"SET threads = {threads}")
    # So that small tables have tasks for all threads.
    totals.execute("PRAGMA verify_parallelism")
    for query in QUERIES:
        expected = totals.execute(query.format(total="sum")).fetchall()
        got = totals.execute(query.format(total="total")).fetchall()
        assert got == expected, query
    assert eventually(lambda: at_rest(totals))


def test_nested_types_and_order(totals: duckdb.DuckDBPyConnection) -> None:
    totals.execute("SET threads = 4")
    query = "SELECT few, {}([x::VARCHAR, NULL, 'ä' || i] ORDER BY i) AS l FROM data WHERE many < 4000 GROUP BY few ORDER BY few"
    assert (
        totals.execute(query.format("things")).fetchall() == totals.execute(query.format("list")).fetchall()
    )
    # Without an order, the same things.
    query = "SELECT few, list_sort({}([x::VARCHAR, few::VARCHAR])) FROM data GROUP BY few ORDER BY few"
    assert (
        totals.execute(query.format("things")).fetchall() == totals.execute(query.format("list")).fetchall()
    )


def test_windows_combine_states_that_are_kept(totals: duckdb.DuckDBPyConnection) -> None:
    totals.execute("SET threads = 4")
    totals.execute("PRAGMA verify_parallelism")
    frame = "OVER (ORDER BY i ROWS BETWEEN 40 PRECEDING AND 3 FOLLOWING)"
    query = f"SELECT i, {{}}([i::VARCHAR]) {frame} FROM data WHERE i < 3000 ORDER BY i"
    assert (
        totals.execute(query.format("things")).fetchall() == totals.execute(query.format("list")).fetchall()
    )
    assert eventually(lambda: at_rest(totals))


def test_what_there_is_of_nothing(totals: duckdb.DuckDBPyConnection) -> None:
    assert value(totals, "SELECT total(x) FROM data WHERE i < 0") == 0
    assert value(totals, "SELECT total(NULL)") == 0
    assert (
        value(totals, "SELECT count(*) FROM (SELECT few, total(x) FROM data WHERE i < 0 GROUP BY few)") == 0
    )
    assert (
        totals.execute(
            "SELECT total(x) OVER (ROWS BETWEEN 9 PRECEDING AND 8 PRECEDING) FROM range(3) t(x)"
        ).fetchall()
        == [(0,)] * 3
    )
    assert eventually(lambda: at_rest(totals))


def test_null_and_several_parameters(totals: duckdb.DuckDBPyConnection) -> None:
    rows = "(VALUES (1, 1), (NULL, 10), (2, NULL), (3, 100)) t(x, w)"
    assert value(totals, f"SELECT newest(x, w ORDER BY w) FROM {rows}") == "3.0 111"
    assert value(totals, "SELECT newest(NULL, 5)") == "None 5"


def test_many_groups_are_merged_across_lanes(totals: duckdb.DuckDBPyConnection) -> None:
    totals.execute("SET threads = 4")
    totals.execute("PRAGMA verify_parallelism")
    query = "SELECT count(*), sum(hash(g, t)) FROM (SELECT i % 200000 AS g, {}(i) AS t FROM range(800000) t(i) GROUP BY g)"
    assert totals.execute(query.format("total")).fetchall() == totals.execute(query.format("sum")).fetchall()
    query = "SELECT sum(hash(g, t)) FROM (SELECT i % 999 AS g, newest(i % 999, 1) AS t FROM range(300000) t(i) GROUP BY g)"
    expected = "SELECT sum(hash(g, (g::DOUBLE) || ' ' || n)) FROM (SELECT i % 999 AS g, count(*) AS n FROM range(300000) t(i) GROUP BY g)"
    assert value(totals, query) == value(totals, expected)
    assert eventually(lambda: at_rest(totals))


def test_statements_that_are_prepared(totals: duckdb.DuckDBPyConnection) -> None:
    totals.execute("PREPARE sums AS SELECT total(i), total(i) FILTER (i > 5) FROM range($1) t(i)")
    for rows in (10, 0, 100_000):
        ((all_of_them, some),) = totals.execute(f"EXECUTE sums({rows})").fetchall()
        assert (all_of_them, some) == (sum(range(rows)), sum(range(6, rows)))
        assert eventually(lambda: at_rest(totals))


def test_queries_at_once(totals: duckdb.DuckDBPyConnection) -> None:
    outcomes: list[Any] = []

    def ask(con: duckdb.DuckDBPyConnection) -> None:
        outcomes.append(con.execute("SELECT total(x), things([x::VARCHAR]).len() FROM data").fetchall())

    threads = [threading.Thread(target=ask, args=(totals.cursor(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [totals.execute("SELECT sum(x), count(*) FROM data").fetchall()] * 4
    assert eventually(lambda: at_rest(totals))


def test_a_limit(totals: duckdb.DuckDBPyConnection) -> None:
    assert len(totals.execute("SELECT i, total(x) FROM data GROUP BY i LIMIT 3").fetchall()) == 3
    assert len(totals.execute("SELECT total(x) OVER (ORDER BY i) FROM data LIMIT 3").fetchall()) == 3
    assert eventually(lambda: at_rest(totals))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT many, total(x), sum(CASE WHEN i = 59999 THEN error('elsewhere') ELSE 1 END) FROM data GROUP BY many",
        "SELECT error('elsewhere'), total(x) FROM data GROUP BY many",
        "SELECT total(x) OVER (ORDER BY i ROWS BETWEEN 3 PRECEDING AND CURRENT ROW), "
        "sum(CASE WHEN i = 59999 THEN error('elsewhere') ELSE 1 END) OVER (ORDER BY i) FROM data",
        "SELECT CASE WHEN t >= 0 THEN error('elsewhere') END FROM (SELECT many, total(x) AS t FROM data GROUP BY many)",
    ],
)
def test_a_query_that_fails_elsewhere_leaves_nothing(totals: duckdb.DuckDBPyConnection, query: str) -> None:
    assert "elsewhere" in error(totals, query)
    assert eventually(lambda: at_rest(totals))
    # The states that DuckDB has forgotten are gone, too: none of these has the number of one.
    assert value(totals, "SELECT total(x) FROM data WHERE i = 7") == value(
        totals, "SELECT sum(x) FROM data WHERE i = 7"
    )


TROUBLE = """
from crosslane import udaf
import os, time
def trouble(x, moment):
    if x == f"raise {moment}":
        raise ValueError(f"trouble in {moment}")
    if x == f"die {moment}":
        os._exit(7)
    if x == f"hang {moment}":
        time.sleep(60)

class Trouble:
    def __init__(self):
        self.seen = []
    def update(self, x: str) -> None:
        self.seen.append(x)
        trouble(x, "update")
    def merge(self, other) -> None:
        self.seen += other.seen
        for x in self.seen:
            trouble(x, "merge")
    def finish(self) -> int:
        for x in self.seen:
            trouble(x, "finish")
            if x == "garbage":
                return "text"
        return len(self.seen)

plain = udaf(name="plain")(type("Plain", (Trouble,), {}))
quick = udaf(name="quick", timeout=0.5)(type("Quick", (Trouble,), {}))
lenient = udaf(name="lenient", on_error="null", retries=1)(type("Lenient", (Trouble,), {}))
"""


@pytest.fixture
def troubles(load: Load) -> duckdb.DuckDBPyConnection:
    con = load(TROUBLE)
    con.execute("SET threads = 4")
    con.execute("PRAGMA verify_parallelism")
    con.execute("CREATE TABLE rows AS SELECT i, 'x' || i AS x FROM range(20000) t(i)")
    return con


#: With the row 777 like this. So many rows of a group are on several lanes that they are merged.
ONE = "SELECT i % 3 AS g, {}(CASE WHEN i = 777 THEN '{}' ELSE x END) FROM rows GROUP BY g ORDER BY g"


@pytest.mark.parametrize("moment", ["update", "finish"])
def test_what_raises_says_where(troubles: duckdb.DuckDBPyConnection, moment: str) -> None:
    message = error(troubles, ONE.format("plain", f"raise {moment}"))
    assert f"plain: ValueError: trouble in {moment}" in message
    assert "functions_1.py:7 in trouble" in message
    assert "in row" in message
    if moment == "update":
        assert "x = 'raise update'" in message
    assert eventually(lambda: at_rest(troubles))


def test_what_raises_in_merge(troubles: duckdb.DuckDBPyConnection) -> None:
    window = "SELECT {}(CASE WHEN i = 777 THEN 'raise merge' ELSE x END) OVER (ORDER BY i ROWS 50 PRECEDING) FROM rows"
    for function in ("plain", "lenient"):
        assert f"{function}: ValueError: trouble in merge" in error(troubles, window.format(function))
    assert eventually(lambda: at_rest(troubles))


@pytest.mark.parametrize("moment", ["update", "merge", "finish"])
def test_a_worker_that_dies_takes_its_query_along(troubles: duckdb.DuckDBPyConnection, moment: str) -> None:
    query = f"SELECT plain(CASE WHEN i = 777 THEN 'die {moment}' ELSE x END) OVER (ORDER BY i ROWS 50 PRECEDING) FROM rows"
    message = error(troubles, query)
    assert "exit code 7" in message
    assert "the states that it held" in message
    assert eventually(lambda: at_rest(troubles))
    assert value(troubles, "SELECT plain(x) FROM rows") == 20000


@pytest.mark.parametrize("moment", ["update", "merge", "finish"])
def test_a_worker_that_hangs_is_ended(troubles: duckdb.DuckDBPyConnection, moment: str) -> None:
    query = f"SELECT quick(CASE WHEN i = 777 THEN 'hang {moment}' ELSE x END) OVER (ORDER BY i ROWS 50 PRECEDING) FROM rows"
    assert "quick: timed out after 0.5 s" in error(troubles, query)
    assert eventually(lambda: at_rest(troubles))
    assert value(troubles, "SELECT quick(x) FROM rows") == 20000


def test_a_result_that_is_none_of_its_type(troubles: duckdb.DuckDBPyConnection) -> None:
    assert "plain: TypeError: returned str" in error(troubles, ONE.format("plain", "garbage"))
    assert eventually(lambda: at_rest(troubles))


def test_errors_may_be_left_out(troubles: duckdb.DuckDBPyConnection) -> None:
    # The row was added before it raised, at the first try and at the second.
    assert troubles.execute(ONE.format("lenient", "raise update")).fetchall() == [
        (0, 6668),
        (1, 6667),
        (2, 6666),
    ]
    assert troubles.execute(ONE.format("lenient", "raise finish")).fetchall() == [
        (0, None),
        (1, 6667),
        (2, 6666),
    ]
    assert troubles.execute(ONE.format("lenient", "garbage")).fetchall() == [(0, None), (1, 6667), (2, 6666)]
    counted = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'lenient'"
    assert troubles.execute(counted).fetchall() == [(3, 3)]
    # The states of a lane that dies are lost, whatever the options.
    assert "the states that it held" in error(troubles, ONE.format("lenient", "die update"))
    assert eventually(lambda: at_rest(troubles))


def test_a_constructor_that_raises(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        @udaf
        class Never:
            def __init__(self):
                raise ValueError("never")
            def update(self, x: int) -> None: ...
            def merge(self, other) -> None: ...
            def finish(self) -> int: ...
        """
    )
    assert "ValueError: never" in error(con, "SELECT never(1)")
    assert "ValueError: never" in error(con, "SELECT never(i) FROM range(0) t(i)")
    assert eventually(lambda: at_rest(con))


def test_memory_goes_with_the_query(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        import os
        @udaf
        class Heavy:
            def __init__(self):
                self.blocks = []
            def update(self, x: int) -> None:
                self.blocks.append(bytes(x))
            def merge(self, other) -> None:
                self.blocks += other.blocks
            def finish(self) -> int:
                return sum(map(len, self.blocks))
        @udf
        def resident(x: int) -> int:
            pages = int(open("/proc/self/statm").read().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        """
    )
    con.execute("SET threads = 2")

    def largest() -> int:
        # As many rows at once as there are workers would not all come to different ones.
        return max(process.memory_info().rss for process in processes())

    before = largest()
    assert (
        value(con, "SELECT sum(h) FROM (SELECT i, heavy(1000000) AS h FROM range(200) t(i) GROUP BY i)")
        == 200_000_000
    )
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)
    failing = "SELECT i, heavy(1000000), sum(CASE WHEN i = 199 THEN error('no') ELSE 1 END) FROM range(200) t(i) GROUP BY i"
    assert "no" in error(con, failing)
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)


def test_a_cancelled_query(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        import time
        @udaf
        class Slow:
            def update(self, x: int) -> None:
                time.sleep(0.05)
            def merge(self, other) -> None: ...
            def finish(self) -> int:
                return 1
        """
    )
    outcome: list[str] = []
    other = con.cursor()
    thread = threading.Thread(
        target=lambda: outcome.append(error(con, "SELECT slow(i) FROM range(2000) t(i)"))
    )
    thread.start()
    busy = "SELECT sum(busy) > 0 FROM crosslane_pools()"
    assert eventually(lambda: bool(value(other, busy)))
    time.sleep(0.2)
    begun = time.monotonic()
    other.execute("FROM crosslane_cancel()").fetchall()
    thread.join()
    assert time.monotonic() - begun < 10
    assert "slow: cancelled" in outcome[0]
    assert eventually(lambda: at_rest(other))


class Multiplied:
    """Multiplies."""

    def __init__(self) -> None:
        self.product = 1

    def update(self, x: int) -> None:
        self.product *= x

    def merge(self, other: Multiplied) -> None:
        self.product *= other.product

    def finish(self) -> int:
        return self.product


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_a_class_may_be_registered(con: duckdb.DuckDBPyConnection, lane: Any) -> None:
    assert crosslane.register(con, Multiplied, lane=lane) == "multiplied(x BIGINT) -> BIGINT"
    query = "SELECT {}(x) OVER (ORDER BY x ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM range(1, 2000) t(x)"
    assert con.execute(query.format("multiplied")).fetchall() == [
        (max(x - 2, 1) * max(x - 1, 1) * x,) for x in range(1, 2000)
    ]
    con.execute("SET threads = 4")
    con.execute("PRAGMA verify_parallelism")
    # Instances of a class that no other process can import go from lane to lane.
    query = "SELECT sum(p) FROM (SELECT x // 2 AS g, multiplied(x) AS p FROM range(2, 20000) t(x) GROUP BY g)"
    assert value(con, query) == sum(2 * g * (2 * g + 1) for g in range(1, 10000))
    assert eventually(lambda: at_rest(con))
    described = con.execute("SELECT signature, kind, description FROM crosslane_functions()").fetchall()
    assert described == [("multiplied(x BIGINT) -> BIGINT", "aggregate", "Multiplies.")]


def test_names_and_types_that_change(con: duckdb.DuckDBPyConnection) -> None:
    assert crosslane.register(con, Multiplied, name="p") == "p(x BIGINT) -> BIGINT"
    # The same types.
    crosslane.register(con, Multiplied, name="p")
    assert value(con, "SELECT p(x) FROM range(1, 5) t(x)") == 24
    with pytest.raises(duckdb.Error, match="cannot change an aggregate: p has other types"):
        crosslane.register(con, Multiplied, "p(x HUGEINT) -> HUGEINT")
    assert value(con, "SELECT p(x) FROM range(1, 5) t(x)") == 24
    with pytest.raises(duckdb.Error, match="DuckDB's own aggregate, which cannot be replaced"):
        crosslane.register(con, Multiplied, name="sum", replace=True)
    crosslane.unregister(con, "p")
    assert "p(x BIGINT) -> BIGINT was dropped" in error(con, "SELECT p(1)")
    crosslane.register(con, Multiplied, name="p")
    assert value(con, "SELECT p(x) FROM range(1, 5) t(x)") == 24


def aggregate(**methods: Callable[..., Any] | None) -> type:
    """A class like Multiplied, but for these methods."""
    kept = {name: getattr(Multiplied, name) for name in ("__init__", "update", "merge", "finish")}
    kept |= methods
    return type("Odd", (), {name: method for name, method in kept.items() if method is not None})


async def asynchronous(self: Any, x: int) -> None: ...


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"update": None}, r"an aggregate's class has a method update: update\(self, x, ...\) adds a row"),
        ({"merge": None}, "has a method merge"),
        ({"finish": None}, "has a method finish"),
        ({"update": asynchronous}, "update is a plain method, neither async nor a generator"),
        ({"merge": lambda self: None}, "merge.*cannot be called so: too many positional arguments"),
        ({"finish": lambda self, x: None}, "finish.*cannot be called so: missing a required argument: 'x'"),
        ({"__init__": lambda self, size: None}, "makes an instance without arguments; this class needs size"),
    ],
)
def test_classes_that_are_no_aggregates(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(crosslane.DeclarationError, match=message):
        udaf(aggregate(**methods))


def test_declarations_that_cannot_work(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(crosslane.DeclarationError, match="udaf decorates a class"):
        udaf(len)  # type: ignore[type-var]
    with pytest.raises(crosslane.DeclarationError, match="no options deterministic and inline"):
        udaf(deterministic=False)(Multiplied)  # type: ignore[call-arg]
    with pytest.raises(crosslane.DeclarationError, match="the result has no type"):
        crosslane.register(con, aggregate(finish=lambda self: 1))
    with pytest.raises(crosslane.DeclarationError, match="the signature has 2 parameters"):
        crosslane.register(con, Multiplied, "p(x BIGINT, y BIGINT) -> BIGINT")


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


@pytest.mark.parametrize("threads", [1, 4])
def test_vectorized_aggregates(totals: duckdb.DuckDBPyConnection, load: Load, threads: int) -> None:
    load(VECTORS)
    totals.execute(f"SET threads = {threads}")
    totals.execute("PRAGMA verify_parallelism")
    for query in QUERIES:
        expected = totals.execute(query.format(total="sum")).fetchall()
        assert totals.execute(query.format(total="sums")).fetchall() == expected, query
    query = "SELECT few, list_sort({}([x::VARCHAR, few::VARCHAR])) FROM data GROUP BY few ORDER BY few"
    assert totals.execute(query.format("lists")).fetchall() == totals.execute(query.format("list")).fetchall()
    frame = "OVER (ORDER BY i ROWS BETWEEN 40 PRECEDING AND 3 FOLLOWING)"
    query = f"SELECT i, {{}}([i::VARCHAR]) {frame} FROM data WHERE i < 500 ORDER BY i"
    assert totals.execute(query.format("lists")).fetchall() == totals.execute(query.format("list")).fetchall()
    # More rows than are collected.
    query = "SELECT sum(hash(g, t::BIGINT)) FROM (SELECT i % 999 AS g, {}(i) AS t FROM range(700000) t(i) GROUP BY g)"
    assert value(totals, query.format("sums")) == value(totals, query.format("sum"))
    assert eventually(lambda: at_rest(totals))


def test_vectorized_errors(totals: duckdb.DuckDBPyConnection, load: Load) -> None:
    load(VECTORS)
    totals.execute("SET threads = 1")
    query = "SELECT i % 2 AS g, positive(CASE WHEN i % 2 = 0 THEN -1 ELSE i END, 0.5) FROM range(2000) t(i) GROUP BY g ORDER BY g"
    assert totals.execute(query).fetchall() == [(0, 0.0), (1, 500_000.0)]
    counted = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'positive'"
    assert totals.execute(counted).fetchall() == [(1000, 1)]
