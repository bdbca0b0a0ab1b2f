"""PySpark's own functions over lanes: an unchanged program has the same results as without lanes."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ..conftest import MOST

ENABLED = "spark.crosslane.pyspark.enabled"


@contextlib.contextmanager
def lanes(spark: SparkSession, on: bool) -> Iterator[None]:
    """Runs a block with or without lanes for PySpark's functions."""
    spark.conf.set(ENABLED, on)
    try:
        yield
    finally:
        spark.conf.unset(ENABLED)


def plan(table: DataFrame) -> str:
    """The text of EXPLAIN."""
    return table._jdf.queryExecution().executedPlan().toString()


def same(spark: SparkSession, table: Callable[[], DataFrame]) -> None:
    """A table is the same with and without lanes. With lanes, the lanes make it."""
    with lanes(spark, False):
        assert "Crosslane" not in plan(table())
        expected = table().collect()
    with lanes(spark, True):
        assert "CrosslaneEval" in plan(table()) or "CrosslaneStream" in plan(table())
        assert "CrosslaneDeclined" not in plan(table())
        assert "CrosslaneWorker" not in plan(table())
        got = table().collect()
    assert repr(got) == repr(expected)
    assert table().schema == table().schema


def same_columns(
    spark: SparkSession, subtests: pytest.Subtests, rows: DataFrame, calls: dict[str, list[Column]]
) -> None:
    """The columns of each call are the same with and without lanes. One query has the columns of all
    calls."""
    results = [column for columns in calls.values() for column in columns]
    with lanes(spark, False):
        table = rows.select(results)
        assert "Crosslane" not in plan(table)
        expected = table.collect()
    with lanes(spark, True):
        table = rows.select(results)
        assert "CrosslaneEval" in plan(table)
        assert "CrosslaneDeclined" not in plan(table)
        assert "CrosslaneWorker" not in plan(table)
        # Spark itself evaluates none of the functions.
        assert "EvalPython" not in plan(table)
        got = table.collect()
    first = 0
    for name, columns in calls.items():
        with subtests.test(name):
            last = first + len(columns)
            assert repr([row[first:last] for row in got]) == repr([row[first:last] for row in expected])
            assert len(got) == len(expected)
        first += len(columns)


VALUES: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), [True, False, None]),
    (T.ByteType(), [-128, 0, 127, None]),
    (T.ShortType(), [-32768, 1, None]),
    (T.IntegerType(), [2**31 - 1, -5, None]),
    (T.LongType(), [2**63 - 1, -(2**53) - 1, 0, None]),
    (T.FloatType(), [1.5, float("inf"), None]),
    (T.DoubleType(), [1e300, -0.0, float("nan"), None]),
    (T.StringType(), ["", "häh", "x" * 1000, None]),
    (T.BinaryType(), [bytearray(b""), bytearray(b"\x00\xff"), None]),
    (T.DateType(), [datetime.date(1600, 2, 29), datetime.date(2026, 11, 25), None]),
    (T.TimestampType(), [datetime.datetime(1999, 12, 31, 23, 59, 59, 999999), None]),
    (T.TimestampNTZType(), [datetime.datetime(2026, 3, 29, 2, 30), None]),
    (T.DecimalType(38, 10), [Decimal("1.5"), Decimal("-9999999999999999999999999999.9999999999"), None]),
]


@pytest.mark.parametrize("arrow", [False, True], ids=["pickled", "arrow"])
def test_rows_of_each_type(spark: SparkSession, subtests: pytest.Subtests, arrow: bool) -> None:
    schema = T.StructType([T.StructField(kind.typeName(), kind) for kind, _ in VALUES])
    # Each column has its values first, and then NULLs.
    most = max(len(values) for _, values in VALUES)
    data = zip(*(values + [None] * (most - len(values)) for _, values in VALUES))
    rows = spark.createDataFrame(list(data), schema).coalesce(1)
    shown = F.udf(lambda value: f"{type(value).__name__} {value!r}", "string", useArrow=arrow)
    calls = {}
    for name, kind in zip(schema.names, schema):
        same_value = F.udf(lambda value: value, kind.dataType, useArrow=arrow)
        calls[name] = [same_value(name), shown(name)]
    same_columns(spark, subtests, rows, calls)


