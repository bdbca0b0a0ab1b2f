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

from ..conftest import IS_NEWEST, Load, error, eventually, processes, value

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
        "CREATE TABLE data AS SELECT i, (random() * 100)::BIGINT AS few, (random() * 10000)::BIGINT AS many, "
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
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (PARTITION BY few ORDER BY i) AS t FROM data WHERE few < 8)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (ORDER BY i ROWS BETWEEN 50 PRECEDING AND 20 FOLLOWING) AS t "
    "FROM data WHERE i < 2500)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (ORDER BY i ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING "
    "EXCLUDE CURRENT ROW) AS t FROM data WHERE i < 2500)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(DISTINCT x) OVER (ORDER BY i ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) "
    "AS t FROM data WHERE i < 2000)",
    "SELECT sum(hash(i, coalesce(t, 0)::BIGINT)) FROM (SELECT i, {total}(x) OVER (PARTITION BY few) AS t FROM data) WHERE t > 265000",
]


def test_it_gives_what_duckdbs_own_gives(
    totals: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    # So that small tables have tasks for all threads.
    totals.execute("PRAGMA verify_parallelism")
    for threads in (1, 2, 8) if IS_NEWEST else (1, 2):
        with subtests.test(f"{threads} threads"):
            totals.execute(f"SET threads = {threads}")
            for query in QUERIES:
                expected = totals.execute(query.format(total="sum")).fetchall()
                got = totals.execute(query.format(total="total")).fetchall()
                assert got == expected, query
            assert eventually(lambda: at_rest(totals))


def test_nested_types_and_order(totals: duckdb.DuckDBPyConnection) -> None:
    totals.execute("SET threads = 4")
    query = "SELECT few, {}([x::VARCHAR, NULL, 'ä' || i] ORDER BY i) AS l FROM data WHERE many < 2000 GROUP BY few ORDER BY few"
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


FAILING = [
    "SELECT many, total(x), sum(CASE WHEN i = 59999 THEN error('elsewhere') ELSE 1 END) FROM data GROUP BY many",
    "SELECT error('elsewhere'), total(x) FROM data GROUP BY many",
    "SELECT total(x) OVER (ORDER BY i ROWS BETWEEN 3 PRECEDING AND CURRENT ROW), "
    "sum(CASE WHEN i = 59999 THEN error('elsewhere') ELSE 1 END) OVER (ORDER BY i) FROM data",
    "SELECT CASE WHEN t >= 0 THEN error('elsewhere') END FROM (SELECT many, total(x) AS t FROM data GROUP BY many)",
]


def test_a_query_that_fails_elsewhere_leaves_nothing(
    totals: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for query in FAILING:
        with subtests.test(query):
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
#: The same, where all methods see the row.
FRAMES = "SELECT {}(CASE WHEN i = 777 THEN '{}' ELSE x END) OVER (ORDER BY i ROWS 50 PRECEDING) FROM rows WHERE i < 6000"


def test_what_raises_says_where(troubles: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    for moment in ("update", "finish"):
        with subtests.test(moment):
            message = error(troubles, ONE.format("plain", f"raise {moment}"))
            assert f"plain: ValueError: trouble in {moment}" in message
            assert "functions_1.py:7 in trouble" in message
            assert "in row" in message
            if moment == "update":
                assert "x = 'raise update'" in message
            assert eventually(lambda: at_rest(troubles))


def test_what_raises_in_merge(troubles: duckdb.DuckDBPyConnection) -> None:
    for function in ("plain", "lenient"):
        message = error(troubles, FRAMES.format(function, "raise merge"))
        assert f"{function}: ValueError: trouble in merge" in message
    assert eventually(lambda: at_rest(troubles))


def test_a_worker_that_dies_takes_its_query_along(
    troubles: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for moment in ("update", "merge", "finish"):
        with subtests.test(moment):
            message = error(troubles, FRAMES.format("plain", f"die {moment}"))
            assert "exit code 7" in message
            assert "the states that it held" in message
            assert eventually(lambda: at_rest(troubles))
            assert value(troubles, "SELECT plain(x) FROM rows") == 20000


def test_a_worker_that_hangs_is_ended(troubles: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    for moment in ("update", "merge", "finish"):
        with subtests.test(moment):
            message = error(troubles, FRAMES.format("quick", f"hang {moment}"))
            assert "quick: timed out after 0.5 s" in message
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
    con.execute("SET threads = 1")

    def largest() -> int:
        # As many rows at once as there are workers would not all come to different ones.
        return max(process.memory_info().rss for process in processes())

    before = largest()
    assert (
        value(con, "SELECT sum(h) FROM (SELECT i, heavy(1000000) AS h FROM range(200) t(i) GROUP BY i)")
        == 200_000_000
    )
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)
    # Nor is anything kept for as many groups.
    assert (
        value(con, "SELECT sum(h) FROM (SELECT i, heavy(1) AS h FROM range(900000) t(i) GROUP BY i)")
        == 900_000
    )
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)
    failing = "SELECT i, heavy(1000000), sum(CASE WHEN i = 199 THEN error('no') ELSE 1 END) FROM range(200) t(i) GROUP BY i"
    assert "no" in error(con, failing)
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)


def test_a_memory_limit_is_one_for_all_states(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf

        class Blocks:
            def __init__(self):
                self.blocks = []
            def update(self, x):
                self.blocks.append(bytes(10_000))
            def merge(self, other):
                self.blocks += other.blocks
            def finish(self):
                return len(self.blocks)

        blocks = udaf("blocks(x BIGINT) -> BIGINT", memory_limit="50 MB")(type("Blocks", (Blocks,), {}))
        in_columns = udaf("in_columns(x BIGINT) -> BIGINT", memory_limit="50 MB", vectorized=True)(type("Columns", (Blocks,), {}))
        """
    )
    con.execute("SET threads = 1")
    # Each exchange would have room for itself. What an earlier query has freed may be used again, and does not count.
    few = "SELECT sum(b) FROM (SELECT i AS g, {}(i) AS b FROM range(200) t(i) GROUP BY g)"
    many = (
        "SELECT sum(b) FROM (SELECT i // 16 AS g, {}(i) AS b FROM generate_series(1, 40000) t(i) GROUP BY g)"
    )
    rows = "SELECT in_columns(i) FROM range(3000000) t(i)"
    for _ in range(3):
        # What a query has taken is free for the next one.
        for function in ("blocks", "in_columns"):
            assert value(con, few.format(function)) == 200
        assert "blocks: MemoryError" in error(con, many.format("blocks"))
        # What is collected takes a part of it.
        assert int(str(value(con, rows))) > 3
    assert eventually(lambda: at_rest(con))


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
    other.execute("FROM crosslane_cancel()").fetchall()
    # The query alone would take a hundred seconds.
    thread.join(30)
    assert not thread.is_alive()
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


@pytest.mark.any_duckdb
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


@pytest.mark.any_duckdb
def test_declarations_that_cannot_work(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(crosslane.DeclarationError, match="udaf decorates a class"):
        udaf(len)  # type: ignore[type-var]
    with pytest.raises(crosslane.DeclarationError, match="no options deterministic and inline"):
        udaf(deterministic=False)(Multiplied)  # type: ignore[call-arg]
    nothing = aggregate(update=lambda self: None)
    udaf("f() -> BIGINT")(nothing)
    for update in (lambda self: None, lambda self, *all: None):
        with pytest.raises(
            crosslane.DeclarationError, match="a vectorized aggregate needs a parameter: its upd"
        ):
            udaf("f() -> BIGINT", vectorized=True)(aggregate(update=update))
    with pytest.raises(crosslane.DeclarationError, match="a vectorized aggregate needs a parameter: its upd"):
        udaf(vectorized=True)(nothing)
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
    # More rows than are collected.
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
#: These need what is slow to import.
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
        # A group may share what is as large as a few rows.
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
    # They all have their update at once, when their results are due.
    query = "SELECT count(*), sum(s) FROM (SELECT i % 600 AS g, steady(i - {}) AS s FROM range(1800) t(i) GROUP BY g)"
    assert con.execute(query.format(0)).fetchall() == [(600, 1800)]
    assert "steady: timed out after 0.5 s" in error(con, query.format(7))


ODD = """
from crosslane import udaf
import itertools

class Lists:
    def __init__(self):
        self.rows = []
    def update(self, x: str) -> None:
        self.rows.append(x)
    def merge(self, other) -> None:
        self.rows += other.rows
    def finish(self) -> str:
        return f"{len(self.rows)} {sum(map(int, self.rows))}"

class Plain:
    "What holds nothing but plain values."
    def __init__(self):
        self.count, self.sum, self.mean, self.last, self.some, self.none = 0, 0, 0.0, "", False, None
    def update(self, x: str) -> None:
        self.count, self.sum, self.mean, self.last, self.some = self.count + 1, self.sum + int(x), 0.5, x, True
    def merge(self, other) -> None:
        assert vars(other).keys() == vars(self).keys()
        assert (other.mean, other.last.isdigit(), other.some, other.none) == (0.5, True, True, None)
        self.count, self.sum = self.count + other.count, self.sum + other.sum
    def finish(self) -> str:
        return f"{self.count} {self.sum}"

@udaf
class PlainValues(Plain): ...

@udaf
class Large(Plain):
    "Numbers beyond 64 bits, a text that has no UTF-8, and a long name."
    def __init__(self):
        super().__init__()
        self.sum, self.half = 2**70, chr(0xD800)
        setattr(self, "n" * 300, 1)
    def merge(self, other) -> None:
        assert other.half == chr(0xD800) and getattr(other, "n" * 300) == 1
        self.count, self.sum = self.count + other.count, self.sum + other.sum - 2**70
    def finish(self) -> str:
        return f"{self.count} {self.sum - 2**70}"

@udaf
class Slots(Lists):
    __slots__ = ("sum",)
    def __init__(self):
        super().__init__()
        self.sum = 0
    def update(self, x: str) -> None:
        super().update(x)
        self.sum += int(x)
    def merge(self, other) -> None:
        super().merge(other)
        self.sum += other.sum
    def finish(self) -> str:
        return f"{len(self.rows)} {self.sum}"

@udaf
class OwnState(Lists):
    def __getstate__(self):
        return tuple(self.rows)
    def __setstate__(self, rows):
        self.rows = list(rows)

@udaf
class Reduced(Lists):
    def __reduce__(self):
        return made, (self.rows,)

def made(rows):
    reduced = Reduced.made_by() if hasattr(Reduced, "made_by") else Reduced()
    reduced.rows = list(rows)
    return reduced

@udaf
class Cycle(Lists):
    "Refers to itself, and has the same list twice."
    def __init__(self):
        super().__init__()
        self.me, self.same = self, self.rows
    def merge(self, other) -> None:
        assert other.me is other and other.same is other.rows and other.rows is not self.rows
        super().merge(other)

@udaf
class Property(Lists):
    @property
    def rows(self):
        return self.__dict__["rows"]
    @rows.setter
    def rows(self, rows):
        self.__dict__["rows"] = rows

@udaf
class Shadowed(Lists):
    "Its instances have methods of their own."
    def __init__(self):
        super().__init__()
        self.update = self.first
    def first(self, x):
        del self.update
        self.rows.append(x)
    def update(self, x: str) -> None:
        self.rows.append(x)
    def merge(self, other) -> None:
        super().merge(other)

@udaf
class Other(Lists):
    "Its instances are those of other classes."
    classes = itertools.cycle([0, 1])
    def __new__(cls):
        return object.__new__(cls if next(Other_.classes) else Child)
Other_ = Other.made_by if hasattr(Other, "made_by") else Other
class Child(Other_):
    def update(self, x: str) -> None:
        self.rows = [*self.rows, x]

@udaf
class Changed(Lists):
    "Its update is another one after some rows."
    def update(self, x: str) -> None:
        Changed_.update = changed
        self.rows.append(x)
Changed_ = Changed.made_by if hasattr(Changed, "made_by") else Changed
def changed(self, x):
    self.rows += [x]
"""


ODD_ONES = [
    "plain_values",
    "large",
    "slots",
    "own_state",
    "reduced",
    "cycle",
    "property",
    "shadowed",
    "other",
    "changed",
]


@pytest.mark.any_duckdb
def test_instances_of_any_make(load: Load, subtests: pytest.Subtests) -> None:
    con = load(ODD)
    con.execute("SET threads = 2")
    con.execute("PRAGMA verify_parallelism")
    con.execute("CREATE TABLE data AS SELECT i, i::VARCHAR AS x FROM range(30000) t(i)")
    for function in ODD_ONES:
        with subtests.test(function):
            instances_pass(con, function)


def instances_pass(con: duckdb.DuckDBPyConnection, function: str) -> None:
    expected = "count(*) || ' ' || sum(i)"
    # From lane to lane: of many rows each, of few, and of a number of rows that is about how many wait.
    for groups in (7, 1000, 1700, 9000):
        query = f"SELECT i % {groups} AS g, {{}} AS s FROM data GROUP BY g ORDER BY g"
        assert (
            con.execute(query.format(f"{function}(x)")).fetchall()
            == con.execute(query.format(expected)).fetchall()
        )
    # Copies, of which each goes into several others.
    for before in (3, 60):
        query = f"SELECT {{}} OVER (ORDER BY i ROWS {before} PRECEDING) FROM data WHERE i < 2200"
        framed = (
            "SELECT count(*) OVER w || ' ' || sum(i) OVER w FROM data WHERE i < 2200 "
            f"WINDOW w AS (ORDER BY i ROWS {before} PRECEDING)"
        )
        assert con.execute(query.format(f"{function}(x)")).fetchall() == con.execute(framed).fetchall()
    assert eventually(lambda: at_rest(con))


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


def test_no_values_wait_too(waiting: duckdb.DuckDBPyConnection) -> None:
    for rows in (3, 15, 16, 200):
        query = f"SELECT i % 4000 AS g, {{}}() FROM range({rows} * 4000) t(i) GROUP BY g ORDER BY g"
        expected = waiting.execute(query.format("count")).fetchall()
        assert waiting.execute(query.format("nothing")).fetchall() == expected


def test_what_raises_for_a_row_that_waited(waiting: duckdb.DuckDBPyConnection) -> None:
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
    # Rows that wait would be many in an exchange of few.
    assert waiting.execute(
        "SELECT i % 2 AS g, steady(i) FROM range(28) t(i) GROUP BY g ORDER BY g"
    ).fetchall() == [
        (0, 1),
        (1, 1),
    ]
