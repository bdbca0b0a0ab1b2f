"""Aggregates: classes whose instances hold the accumulated values of a group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane import udaf

from ..conftest import IS_NEWEST, error, eventually, value


def at_rest(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether all lanes are back in their pool."""
    return value(con, "SELECT coalesce(sum(busy), 0) FROM crosslane_pools()") == 0


#: A group in which no row counts has the result of a new instance, 0, where `sum` gives NULL.
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


def test_an_aggregate_gives_the_results_of_duckdbs_own(
    totals: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    # With this setting, even small tables have tasks for all threads.
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
    # Without an order, the lists have the same elements.
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


def test_aggregates_of_no_rows(totals: duckdb.DuckDBPyConnection) -> None:
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
            # The query has removed the states that DuckDB has forgotten, too. No state here may have the
            # number of one of them.
            assert value(totals, "SELECT total(x) FROM data WHERE i = 7") == value(
                totals, "SELECT sum(x) FROM data WHERE i = 7"
            )


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
    # The engine sends instances of this class from lane to lane, though no other process can import the
    # class.
    query = "SELECT sum(p) FROM (SELECT x // 2 AS g, multiplied(x) AS p FROM range(2, 20000) t(x) GROUP BY g)"
    assert value(con, query) == sum(2 * g * (2 * g + 1) for g in range(1, 10000))
    assert eventually(lambda: at_rest(con))
    described = con.execute("SELECT signature, kind, description FROM crosslane_functions()").fetchall()
    assert described == [("multiplied(x BIGINT) -> BIGINT", "aggregate", "Multiplies.")]


def test_names_and_types_that_change(con: duckdb.DuckDBPyConnection) -> None:
    assert crosslane.register(con, Multiplied, name="p") == "p(x BIGINT) -> BIGINT"
    # Another registration may have the same types.
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
    """A class like Multiplied, except for these methods."""
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