def test_results_of_another_type(spark: SparkSession, subtests: pytest.Subtests) -> None:
    calls = {}
    for result in (1, 2**40, 2.5, True, "text", b"bytes", None, datetime.date(2000, 1, 1)):
        kinds = ["long", "double", "boolean", "int", "binary"]
        # PySpark itself raises an error for all other results.
        if result is None or isinstance(result, datetime.date):
            kinds.append("date")
        # Java's text of these objects has no meaning, and changes from run to run.
        if not isinstance(result, bytes | datetime.date):
            kinds.append("string")
        for kind in kinds:
            # Each function has its own result.
            function = F.udf(lambda _, result=result: result, kind, useArrow=False)
            calls[f"{result!r} as {kind}"] = [function("id")]
    same_columns(spark, subtests, spark.range(0, 3, 1, 1), calls)


@pytest.mark.usefixtures("short_batches")
def test_columns(spark: SparkSession) -> None:
    @F.pandas_udf("long")
    def plus_one(x: pd.Series) -> pd.Series:
        return x + 1

    @F.pandas_udf("string")
    def joined(a: pd.Series, b: pd.Series) -> pd.Series:
        return a.astype(str) + b

    @F.pandas_udf("x long, y string")
    def both(a: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"x": a, "y": a.astype(str)})

    rows = spark.range(0, 2_500, 1, 2).withColumn("s", F.concat(F.lit("s"), "id"))
    same(spark, lambda: rows.select(plus_one("id"), joined("id", "s"), both("id"), plus_one(plus_one("id"))))


@pytest.mark.parametrize("most", [10_000, 1000, 0])
def test_a_function_of_columns_sees_spark_s_batches(spark: SparkSession, most: int) -> None:
    @F.pandas_udf("long")
    def length(x: pd.Series) -> pd.Series:
        return pd.Series([len(x)] * len(x))

    spark.conf.set(MOST, most)
    try:
        # A batch of ten thousand rows has ten megabytes.
        rows = spark.range(0, 20_000, 1, 1).withColumn("s", F.repeat(F.lit("x"), 1000))
        same(spark, lambda: rows.groupBy(length("s")).count())
    finally:
        spark.conf.unset(MOST)


def test_a_chain_and_several_in_one_query(spark: SparkSession) -> None:
    plus = F.udf(lambda x: x + 1, "long", useArrow=False)
    text = F.udf(lambda x: f"<{x}>", "string", useArrow=False)
    same(
        spark,
        lambda: (
            spark.range(100)
            .select(text(plus(plus("id"))).alias("t"), plus("id").alias("p"))
            .where(plus("p") % 2 == 0)
            .groupBy("p")
            .agg(F.max("t"))
            .orderBy("p")
        ),
    )


def test_the_users_exception(spark: SparkSession) -> None:
    def inverse(x: int) -> int:
        return 1 // x

    texts = []
    for on in (False, True):
        with lanes(spark, on), pytest.raises(PythonException) as caught:
            spark.range(0, 3, 1, 1).select(F.udf(inverse, "long", useArrow=False)("id")).collect()
        texts.append(str(caught.value))
    without, over_lanes = texts
    last = "ZeroDivisionError: integer division or modulo by zero"
    assert last in without
    assert last in over_lanes
    assert "in inverse" in over_lanes
    assert over_lanes.split("Traceback")[0] == without.split("Traceback")[0]


