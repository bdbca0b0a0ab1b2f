"""PySpark's own table functions in workers of Crosslane's daemon have the same results as in Spark's
workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from ..conftest import IS_NEWEST
from .test_groups import kind, of_all_types, same
from .test_scalar import lanes, plan

ARROW = [pytest.param(False, id="pickled"), pytest.param(True, id="arrow")]

#: Results of a function for the columns `k LONG, d DOUBLE, s STRING`. Some are allowed, and some are errors.
ROWS: dict[str, Callable[[], Any]] = {
    "usual": lambda: [(1, 1.5, "x"), (2**63 - 1, float("nan"), ""), (None, None, None)],
    "none": lambda: [],
    "nothing": lambda: None,
    "NULL": lambda: [None],
    "lists": lambda: [[1, 1.5, "x"]],
    "rows": lambda: [Row(k=1, d=1.5, s="x"), Row(s="y", k=2, d=2.5)],
    "dicts": lambda: [{"k": 1, "d": 1.5, "s": "x"}],
    "usual and others": lambda: [(1, 1.5, "x"), [2, 2.5, "y"], (3, 1, True)],
    "other classes": lambda: [(True, 1, 5), (1, 2, None)],
    "short": lambda: [(1, 1.5)],
    "long": lambda: [(1, 1.5, "x", 2)],
    "too large": lambda: [(2**63, 1.5, "x")],
    "text for numbers": lambda: [("one", 1.5, "x")],
    "a surrogate": lambda: [(1, 1.5, "\ud800")],
    "no rows": lambda: 5,
    "no tuple": lambda: [5],
    "raises": lambda: 1 // 0,
    "raises late": lambda: (1 // number for number in (1, 0)),
}


@pytest.mark.parametrize("arrow", ARROW)
def test_rows(spark: SparkSession, subtests: pytest.Subtests, arrow: bool) -> None:
    for what, make in ROWS.items():

        class Gives:
            def eval(self, number: int) -> Any:
                # The unusual rows come between usual rows.
                return make() if number == 1 else [(number, 0.5, "before and after")]  # noqa: B023

        function = F.udtf(Gives, returnType="k long, d double, s string", useArrow=arrow)
        spark.udtf.register("gives", function)
        with subtests.test(what):
            query = "SELECT * FROM range(0, 3, 1, 1) AS r, LATERAL gives(r.id)"
            same(spark, lambda query=query: spark.sql(query), fails=None)


@pytest.mark.parametrize("arrow", ARROW)
def test_columns_of_all_types(spark: SparkSession, arrow: bool) -> None:
    table = of_all_types(spark)
    table.createOrReplaceTempView("all_types")

    class Same:
        def eval(self, row: Row) -> Iterator[tuple[Any, ...]]:
            yield tuple(row)

    class Seen:
        def eval(self, row: Row) -> Iterator[tuple[str]]:
            for value in row:
                yield (kind(value),)

    spark.udtf.register("same_row", F.udtf(Same, returnType=table.schema, useArrow=arrow))
    spark.udtf.register("seen", F.udtf(Seen, returnType="said string", useArrow=arrow))
    same(spark, lambda: spark.sql("SELECT * FROM same_row(TABLE(all_types))"))
    same(spark, lambda: spark.sql("SELECT * FROM seen(TABLE(all_types))"))


@pytest.mark.parametrize("arrow", ARROW)
def test_columns_without_null(spark: SparkSession, arrow: bool) -> None:
    class Gives:
        def eval(self, number: int) -> Iterator[tuple[int | None, str]]:
            yield (None if number == 2 else number, "x")

    spark.udtf.register("gives", F.udtf(Gives, returnType="k long NOT NULL, s string", useArrow=arrow))
    same(spark, lambda: spark.sql("SELECT * FROM range(0, 2, 1, 1) AS r, LATERAL gives(r.id)"))
    same(spark, lambda: spark.sql("SELECT * FROM range(0, 3, 1, 1) AS r, LATERAL gives(r.id)"), fails=True)


class Counts:
    """Counts the rows of a table, or of each partition of it."""

    def __init__(self) -> None:
        self.rows, self.last = 0, None

    def eval(self, row: Row) -> None:
        self.rows, self.last = self.rows + 1, row.id

    def terminate(self) -> Iterator[tuple[int, int | None]]:
        # Spark itself fails if a partition without rows has a result.
        if self.rows:
            yield self.rows, self.last


@pytest.mark.parametrize("arrow", ARROW)
def test_tables(spark: SparkSession, arrow: bool) -> None:
    spark.udtf.register("counts", F.udtf(Counts, returnType="rows long, last long", useArrow=arrow))
    spark.range(0, 20, 1, 3).selectExpr("id", "id % 4 AS k").createOrReplaceTempView("ids")
    for argument in (
        "TABLE(ids)",
        "TABLE(ids) PARTITION BY k ORDER BY id DESC",
        "TABLE(ids) WITH SINGLE PARTITION ORDER BY id",
        "TABLE(SELECT * FROM ids WHERE id < 0)",
    ):
        same(spark, lambda argument=argument: spark.sql(f"SELECT * FROM counts({argument})"))


@pytest.mark.parametrize("arrow", ARROW)
def test_analyze_and_its_state(spark: SparkSession, arrow: bool) -> None:
    from dataclasses import dataclass

    from pyspark.sql.functions import AnalyzeArgument, AnalyzeResult
    from pyspark.sql.types import IntegerType, StructType

    @dataclass
    class Asked(AnalyzeResult):
        times: int = 0

    class Repeats:
        def __init__(self, asked: Asked) -> None:
            self.times = asked.times

        @staticmethod
        def analyze(text: AnalyzeArgument, times: AnalyzeArgument) -> Asked:
            schema = StructType()
            for number in range(times.value):
                schema = schema.add(f"c{number}", IntegerType() if number else text.dataType)
            return Asked(schema=schema, times=times.value)

        def eval(self, text: str, times: int) -> Iterator[tuple[Any, ...]]:
            yield (text, *range(1, self.times))

    spark.udtf.register("repeats", F.udtf(Repeats, useArrow=arrow))
    same(spark, lambda: spark.sql("SELECT * FROM repeats('a', times => 3)"))


def test_the_end_of_a_table_function(spark: SparkSession) -> None:
    from pyspark.sql.functions import SkipRestOfInputTableException

    class First:
        def __init__(self) -> None:
            self.seen = 0

        def eval(self, row: Row) -> Iterator[tuple[int]]:
            self.seen += 1
            yield (row.id,)
            if self.seen == 2:
                raise SkipRestOfInputTableException("enough")

        def terminate(self) -> Iterator[tuple[int]]:
            yield (-self.seen,)

        def cleanup(self) -> None:
            self.seen = 0

    spark.udtf.register("first_two", F.udtf(First, returnType="k long"))
    same(spark, lambda: spark.sql("SELECT * FROM first_two(TABLE(SELECT id FROM range(0, 10, 1, 1)))"))


@pytest.mark.any_spark
def test_batches_of_arrow(spark: SparkSession) -> None:
    import pyarrow as pa

    @F.arrow_udtf(returnType="k long, s string")
    class Twice:
        def eval(self, numbers: pa.Array) -> Iterator[pa.Table]:
            yield pa.table({"k": numbers, "s": pa.array(["x"] * len(numbers))})

    spark.udtf.register("twice", Twice)
    same(spark, lambda: spark.sql("SELECT * FROM twice(5)"))


def test_a_method_of_a_data_frame(spark: SparkSession) -> None:
    @F.udtf(returnType="number long")
    class Digits:
        def eval(self, number: int) -> Iterator[tuple[int]]:
            for digit in str(number):
                yield (int(digit),)

    same(
        spark,
        lambda: spark.range(0, 1, 1, 1).lateralJoin(Digits(F.lit(472))) if IS_NEWEST else Digits(F.lit(472)),
    )


def test_the_plan_shows_the_function(spark: SparkSession) -> None:
    spark.udtf.register("counts", F.udtf(Counts, returnType="rows long, last long"))
    with lanes(spark, True):
        shown = plan(spark.sql("SELECT * FROM counts(TABLE(SELECT id FROM range(3)))"))
    assert "CrosslaneWorker counts" in shown
