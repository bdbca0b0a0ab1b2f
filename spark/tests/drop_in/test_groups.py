"""PySpark's functions of groups and windows in workers of Crosslane's daemon have the same results as in
Spark's workers."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ..conftest import MOST
from .test_scalar import VALUES, lanes, plan

Frame = pd.DataFrame


def told_of(run: Callable[[], Any]) -> str:
    """The result of a query, or the end of its error. The frames of the tracebacks differ."""
    try:
        return repr(run())
    except Exception as error:
        text = str(error).split("Driver stacktrace")[0].split("\tat org.")[0]
        last = re.sub(r"(stage|TID|task) [\d.]+", r"\1", text.strip().splitlines()[-1])
        return f"{type(error).__name__}: {last}"


def same(spark: SparkSession, table: Callable[[], DataFrame], fails: bool | None = False) -> None:
    """A table, or its error, is the same with Spark's workers and with Crosslane's."""
    with lanes(spark, False):
        assert "Crosslane" not in plan(table())
        expected = told_of(table().collect)
    with lanes(spark, True):
        shown = plan(table())
        assert "CrosslaneWorker" in shown
        assert "CrosslaneDeclined" not in shown
        assert told_of(table().collect) == expected
    if fails is not None:
        assert expected.startswith("[") is not fails, expected


@functools.cache
def of_all_types(spark: SparkSession) -> DataFrame:
    """Rows with a key (NULL in one group), and values of all types: some groups have NULLs, and some have none."""
    schema = T.StructType([T.StructField(kind.typeName(), kind) for kind, _ in VALUES])
    data = []
    for key in (1, 2, None):
        for row in range(5):
            columns = []
            for _, values in VALUES:
                some = [one for one in values if one is not None] if key == 1 else values
                columns.append(some[row % len(some)])
            data.append((key, row, *columns))
    head = T.StructType([T.StructField("key", T.LongType()), T.StructField("row", T.IntegerType())])
    return spark.createDataFrame(data, T.StructType(head.fields + schema.fields)).coalesce(1).cache()


def kind(value: Any) -> str:
    """The class and the text of a value in a function."""
    return f"{type(value).__name__} {value!r}"


def look(frame: Frame) -> Frame:
    """The types and values of a data frame in a function."""
    seen = [
        f"{name} {column.dtype} {[kind(one) for one in column]} {column.to_numpy().flags.writeable}"
        for name, column in frame.items()
    ]
    said = [f"{frame.index!r} {frame.columns!r} {frame.shape}", *seen]
    return pd.DataFrame({"place": range(len(said)), "said": said})


def test_a_data_frame_of_all_types(spark: SparkSession) -> None:
    table = of_all_types(spark)
    same(spark, lambda: table.groupBy("key").applyInPandas(look, "place int, said string"))


def test_a_wide_data_frame(spark: SparkSession) -> None:
    wide = of_all_types(spark).select("key", *(F.col("double").alias(f"d{number}") for number in range(40)))
    same(spark, lambda: wide.groupBy("key").applyInPandas(look, "place int, said string"))


def test_a_result_of_all_types(spark: SparkSession) -> None:
    # With a NULL, the largest BIGINT becomes a float with another value, and both sides fail.
    table = of_all_types(spark).withColumn("long", F.when(F.expr("key = 1"), F.col("long")))
    same(spark, lambda: table.groupBy("key").applyInPandas(lambda frame: frame, table.schema))
    same(
        spark,
        lambda: table.groupBy("key").applyInPandas(lambda frame: frame[frame.columns[::-1]], table.schema),
    )


def test_the_function_may_change_its_data_frame(spark: SparkSession) -> None:
    def changed(frame: Frame) -> Frame:
        frame["double"] *= 2
        frame.loc[0, "short"] = 7
        frame.iloc[1, 1] = 5
        return frame

    table = of_all_types(spark).select("key", "row", "double", "short", "string")
    same(spark, lambda: table.groupBy("key").applyInPandas(changed, table.schema))


RESULTS: dict[str, Callable[[], Frame]] = {
    "other order": lambda: pd.DataFrame({"s": ["x"], "d": [1.5], "k": [1]}),
    "other widths": lambda: pd.DataFrame({"k": np.array([1], "i4"), "d": np.array([1.5], "f4"), "s": ["x"]}),
    "floats for integers": lambda: pd.DataFrame({"k": [1.0], "d": [1], "s": ["x"]}),
    "not whole": lambda: pd.DataFrame({"k": [1.5], "d": [1.5], "s": ["x"]}),
    "none at all": lambda: pd.DataFrame(
        {"k": [None, 1], "d": [None, float("nan")], "s": [None, float("nan")]}
    ),
    "no rows": lambda: pd.DataFrame({"k": [], "d": [], "s": []}),
    "nothing": lambda: pd.DataFrame(),
    "by position": lambda: pd.DataFrame([[1, 2.5, "x"]]),
    "numbers for text": lambda: pd.DataFrame({"k": [1], "d": [1.5], "s": [5]}),
    "text for numbers": lambda: pd.DataFrame({"k": ["one"], "d": [1.5], "s": ["x"]}),
    "bytes for text": lambda: pd.DataFrame({"k": [1], "d": [1.5], "s": [b"x"]}),
    "booleans": lambda: pd.DataFrame({"k": [True], "d": [False], "s": ["x"]}),
    "too large": lambda: pd.DataFrame({"k": [2**70], "d": [1.5], "s": ["x"]}),
    "unsigned": lambda: pd.DataFrame({"k": np.array([2**63], "u8"), "d": [1.5], "s": ["x"]}),
    "nullable": lambda: pd.DataFrame({"k": pd.array([1, None], "Int64"), "d": [1.5, 2], "s": ["x", "y"]}),
    "categories": lambda: pd.DataFrame({"k": [1, 2], "d": [1.5, 2], "s": pd.Categorical(["x", "y"])}),
    "decimals": lambda: pd.DataFrame({"k": [1], "d": [Decimal(2)], "s": ["x"]}),
    "twice": lambda: pd.DataFrame([[1, 1.5, "x", 2]], columns=["k", "d", "s", "k"]),
    "missing": lambda: pd.DataFrame({"k": [1], "d": [1.5]}),
    "further": lambda: pd.DataFrame({"k": [1], "d": [1.5], "s": ["x"], "t": [1]}),
    "an index": lambda: pd.DataFrame({"k": [1, 2], "d": [1.5, 2], "s": ["x", "y"]}, index=[5, 5]),
    "a series": lambda: pd.Series([1]),  # type: ignore[return-value, dict-item]
    "a surrogate": lambda: pd.DataFrame({"k": [1], "d": [1.5], "s": ["\ud800"]}),
    "stops": lambda: next(iter(())),
    "raises": lambda: pd.DataFrame({"k": [1 // 0]}),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_result(spark: SparkSession, what: str) -> None:
    make, table = RESULTS[what], spark.range(0, 4, 1, 1)
    same(
        spark,
        lambda: table.groupBy("id").applyInPandas(lambda _: make(), "k long, d double, s string"),
        fails=None,
    )


def test_keys_and_several_columns(spark: SparkSession) -> None:
    def told(key: tuple[Any, ...], frame: Frame) -> Frame:
        return pd.DataFrame({"keys": [", ".join(map(kind, key))], "rows": [len(frame)]})

    table = of_all_types(spark)
    for keys in (["key"], ["boolean", "double", "string"], ["timestamp", "date"], [F.col("row") % 2], []):
        same(spark, lambda keys=keys: table.groupBy(*keys).applyInPandas(told, "keys string, rows long"))


def test_columns_by_position(spark: SparkSession) -> None:
    setting = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
    table = spark.range(0, 4, 1, 1)

    def swapped(_: Frame) -> Frame:
        return pd.DataFrame({"b": [1], "a": [2]})

    for by_name in (True, False):
        spark.conf.set(setting, by_name)
        try:
            same(spark, lambda: table.groupBy("id").applyInPandas(swapped, "a long, b long"))
        finally:
            spark.conf.unset(setting)


def test_casts_that_are_not_safe(spark: SparkSession) -> None:
    setting = "spark.sql.execution.pandas.convertToArrowArraySafely"
    table = spark.range(0, 4, 1, 1)

    def wide(_: Frame) -> Frame:
        return pd.DataFrame({"k": [2**40 + 5], "d": [1e300]})

    for safe in (True, False):
        spark.conf.set(setting, safe)
        try:
            same(spark, lambda: table.groupBy("id").applyInPandas(wide, "k int, d float"), fails=None)
        finally:
            spark.conf.unset(setting)


@pytest.mark.usefixtures("short_batches")
def test_a_group_of_many_batches(spark: SparkSession) -> None:
    rows = spark.range(0, 2_000, 1, 2).select(
        (F.col("id") % 3).alias("k"), F.col("id").alias("v"), F.lit("x").alias("s")
    )

    def summed(frame: Frame) -> Frame:
        return pd.DataFrame(
            {"k": frame.k[:1], "rows": [len(frame)], "v": [frame.v.sum()], "s": [frame.s.str.cat()]}
        )

    same(spark, lambda: rows.groupBy("k").applyInPandas(summed, "k long, rows long, v long, s string"))


def test_cogroups(spark: SparkSession) -> None:
    left = of_all_types(spark).select("key", "row", "double", "string")
    right = of_all_types(spark).where("key > 1 OR key IS NULL").select("key", "long", "binary")

    def both(key: tuple[Any, ...], a: Frame, b: Frame) -> Frame:
        seen = [str(look(one)["said"].tolist()) for one in (a, b)]
        return pd.DataFrame({"key": [kind(key)], "a": seen[:1], "b": seen[1:]})

    def cogroup() -> DataFrame:
        return (
            left.groupBy("key")
            .cogroup(right.groupBy("key"))
            .applyInPandas(both, "key string, a string, b string")
        )

    same(spark, cogroup)

    def arrow(a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.table({"a": [a.num_rows], "b": [b.num_rows]})

    same(
        spark,
        lambda: left.groupBy("key").cogroup(right.groupBy("key")).applyInArrow(arrow, "a long, b long"),
    )


def test_groups_with_arrow(spark: SparkSession) -> None:
    table = of_all_types(spark)
    same(spark, lambda: table.groupBy("key").applyInArrow(lambda group: group, table.schema))


@pytest.mark.any_spark
def test_groups_as_iterators(spark: SparkSession) -> None:
    def counted(batches: Iterator[Frame]) -> Iterator[Frame]:
        for frame in batches:
            yield pd.DataFrame({"rows": [len(frame)], "v": [frame.v.sum()]})

    def counted_by_key(key: tuple[Any, ...], batches: Iterator[Frame]) -> Iterator[Frame]:
        for _ in batches:
            yield pd.DataFrame({"rows": [key[0]], "v": [1]})
            break

    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "v": [1]})

    # PySpark finds the kind of a function by its annotations.
    for function in (counted, counted_by_key, arrow):
        names = {"batches": Iterator[pa.RecordBatch] if function is arrow else Iterator[pd.DataFrame]}
        function.__annotations__ = {
            **({"key": tuple[Any, ...]} if function is counted_by_key else {}),
            **names,
            "return": names["batches"],
        }
    rows = spark.range(0, 3_000, 1, 2).select((F.col("id") % 3).alias("k"), F.col("id").alias("v"))
    spark.conf.set(MOST, 100)
    try:
        same(spark, lambda: rows.groupBy("k").applyInPandas(counted, "rows long, v long"))
        same(spark, lambda: rows.groupBy("k").applyInPandas(counted_by_key, "rows long, v long"))
        same(spark, lambda: rows.groupBy("k").applyInArrow(arrow, "rows long, v long"))
    finally:
        spark.conf.unset(MOST)


def aggregate(function: Callable[..., Any], returns: str = "string") -> Any:
    """A `@pandas_udf` of one column."""
    function.__annotations__ = {"v": pd.Series, "return": object}
    return F.pandas_udf(function, returns, F.PandasUDFType.GROUPED_AGG)


@pytest.mark.filterwarnings("ignore:In Python")
def test_an_aggregate_of_all_types(spark: SparkSession) -> None:
    seen = aggregate(
        lambda v: f"{v.name} {v.dtype} {v.index!r} {[kind(one) for one in v]} {v.to_numpy().flags.writeable}"
    )
    table = of_all_types(spark)
    calls = [seen(name).alias(name) for name in table.columns]
    same(spark, lambda: table.groupBy("key").agg(*calls))
    same(spark, lambda: table.agg(*calls))


VALUES_OF_AGGREGATES: dict[str, list[Any]] = {
    "double": [1.5, np.float64(2.5), 3, np.float32(1.5), None, float("nan"), True],
    "long": [1, np.int64(2), np.int32(3), 4.0, True, None, float("nan"), 2**63 - 1],
    "int": [1, np.int32(2), 2**31 - 1, None],
    "string": ["text", None],
    "boolean": [True, np.bool_(False), None],
    "date": [datetime.date(2020, 1, 1), None],
    "timestamp": [datetime.datetime(2020, 1, 1, 12), pd.Timestamp("2021-01-01"), None],
    "decimal(10,2)": [Decimal("1.5"), None],
    "array<long>": [[1, 2], None],
    "binary": [b"x", None],
}
REFUSED = {
    "long": [1.5, 2**63, "x"],
    "string": [1, np.str_("x"), float("nan")],
    "int": [2**31],
    "double": ["x", Decimal(1)],
    "boolean": ["x", 1.5],
}


@pytest.mark.filterwarnings("ignore:In Python")
def test_values_of_aggregates(spark: SparkSession, subtests: pytest.Subtests) -> None:
    rows = spark.range(0, 8, 1, 1)
    for returns, values in VALUES_OF_AGGREGATES.items():
        with subtests.test(returns):
            each = aggregate(lambda v, values=values: values[v[0] % len(values)], returns)
            table = rows.groupBy("id").agg(each("id").alias("each")).orderBy("id")
            over = rows.select(each("id").over(Window.partitionBy("id")).alias("over"))
            same(spark, lambda table=table: table.select("*"))
            same(spark, lambda over=over: over.select("*"))


@pytest.mark.filterwarnings("ignore:In Python")
def test_values_that_aggregates_may_not_return(spark: SparkSession, subtests: pytest.Subtests) -> None:
    rows = spark.range(0, 1, 1, 1)
    for returns, values in REFUSED.items():
        for value in values:
            with subtests.test(f"{value!r} as {returns}"):
                one = aggregate(lambda v, value=value: value, returns)
                same(spark, lambda one=one: rows.groupBy("id").agg(one("id")), fails=None)


@pytest.mark.filterwarnings("ignore:In Python")
def test_windows(spark: SparkSession) -> None:
    most = aggregate(lambda v: float(v.max()) if len(v) else None, "double")
    count = aggregate(lambda v: len(v), "long")
    table = of_all_types(spark).select("key", "row", "double", "string")
    by_key = Window.partitionBy("key").orderBy("row")
    frames = {
        "whole": Window.partitionBy("key"),
        "rows": by_key.rowsBetween(-1, 1),
        "from the first": by_key.rowsBetween(Window.unboundedPreceding, 0),
        "to the last": by_key.rowsBetween(1, Window.unboundedFollowing),
        "range": by_key.rangeBetween(-2, 0),
        "all": Window.orderBy("key", "row").rowsBetween(-2, 0),
    }
    calls = [
        call.over(frame).alias(f"{name} {at}")
        for name, frame in frames.items()
        for at, call in enumerate((most("double"), count("string")))
    ]
    same(spark, lambda: table.select("key", "row", *calls))


@pytest.mark.any_spark
def test_aggregates_and_windows_with_arrow(spark: SparkSession) -> None:
    import pyarrow.compute as pc

    @F.arrow_udf("double")
    def mean(v: pa.Array) -> float:
        return pc.mean(v).as_py()

    table = of_all_types(spark)
    same(spark, lambda: table.groupBy("key").agg(mean("double"), mean("row")))
    rows = Window.partitionBy("key").orderBy("row").rowsBetween(-1, 0)
    same(spark, lambda: table.select(mean("double").over(rows), mean("row").over(Window.partitionBy("key"))))


@pytest.mark.any_spark
def test_aggregates_of_iterators(spark: SparkSession) -> None:
    @F.pandas_udf("double")
    def mean(batches: Iterator[pd.Series]) -> float:
        return float(np.mean([batch.sum() for batch in batches]))

    table = of_all_types(spark)
    same(spark, lambda: table.groupBy("key").agg(mean("row")))


@pytest.mark.filterwarnings("ignore:In Python")
def test_groups_in_larger_queries(spark: SparkSession) -> None:
    most = aggregate(lambda v: float(v.max()), "double")
    rows = spark.range(0, 1_000, 1, 4).select((F.col("id") % 5).alias("k"), (F.col("id") * 0.5).alias("v"))
    groups = rows.groupBy("k").applyInPandas(lambda frame: frame.nsmallest(2, "v"), "k long, v double")
    same(spark, lambda: groups.join(rows.groupBy("k").agg(most("v").alias("most")), "k").orderBy("k", "v"))
    same(spark, lambda: groups.where("v > 1").orderBy("k", "v").limit(3).groupBy("k").agg(most("v")))
    same(
        spark, lambda: rows.where("v < 0").groupBy("k").applyInPandas(lambda frame: frame, "k long, v double")
    )
    rows.createOrReplaceTempView("rows")
    spark.udf.register("most", most)
    same(
        spark,
        lambda: spark.sql("SELECT k FROM rows GROUP BY k HAVING most(v) > (SELECT most(v) - 1 FROM rows)"),
    )
    same(spark, lambda: spark.sql("SELECT most(v) FROM rows WHERE v < 0"))
    same(
        spark,
        lambda: spark.sql("SELECT k, most(v), most(v) + most(v * 2) FROM rows GROUP BY ROLLUP(k) ORDER BY k"),
    )
    with lanes(spark, True):
        cached = groups.cache()
        try:
            assert "CrosslaneWorker" in plan(cached)
            found = sorted(map(tuple, cached.collect()))
        finally:
            cached.unpersist()
    assert found == sorted((k, (k + 5 * row) * 0.5) for k in range(5) for row in range(2))