def test_a_broadcast_variable(spark: SparkSession, subtests: pytest.Subtests) -> None:
    shared = spark.sparkContext.broadcast({number: f"n{number}" for number in range(10)})
    other = spark.sparkContext.broadcast([5])
    rows = spark.range(0, 10, 1, 2)
    look_up = {"pickled": F.udf(lambda x: shared.value[x] * other.value[0], "string", useArrow=False)}
    look_up["pandas"] = F.pandas_udf(lambda x: x.map(shared.value), "string", F.PandasUDFType.SCALAR)
    same_columns(spark, subtests, rows, {name: [function("id")] for name, function in look_up.items()})
    same(
        spark,
        lambda: rows.mapInPandas(
            lambda frames: (f.assign(id=f.id + other.value[0]) for f in frames), "id long"
        ),
    )
    large = "x" * 3_000_000
    same(
        spark,
        lambda: rows.select(F.udf(lambda x: large[x:], "string", useArrow=False)("id").alias("s")).selectExpr(
            "length(s)"
        ),
    )
    # Spark raises the same error for a variable that the program has destroyed.
    other.destroy()
    for on in (False, True):
        with lanes(spark, on), pytest.raises(Exception, match="after it was destroyed"):
            rows.select(look_up["pickled"]("id")).collect()


def test_without_the_setting_nothing_is_taken_over(spark: SparkSession) -> None:
    assert "Crosslane" not in plan(spark.range(3).select(F.udf(lambda x: x, "long")("id")))


RATES = {"a": 2, "b": 3}


def rated(name: str, count: int) -> int:
    return RATES[name] * count if name is not None else -1


def halved(x: int) -> float:
    return x if x % 3 == 0 else x / 2


def next_day(day: datetime.date, days: int) -> datetime.date:
    return day + datetime.timedelta(days=days)


def small(x: int) -> int:
    return x + 2**31 - 3


@pytest.mark.parametrize("arrow", [False, True], ids=["pickled", "arrow"])
def test_functions_that_are_evaluated_by_columns(
    spark: SparkSession, subtests: pytest.Subtests, arrow: bool
) -> None:
    rows = spark.createDataFrame(
        [
            ("a", 1, datetime.date(2024, 2, 28)),
            ("b", 2**60, datetime.date(1, 1, 1)),
            (None, 3, None),
            ("a", 4, None),
        ],
        "name string, count long, day date",
    )
    calls = {
        "rated": [F.udf(rated, "long", useArrow=arrow)("name", "count")],
        "an int where a float is due": [F.udf(halved, "double", useArrow=arrow)("count")],
        "dates": [F.udf(lambda day: None if day is None else day.year, "int", useArrow=arrow)("day")],
    }
    if not arrow:
        # Without Arrow, a number that is too large becomes NULL.
        calls["a long sum where an int is due"] = [F.udf(small, "int", useArrow=arrow)("count")]
    same_columns(spark, subtests, rows, calls)
    moved = F.udf(next_day, "date", useArrow=arrow)
    same(spark, lambda: rows.where("day is not null").select(moved("day", F.col("count") % 100)))
    with lanes(spark, True), pytest.raises(PythonException, match="TypeError: unsupported operand"):
        rows.select(moved("day", "count")).where("name is null").collect()


def test_the_users_function_is_translated() -> None:
    from pyspark.cloudpickle import dumps

    from crosslane._engines.spark.declare import declare
    from crosslane._engines.spark.support import version
    from crosslane._worker import translation

    def reason(function: Callable[..., Any], returns: str, *types: str, kind: int = 100) -> str | None:
        sql = {"long": "BIGINT", "string": "VARCHAR", "double": "DOUBLE", "timestamp": "TIMESTAMPTZ"}
        inner = ", ".join(f"a{number} {sql[one]}" for number, one in enumerate(types))
        names = [f'"{one}"' for one in types]
        command = dumps((function, T._parse_datatype_json_string(f'"{returns}"')))
        declared = declare(
            "f", f"f({inner}) -> {sql[returns]}", command, kind, names, f'"{returns}"', {}, "", {}
        )
        return translation.reason_against(declared[0])

    assert reason(rated, "long", "string", "long") is None
    assert reason(lambda x: x + 1, "long", "long") is None
    if version() >= (4, 1):
        assert reason(lambda x: x + 1, "long", "long", kind=101) is None
    # This is a function of pandas.
    assert reason(lambda x: x + 1, "long", "long", kind=200) == "it is a function of columns already"
    # If a float is due and the result is an int, PySpark makes it NULL.
    assert reason(lambda x: x + 1, "double", "long") == "its results are not of type DOUBLE"
    # The value is in the time zone of this process.
    assert reason(lambda _: 1, "long", "timestamp") == "inline=False"
