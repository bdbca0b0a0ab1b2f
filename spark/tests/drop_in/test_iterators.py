"""PySpark's functions of iterators over lanes. A task has one call, which sees all batches of the task."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from queue import Queue
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import crosslane.spark
from crosslane import udf, udtf

from ..conftest import MOST, eventually
from .test_scalar import lanes, plan

HAS_ARROW_UDF = hasattr(F, "arrow_udf")


def same(spark: SparkSession, table: Callable[[], DataFrame], operator: str) -> None:
    """A table is the same with and without lanes. With lanes, this operator makes it."""
    with lanes(spark, False):
        assert "Crosslane" not in plan(table())
        expected = table().collect()
    with lanes(spark, True):
        assert operator in plan(table())
        assert "CrosslaneDeclined" not in plan(table())
        got = table().collect()
    assert repr(got) == repr(expected)


def fails_alike(spark: SparkSession, table: Callable[[], DataFrame], text: str) -> None:
    """A table fails with and without lanes. Both errors have the same class and the same words."""
    texts = []
    for on in (False, True):
        with lanes(spark, on), pytest.raises(Exception) as caught:
            table().collect()
        texts.append(str(caught.value))
        kind = type(caught.value)
    assert all(text in shown for shown in texts), texts
    assert kind is type(caught.value)


def running(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    """A sum that continues from batch to batch."""
    total = 0
    for batch in batches:
        sums = batch.cumsum() + total
        total = int(sums.iloc[-1])
        yield sums


@pytest.mark.usefixtures("short_batches")
def test_a_function_sees_all_batches_of_a_task(spark: SparkSession) -> None:
    @F.pandas_udf("long")
    def sums(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return running(batches)

    @F.pandas_udf("string")
    def joined(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for number, (left, right) in enumerate(batches):
            yield left.astype(str) + right + f" {number}"

    rows = spark.range(0, 2550, 1, 2).withColumn("s", F.concat(F.lit("s"), "id"))
    same(
        spark,
        lambda: rows.select("id", sums("id"), joined("id", "s"), sums(F.col("id") * 2)),
        "CrosslaneEval",
    )
    # Spark does not merge these expressions: each is a call of its own.
    same(spark, lambda: rows.select(sums(sums("id"))), "CrosslaneEval")


if HAS_ARROW_UDF:

    @pytest.mark.usefixtures("short_batches")
    def test_arrays(spark: SparkSession) -> None:
        @F.arrow_udf("double")
        def halves(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            for batch in batches:
                yield pa.compute.divide(batch.cast(pa.float64()), 2)

        rows = spark.range(0, 550, 1, 2)
        same(spark, lambda: rows.select(halves("id")), "CrosslaneEval")


@pytest.mark.usefixtures("short_batches")
def test_a_function_may_cut_its_results_otherwise(spark: SparkSession) -> None:
    @F.pandas_udf("long")
    def at_the_end(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        # The function takes more batches than may be under way at a time.
        yield pd.concat([pd.Series([], dtype="int64"), *batches])

    @F.pandas_udf("long")
    def in_threes(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            for first in range(0, len(batch), 3):
                yield batch[first : first + 3]

    @F.pandas_udf("long")
    def in_twos(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield pd.concat([batch, next(batches, pd.Series([], dtype="int64"))])

    rows = spark.range(0, 950, 1, 1)
    same(spark, lambda: rows.select("id", at_the_end("id")), "CrosslaneEval")
    same(spark, lambda: rows.select("id", in_threes("id")), "CrosslaneEval")
    same(spark, lambda: rows.select("id", in_twos("id")), "CrosslaneEval")


@pytest.mark.usefixtures("short_batches")
def test_errors_of_a_function_are_those_of_spark(spark: SparkSession, subtests: pytest.Subtests) -> None:
    def fewer(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch[1:]

    def more(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield pd.concat([batch, batch])

    def first_only(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        yield next(batches)

    def raises(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        yield next(batches)
        raise LookupError("in the second batch")

    cases = {
        "RESULT_ROWS_MISMATCH": fewer,
        "OUTPUT_EXCEEDS_INPUT_ROWS": more,
        "INPUT_NOT_FULLY_CONSUMED": first_only,
        "LookupError: in the second batch": raises,
    }
    functions = list(cases.values())

    @F.pandas_udf("long")
    def wrong(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        # The first number selects the error.
        batch = next(batches)
        yield from functions[batch[0] // 1000](itertools.chain([batch], batches))

    for place, text in enumerate(cases):
        with subtests.test(text):
            rows = spark.range(place * 1000, place * 1000 + 250, 1, 1)
            fails_alike(spark, lambda rows=rows: rows.select(wrong("id")), text)


def doubled(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        yield batch[batch["id"] % 3 == 0]
        yield batch


@pytest.mark.usefixtures("short_batches")
def test_rows_of_rows(spark: SparkSession) -> None:
    rows = spark.range(0, 750, 1, 2).select(
        "id",
        (F.col("id") / 7).alias("d"),
        F.concat(F.lit("s"), "id").alias("s"),
        F.array("id", F.lit(None)).alias("a"),
        F.struct("id", F.lit("x").alias("t")).alias("r"),
        F.timestamp_seconds("id").alias("ts"),
        F.when(F.col("id") % 2 == 0, F.col("id").cast("decimal(12,2)")).alias("dec"),
    )
    schema = "id long, d double, s string"
    same(spark, lambda: rows.select("id", "d", "s").mapInPandas(doubled, schema), "CrosslaneStream")
    whole = rows.schema.simpleString().removeprefix("struct<").removesuffix(">")
    same(spark, lambda: rows.mapInArrow(lambda batches: batches, whole), "CrosslaneStream")

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    same(spark, lambda: rows.mapInArrow(counted, "rows long"), "CrosslaneStream")
    # Spark also calls the function for a partition without rows.
    empty = spark.range(0, 2, 1, 3)
    same(spark, lambda: empty.mapInArrow(counted, "rows long"), "CrosslaneStream")


def test_more_comes_out_than_goes_in(spark: SparkSession) -> None:
    def many(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"n": range(start, start + 100_000), "s": ["häh"] * 100_000})

    table = spark.range(0, 6, 1, 2).mapInArrow(many, "n long, s string")
    with lanes(spark, True):
        counted = table.agg(F.count("*"), F.sum("n"), F.sum(F.length("s"))).collect()
    n, sum_ = 600_000, 6 * sum(range(100_000)) + 15 * 100_000
    assert [tuple(row) for row in counted] == [(n, sum_, 3 * n)]


def test_what_rows_of_rows_get_wrong(spark: SparkSession) -> None:
    rows = spark.range(0, 10, 1, 1)

    def no_frame(batches: Iterator[pd.DataFrame]) -> Iterator[Any]:
        yield from (list(batch["id"]) for batch in batches)

    def other_name(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from (batch.rename(columns={"id": "other"}) for batch in batches)

    fails_alike(spark, lambda: rows.mapInPandas(no_frame, "id long"), "UDF_RETURN_TYPE")
    fails_alike(spark, lambda: rows.mapInPandas(other_name, "id long"), "RESULT_COLUMN_NAMES_MISMATCH")


#: A column that mapInArrow's function returns, with two rows, and the declared type that Spark reads it as.
READ = [
    (pa.array([1, 2]), "long"),
    (pa.array([1, 2], pa.int32()), "date"),
    (pa.array(["a", "b"], pa.large_string()), "string"),
    (pa.nulls(2), "string"),
    (pa.array([1.5, 2.5], pa.float32()), "float"),
    (pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)), "decimal(10,2)"),
    (pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")), "timestamp"),
    (pa.array([[1, None], []], pa.list_(pa.int64())), "array<bigint>"),
    (pa.array([{"a": 1}, {"a": 2}]), "struct<b: bigint>"),
    (pa.array([{"a": 1, "b": 2}, {"a": 3, "b": 4}]), "struct<b: bigint, a: bigint>"),
    (pa.array([{"a": 1, "b": 2}, {"a": 3, "b": 4}]), "struct<b: bigint>"),
    (pa.array([[{"a": None}], []], pa.list_(pa.struct([("a", pa.int32())]))), "array<struct<b: date>>"),
    (pa.array([7, 8]), "timestamp_ntz"),
    (
        pa.array([[("k", {"a": 1})], []], pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
        "map<string, struct<b: timestamp>>",
    ),
]
#: A column that Spark does not read, the declared type, and the type of Arrow that Spark expects for it.
NOT_READ = [
    (pa.array([1], pa.int32()), "long", pa.int64()),
    (pa.array([1]), "double", pa.float64()),
    (pa.array(["a"]).dictionary_encode(), "string", pa.string()),
    (pa.array([1.5], pa.float32()), "double", pa.float64()),
    (pa.array([1], pa.timestamp("ns", "UTC")), "timestamp", pa.timestamp("us", "UTC")),
    (pa.array([[1]], pa.list_(pa.int16())), "array<bigint>", pa.list_(pa.int64())),
    (pa.array([{"a": "x"}]), "struct<a: bigint>", pa.struct([("a", pa.int64())])),
    (
        pa.array([[{"a": 1}]]),
        "array<struct<b: date>>",
        pa.list_(pa.struct([("b", pa.date32())])),
    ),
]


def test_types_of_mapInArrow(spark: SparkSession, subtests: pytest.Subtests) -> None:
    names = [f"c{place}" for place in range(len(READ))]
    arrays = [array for array, _ in READ]

    def gives(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_arrays(arrays, names)

    schema = ", ".join(f"{name} {declared}" for name, (_, declared) in zip(names, READ))
    table = spark.range(0, 1, 1, 1).mapInArrow(gives, schema)
    got = {}
    for on in (False, True):
        with lanes(spark, on):
            # The query must be planned again.
            each = table.select("*")
            assert ("CrosslaneStream" in plan(each), "MapInArrow" in plan(each)) == (on, not on)
            got[on] = each.collect()
    assert len(got[False]) == 2
    for name, (array, declared) in zip(names, READ):
        with subtests.test(f"{array.type} as {declared}"):
            assert repr([row[name] for row in got[True]]) == repr([row[name] for row in got[False]])


def test_types_that_mapInArrow_does_not_read(spark: SparkSession, subtests: pytest.Subtests) -> None:
    names = [f"c{place}" for place in range(len(NOT_READ))]
    arrays = [array for array, _, _ in NOT_READ]
    nulls = [pa.nulls(1, read) for _, _, read in NOT_READ]

    def gives(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (wrong,) = batch.column(0).to_pylist()
            columns = [*nulls[:wrong], *arrays[wrong : wrong + 1], *nulls[wrong + 1 :]]
            yield pa.RecordBatch.from_arrays(columns, names)

    schema = ", ".join(f"{name} {declared}" for name, (_, declared, _) in zip(names, NOT_READ))
    # With the last number, no column is wrong.
    same(
        spark,
        lambda: spark.range(len(names), len(names) + 1, 1, 1).mapInArrow(gives, schema),
        "CrosslaneStream",
    )
    for place, (array, declared, _) in enumerate(NOT_READ):
        with subtests.test(f"{array.type} as {declared}"):
            table = spark.range(place, place + 1, 1, 1).mapInArrow(gives, schema)
            with (
                lanes(spark, False),
                pytest.raises(Exception, match=r"UNSUPPORTED_CALL|UNSUPPORTED_ARROWTYPE"),
            ):
                table.collect()
            with lanes(spark, True), pytest.raises(PythonException, match=f"for the column c{place}, where"):
                table.select("*").collect()


def test_a_limit_ends_a_function_and_its_worker_is_used_again(spark: SparkSession) -> None:
    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        next(batches)
        while True:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * 100})

    def pids(limit: int) -> set[int]:
        table = spark.range(0, 10, 1, 1).mapInArrow(endless, "pid long").limit(limit)
        return {row.pid for row in table.collect()}

    # A worker ends its function a moment after its query. Meanwhile, another task gets another worker.
    with lanes(spark, True):
        assert eventually(lambda: bool(pids(150) & pids(150)))


@pytest.mark.usefixtures("short_batches")
def test_a_limit_while_the_function_waits_for_more(spark: SparkSession) -> None:
    def slow(x: int) -> int:
        import time

        if x >= 3000:
            time.sleep(0.003)
        return x

    source = F.udf(slow, "long", useArrow=False)
    with lanes(spark, True):
        table = spark.range(0, 5000, 1, 1).select(source("id").alias("id"))
        got = table.mapInArrow(lambda batches: batches, "id long").limit(10).collect()
    assert [row.id for row in got] == list(range(10))


@pytest.mark.usefixtures("short_batches")
def test_another_thread_may_read_the_batches(spark: SparkSession) -> None:
    def ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queue: Queue[pa.RecordBatch | None] = Queue(3)

        def read() -> None:
            for batch in batches:
                queue.put(batch)
            queue.put(None)

        reader = threading.Thread(target=read)
        reader.start()
        while (batch := queue.get()) is not None:
            yield batch
        reader.join()

    same(spark, lambda: spark.range(0, 2000, 1, 2).mapInArrow(ahead, "id long"), "CrosslaneStream")


@pytest.mark.usefixtures("short_batches")
def test_a_failing_input_ends_the_function(spark: SparkSession) -> None:
    fails = F.udf(lambda x: 1 // (2500 - x), "long", useArrow=False)
    with lanes(spark, True), pytest.raises(Exception, match="ZeroDivisionError"):
        table = spark.range(0, 5000, 1, 1).select(fails("id").alias("id"))
        table.mapInArrow(lambda batches: batches, "id long").collect()


def test_the_error_names_a_worker_that_died(spark: SparkSession) -> None:
    def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        os.kill(os.getpid(), 9)

    with lanes(spark, True), pytest.raises(Exception, match="was killed"):
        spark.range(0, 10, 1, 1).mapInArrow(dies, "id long").collect()


def test_crosslane_s_own_functions_beside_the_drop_in(spark: SparkSession) -> None:
    @udtf("twice(n BIGINT) -> TABLE(m BIGINT)")
    def twice(n: int) -> Iterator[tuple[int]]:
        yield (n,)
        yield (n,)

    @udtf("evens(rows TABLE(id BIGINT)) -> TABLE(id BIGINT)", vectorized=True)
    def evens(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield rows.filter(pa.compute.equal(pa.compute.bit_wise_and(rows.column(0), 1), 0))

    crosslane.spark.register(spark, twice)
    crosslane.spark.register(spark, evens)
    with lanes(spark, True):
        assert spark.sql("SELECT sum(m) FROM range(5) t, LATERAL twice(t.id)").first()[0] == 20
        assert spark.sql("SELECT sum(m) FROM twice(5)").first()[0] == 10
        assert crosslane.spark.map(spark.range(10), "evens").count() == 5


@pytest.mark.usefixtures("short_batches")
def test_a_limit_while_another_thread_reads(spark: SparkSession) -> None:
    def ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queue: Queue[pa.RecordBatch | None] = Queue()

        def read() -> None:
            for batch in batches:
                queue.put(batch)
            queue.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while (batch := queue.get()) is not None:
                yield batch
                yield pa.RecordBatch.from_pydict({"id": [os.getpid()]})
        finally:
            # The function asks for more batches although Spark does not want any more results.
            for _ in batches:
                pass

    with lanes(spark, True):
        for _ in range(4):
            table = spark.range(0, 5000, 1, 1).mapInArrow(ahead, "id long")
            assert len(table.limit(150).collect()) == 150
        assert table.count() == 5000 + 50


def test_memory_stays_constant(spark: SparkSession) -> None:
    """There are a hundred batches of four megabytes. Two of them are under way at a time."""

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import resource

        for batch in batches:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            yield pa.RecordBatch.from_pydict({"kilobytes": [peak], "rows": [batch.num_rows]})

    spark.conf.set(MOST, 4)
    try:
        rows = spark.range(0, 400, 1, 1).select(F.repeat(F.lit("x"), 1 << 20).alias("s"))
        with lanes(spark, True):
            got = rows.mapInArrow(sizes, "kilobytes long, rows long").collect()
    finally:
        spark.conf.unset(MOST)
    assert [row.rows for row in got] == [4] * 100
    assert got[-1].kilobytes - got[0].kilobytes < 100_000


def test_a_generator_of_columns_of_the_program(spark: SparkSession) -> None:
    @udf("running(x BIGINT) -> BIGINT", vectorized=True, deterministic=False)
    def running_sum(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        total = 0
        for batch in batches:
            total += pa.compute.sum(batch).as_py()
            yield pa.array([total] * len(batch))

    crosslane.spark.register(spark, running_sum)
    sums = [row[0] for row in spark.sql("SELECT running(id) FROM range(0, 50000, 1, 1)").collect()]
    assert len(set(sums)) > 3
    assert sums == sorted(sums)
    assert sums[-1] == sum(range(50_000))
