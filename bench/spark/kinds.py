"""Typical programs of users with all kinds of PySpark's functions. Each program gives one row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf, udf, udtf

#: Rows of a window, and rows that a table function returns for each call.
WINDOW, CALL = 100, 10


def sales(spark: SparkSession, rows: int, groups: int) -> DataFrame:
    """Rows of some groups."""
    return spark.range(0, rows, 1, 2).select(
        (F.col("id") % groups).alias("shop"),
        (F.col("id") * 0.5).alias("price"),
        F.col("id").cast("int").alias("day"),
    )


def center(frame: pd.DataFrame) -> pd.DataFrame:
    """Each price less the mean of its group."""
    return frame.assign(price=frame.price - frame.price.mean())


@pandas_udf("double")
def mean(values: pd.Series) -> float:
    """The mean of a group or a window."""
    return values.mean()


@udtf(returnType="place int, word string")
class Words:
    """As many rows as the argument of a call says."""

    def eval(self, count: int) -> Iterator[tuple[int, str]]:
        for place in range(CALL):
            yield place, f"w{count}"


def of_groups(groups_of: int) -> Any:
    """Groups of this many rows, by `applyInPandas`."""

    def program(spark: SparkSession, rows: int) -> DataFrame:
        table = sales(spark, rows, max(rows // groups_of, 1))
        made = table.groupBy("shop").applyInPandas(center, table.schema)
        return made.agg(F.count("*"), F.sum("shop"), F.round(F.sum("price"), 3))

    return program


def skewed(spark: SparkSession, rows: int) -> DataFrame:
    """A group of nearly all rows, and a hundred groups of ten rows, by `applyInPandas`."""
    table = sales(spark, rows, 100)
    last = F.col("day") >= rows - 1_000
    table = table.withColumn("shop", F.when(last, F.col("shop") + 1).otherwise(0))
    made = table.groupBy("shop").applyInPandas(center, table.schema)
    return made.agg(F.count("*"), F.sum("shop"), F.round(F.sum("price"), 3))


def aggregates(spark: SparkSession, rows: int) -> DataFrame:
    """An aggregate of groups of a hundred rows."""
    groups = sales(spark, rows, max(rows // 100, 1)).groupBy("shop").agg(mean("price").alias("mean"))
    return groups.agg(F.count("*"), F.round(F.sum("mean"), 2))


def windows(spark: SparkSession, rows: int) -> DataFrame:
    """The mean of each window of a hundred rows."""
    table = sales(spark, rows, max(rows // WINDOW, 1))
    return table.select(mean("price").over(Window.partitionBy("shop")).alias("mean")).agg(
        F.round(F.sum("mean"), 2)
    )


def sliding(spark: SparkSession, rows: int) -> DataFrame:
    """The mean of the hundred rows around each row."""
    around = Window.partitionBy("shop").orderBy("day").rowsBetween(-WINDOW // 2, WINDOW // 2 - 1)
    return (
        sales(spark, rows, 10).select(mean("price").over(around).alias("mean")).agg(F.round(F.sum("mean"), 2))
    )


def tables(spark: SparkSession, rows: int) -> DataFrame:
    """A table function that is called for each row."""
    spark.udtf.register("words", Words)
    spark.range(0, rows, 1, 2).createOrReplaceTempView("calls")
    return spark.sql("SELECT count(*), sum(place), max(word) FROM calls, LATERAL words(calls.id)")


def broadcast(spark: SparkSession, rows: int) -> DataFrame:
    """A dictionary in which each row is looked up."""
    names = spark.sparkContext.broadcast({number: number * 2 for number in range(100_000)})

    @udf("long")
    def looked_up(number: int) -> int:
        return names.value.get(number % 100_000, -1)

    return spark.range(0, rows, 1, 2).select(looked_up("id").alias("n")).agg(F.sum("n"))


def written(spark: SparkSession) -> DataFrame:
    """A table of five million rows in a Parquet file, which all sessions read."""
    path = Path(spark.conf.get("spark.local.dir")).parent / "rides.parquet"
    if not path.exists():
        number = F.col("id")
        rides = spark.range(0, 5_000_000, 1, 2).select(
            number,
            (number * 37 % 9_100 / 100).alias("distance"),
            (number * 11 % 1_700 / 100).alias("extra"),
            F.concat(F.lit("Main Street "), number % 99_991).alias("place"),
        )
        rides.write.parquet(str(path))
    return spark.read.parquet(str(path))


def numbers_of_a_file(spark: SparkSession, rows: int) -> DataFrame:
    """A vectorized function of two columns of a Parquet file, and a third column."""

    @F.arrow_udf("double")
    def fare(distance: pa.Array, extra: pa.Array) -> pa.Array:
        return pc.add(pc.multiply(distance, 2.5), extra)

    rides = written(spark).select("id", fare("distance", "extra").alias("fare"))
    return rides.where("fare > 10").agg(F.count("*"), F.sum("id"), F.round(F.sum("fare"), 2))


def texts_of_a_file(spark: SparkSession, rows: int) -> DataFrame:
    """A vectorized function of a text column of a Parquet file."""

    @F.arrow_udf("string")
    def slug(place: pa.Array) -> pa.Array:
        return pc.replace_substring(pc.utf8_lower(place), " ", "-")

    slugs = written(spark).where("distance > 20").select(slug("place").alias("slug"))
    # Functions of characters would take longer than the rest.
    return slugs.agg(F.count("slug"), F.sum(F.octet_length("slug")))


def ten_queries(spark: SparkSession, rows: int) -> DataFrame:
    """A program of ten queries that mixes all kinds. The result joins one value of each."""
    tax = spark.sparkContext.broadcast(1.19)
    seen = spark.sparkContext.accumulator(0)

    @udf("double")
    def gross(price: float) -> float:
        return round(price * tax.value, 2)

    @udf("long")
    def counted(day: int) -> int:
        seen.add(1)
        return day % 7

    @pandas_udf("double")
    def scaled(price: pd.Series) -> pd.Series:
        return price / 100

    def cheap(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[frame.price < 1000]

    def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"shop": right.shop[:1], "more": [left.price.sum() - right.price.sum()]})

    shops = max(rows // 100, 1)
    table = sales(spark, rows, shops).cache()
    others = sales(spark, rows, shops)
    few = table.where(F.col("shop") < shops // 10)
    by_day = Window.partitionBy("shop").orderBy("day").rowsBetween(-5, 0)
    spark.udtf.register("words", Words)
    few.createOrReplaceTempView("few")
    results = [
        table.select(gross("price").alias("v")).agg(F.sum("v")),
        table.select(counted("day").alias("v")).agg(F.sum("v")),
        table.select(scaled("price").alias("v")).agg(F.sum("v")),
        table.mapInPandas(cheap, table.schema).agg(F.count("*")),
        table.groupBy("shop").applyInPandas(center, table.schema).agg(F.sum("day")),
        table.groupBy("shop").agg(mean("price").alias("v")).agg(F.sum("v")),
        few.select(mean("price").over(by_day).alias("v")).agg(F.sum("v")),
        few.groupBy("shop")
        .cogroup(others.groupBy("shop"))
        .applyInPandas(both, "shop long, more double")
        .agg(F.sum("more")),
        spark.sql("SELECT sum(place) FROM few, LATERAL words(few.shop)"),
        table.groupBy("shop").agg(mean("price").alias("v")).where(gross("v") > 100).agg(F.count("*")),
    ]
    values = [float(result.first()[0] or 0) for result in results]
    table.unpersist()
    return spark.range(0, 1, 1, 1).select(*(F.lit(round(value, 1)) for value in values))


PROGRAMS = {
    "groups of 1,000 rows": of_groups(1_000),
    "groups of 10 rows": of_groups(10),
    "a skewed group": skewed,
    "aggregates": aggregates,
    "windows": windows,
    "sliding": sliding,
    "tables": tables,
    "broadcast": broadcast,
    "ten queries": ten_queries,
    "numbers of a file": numbers_of_a_file,
    "texts of a file": texts_of_a_file,
}
