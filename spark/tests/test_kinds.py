"""Table functions, aggregates and streams."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import crosslane.spark

from .conftest import told

#: The same functions in each language. They are those of `conformance`.
NUMBERS = [f"numbers_in_{language}" for language in ("python", "ruby", "js")]
TOTALS = [
    f"{name}_in_{language}" for language in ("python", "ruby", "js") for name in ("total", "total_columns")
]


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def error(spark: SparkSession, query: str) -> str:
    with pytest.raises(Exception, match=r"\S") as caught:
        spark.sql(query).collect()
    return told(str(caught.value))


def rows_of_each(spark: SparkSession, functions: list[str], query: str) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of a query of each function."""
    parts = (f"SELECT '{name}', * FROM ({query.replace('{}', name)})" for name in functions)
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in functions}
    for name, *row in rows(spark, " UNION ALL ".join(parts)):
        found[name].append(tuple(row))
    return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM {}(3)", [(0, "no 0"), (1, "no 1"), (2, "no 2")]),
        ("SELECT count(*), sum(i), max(s) FROM {}(20000)", [(20000, sum(range(20000)), "no 9999")]),
        ("SELECT * FROM {}(0)", []),
        ("SELECT * FROM {}(1000000000) LIMIT 3", [(0, "no 0"), (1, "no 1"), (2, "no 2")]),
    ],
)
def test_a_table_in_from(spark: SparkSession, query: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows_of_each(spark, NUMBERS, query) == dict.fromkeys(NUMBERS, expected)


EACH = [(n, i) for n in range(50) for i in range(n)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id, i FROM range(50), LATERAL {}(id)", EACH),
        ("SELECT id, i FROM range(50) LATERAL VIEW {}(id) t AS i, s", EACH),
        ("SELECT 5, {}(2)", [(5, 0, "no 0"), (5, 1, "no 1")]),
    ],
)
def test_a_table_for_each_row(spark: SparkSession, query: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows_of_each(spark, NUMBERS, query) == dict.fromkeys(NUMBERS, expected)


def test_rows_without_a_table_row(spark: SparkSession) -> None:
    query = "SELECT id, coalesce(i, -1) FROM range(0, 6, 1, 1) LATERAL VIEW OUTER numbers_in_python(id % 3) t AS i, s"
    assert rows(spark, query) == [(0, -1), (1, 0), (2, 0), (2, 1), (3, -1), (4, 0), (5, 0), (5, 1)]
    query = "SELECT id, coalesce(i, -1) FROM range(3) LEFT JOIN LATERAL numbers_in_python(id - 1) ON true"
    assert rows(spark, query) == [(0, -1), (1, -1), (2, 0)]


def test_arguments_that_are_named_or_left_out(spark: SparkSession) -> None:
    assert rows(spark, "SELECT i FROM numbers_in_python(3, 4)") == [(0,), (4,), (8,)]
    assert rows(spark, "SELECT i FROM numbers_in_python(2, step => 5)") == [(0,), (5,)]
    assert rows(spark, "SELECT * FROM numbers_in_python(label => 'x', n => 2)") == [(0, "x 0"), (1, "x 1")]
    for arguments in ("", "1, 2, 'x', 4", "1, other => 2", "1, n => 2"):
        assert "WRONG_NUM_ARGS" in error(spark, f"SELECT i FROM numbers_in_python({arguments})")
    assert rows(spark, "SELECT padded(7), padded(7, 5)") == [("007", "00007")]
    assert "requires [1, 2]" in error(spark, "SELECT padded()")


def test_all_partitions_of_a_table(spark: SparkSession) -> None:
    assert rows(spark, "FROM pages_in_python(2)") == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_table_that_fails(spark: SparkSession) -> None:
    text = error(spark, "SELECT sum(i) FROM unlucky_numbers(100)")
    for part in ("unlucky_numbers: ValueError: thirteen", "kinds.py:", "with n = 100", "partition 0, task"):
        assert part in text
    assert rows(spark, "SELECT sum(i) FROM unlucky_numbers(10)") == [(45,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT {}(id) FROM range(1000)",
        "SELECT id % 7 AS g, {}(id) FROM range(10000) GROUP BY g",
        "SELECT id % 300 AS g, {}(id), {}(-id) FROM range(3000) GROUP BY g",
        "SELECT id % 7 AS g, {}(DISTINCT id % 10), {}(id) FILTER (WHERE id % 2 = 0) FROM range(1000) GROUP BY g",
        "SELECT {}(CASE WHEN id % 2 = 0 THEN id END) FROM range(1000)",
        "SELECT id, {}(id) OVER (PARTITION BY id % 3 ORDER BY id) FROM range(60)",
        "SELECT id, {}(id) OVER (PARTITION BY id % 3 ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) FROM range(60)",
        "SELECT id, {}(id) OVER (PARTITION BY id % 3) FROM range(60)",
        "SELECT g FROM (SELECT id % 5 AS g, id FROM range(100)) GROUP BY g HAVING {}(id) > 960",
    ],
)
def test_aggregates(spark: SparkSession, subtests: pytest.Subtests, query: str) -> None:
    found = rows_of_each(spark, ["sum", *TOTALS], query)
    for function in TOTALS:
        with subtests.test(function):
            assert found[function] == found["sum"]


def test_an_aggregate_of_nothing(spark: SparkSession) -> None:
    assert rows(spark, "SELECT total_in_python(id), listed_in_python(id) FROM range(10) WHERE id > 10") == [
        (0, [])
    ]


def test_partial_aggregation_and_what_travels(spark: SparkSession) -> None:
    query = "SELECT id % 2 AS g, sort_array(listed_in_python(id)) AS l FROM range(0, 40, 1, 4) GROUP BY g"
    plan = spark.sql(query)._jdf.queryExecution().executedPlan().toString()
    assert "partial_listed_in_python(" in plan
    expected = [(g, list(range(g, 40, 2))) for g in (0, 1)]
    assert rows(spark, query) == expected
    assert "unmerged_in_python: ValueError: no merge" in error(
        spark, "SELECT unmerged_in_python(id) FROM range(0, 1000, 1, 3)"
    )


def test_memory_of_many_groups_is_given_back(spark: SparkSession) -> None:
    query = "SELECT count(*), sum(t) FROM (SELECT id % 5000 AS g, total_in_python(id) AS t FROM range(20000) GROUP BY g)"
    assert rows(spark, query) == [(5000, sum(range(20000)))]


def test_a_stream(spark: SparkSession) -> None:
    table = spark.range(0, 5000, 1, 3).selectExpr("string(id) AS s", "id AS i", "1 AS other")
    made = crosslane.spark.map(table, "doubled")
    assert made.columns == ["j", "t"]
    assert "CrosslaneStream doubled(" in made._jdf.queryExecution().executedPlan().toString()
    expected = sorted([(i, str(i)) for i in range(5000)] * 2)
    assert sorted(tuple(row) for row in made.collect()) == expected
    assert crosslane.spark.map(spark.sql("SELECT 1 AS i, 'a' AS s WHERE false"), "doubled").collect() == []
    with pytest.raises(Exception, match="there is no stream function nothing; there are: doubled"):
        crosslane.spark.map(table, "nothing")
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        crosslane.spark.map(spark.range(3), "doubled")
