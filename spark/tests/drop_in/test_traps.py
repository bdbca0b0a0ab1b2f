"""Failures of PySpark's functions in workers of Crosslane's daemon are the same as in Spark's workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from .test_groups import same, told_of
from .test_scalar import lanes

Frame = pd.DataFrame
TIMEOUT, KILL = (
    f"spark.sql.execution.pyspark.udf.{name}" for name in ("idleTimeoutSeconds", "killOnIdleTimeout")
)


@F.pandas_udf(T.DoubleType())
def mean(values: pd.Series) -> float:
    return values.mean()


@F.udtf(returnType=T.StructType([T.StructField("n", T.LongType())]))
class Twice:
    def eval(self, number: int) -> Iterator[tuple[int]]:
        yield (number,)
        yield (2 * number,)


def lateral(table: DataFrame) -> DataFrame:
    """A table function that is called for each row."""
    session = table.sparkSession
    session.udtf.register("twice_each", Twice)
    table.createOrReplaceTempView("trap_rows")
    return session.sql("SELECT k, n FROM trap_rows, LATERAL twice_each(id)")


#: Queries of each kind over a table with the columns `id` and `k`.
KINDS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "groups": lambda table: table.groupBy("k").applyInPandas(lambda frame: frame, "id long, k long"),
    "arrow groups": lambda table: table.groupBy("k").applyInArrow(lambda rows: rows, "id long, k long"),
    "cogroups": lambda table: (
        table.groupBy("k")
        .cogroup(table.sparkSession.range(5).withColumnRenamed("id", "k").groupBy("k"))
        .applyInPandas(lambda left, right: left.head(2), "id long, k long")
    ),
    "aggregates": lambda table: table.groupBy("k").agg(mean("id").alias("m")),
    "windows": lambda table: table.select("id", mean("id").over(Window.partitionBy("k")).alias("m")),
    "tables": lateral,
}


def table(spark: SparkSession, count: int = 3000) -> DataFrame:
    return spark.range(0, count, 1, 2).withColumn("k", F.col("id") % 5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_fails(spark: SparkSession, kind: str) -> None:
    bad = table(spark).withColumn("id", F.expr("if(id = 777, raise_error('a bad row'), id)"))
    same(spark, lambda: KINDS[kind](bad), fails=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_leaves_nothing_in_a_worker(spark: SparkSession, kind: str) -> None:
    """Some queries stop early, and some fail. A query after them has the right rows."""
    with lanes(spark, False):
        expected = sorted(map(tuple, KINDS[kind](table(spark)).collect()))

    def fails(frame: Frame) -> Frame:
        raise ValueError(f"no group {frame.k[0]}")

    with lanes(spark, True):
        for _ in range(3):
            assert len(KINDS[kind](table(spark, 30_000)).limit(2).collect()) == 2
            failing = table(spark).groupBy("k").applyInPandas(fails, "id long")
            assert "no group" in told_of(failing.collect)
            assert sorted(map(tuple, KINDS[kind](table(spark)).collect())) == expected


def test_a_worker_carries_nothing_over(spark: SparkSession) -> None:
    def look(frame: Frame) -> Frame:
        context = TaskContext.get()
        return pd.DataFrame({
            "stage": [context.stageId()],
            "group": [context.getLocalProperty("trap.group")],
        })  # fmt: skip

    with lanes(spark, True):
        stages = set()
        for group in ("one", "two", None):
            spark.sparkContext.setLocalProperty("trap.group", group)
            made = spark.range(0, 2, 1, 1).groupBy("id").applyInPandas(look, "stage long, group string")
            seen = made.collect()
            assert {row.group for row in seen} == {group}
            stages |= {row.stage for row in seen}
        assert len(stages) == 3


# Older versions of Spark do not end an idle worker.
@pytest.mark.any_spark
@pytest.mark.parametrize("kill", [False, True])
def test_a_function_that_is_idle_for_too_long(spark: SparkSession, kill: bool) -> None:
    def sleeps(frame: Frame) -> Frame:
        time.sleep(60 if kill else 2)
        return frame

    spark.conf.set(TIMEOUT, 1)
    spark.conf.set(KILL, kill)
    try:
        same(
            spark, lambda: spark.range(0, 1, 1, 1).groupBy("id").applyInPandas(sleeps, "id long"), fails=kill
        )
    finally:
        spark.conf.unset(TIMEOUT)
        spark.conf.unset(KILL)
