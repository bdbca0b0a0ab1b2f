"""Functions of rows: their arguments and results."""

from __future__ import annotations

import datetime
import enum
from decimal import Decimal
from typing import Any

import numpy as np
import pyspark.sql.functions as F
import pytest
from comparing import (
    UTC,
    all_by_spark,
    by_lane,
    chosen,
    compare,
    fails_alike,
)
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from samples import ANY, BYTES, DATA, MOMENTS, NESTED, columns_of

from crosslane._engines.spark.shortcut import Shortcut


class Color(enum.IntEnum):
    RED = 1


RESULTS: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), ANY + BYTES + MOMENTS),
    (T.ByteType(), ANY + BYTES + MOMENTS),
    (T.ShortType(), ANY),
    (T.IntegerType(), ANY),
    (T.LongType(), ANY + BYTES + MOMENTS),
    (T.FloatType(), ANY),
    (T.DoubleType(), ANY + BYTES + MOMENTS),
    (T.StringType(), ANY),
    (T.BinaryType(), ANY + BYTES),
    (T.DateType(), [None, datetime.date(2020, 1, 2), datetime.date(1500, 1, 1), *MOMENTS]),
    (T.TimestampType(), [None, *MOMENTS, datetime.datetime(2020, 1, 2, 3, 4, 5, 6, UTC)]),
    (T.TimestampNTZType(), [None, *MOMENTS]),
    (T.DecimalType(10, 2), ANY),
    (T.DecimalType(38, 18), [Decimal("1.5"), Decimal("-0.0000000000000000005"), None]),
    (T.ArrayType(T.LongType()), [None, [1, True, None, 2**63, "x"], (1, 2), {"a": 1}, "ab", []]),
    (T.ArrayType(T.DateType()), [None, [datetime.date(2020, 1, 2), None], []]),
    (T.ArrayType(T.ArrayType(T.StringType())), [[["a", 1], None, [[1]]], [(True,)]]),
]


INDEXES = list(range(max(len(values) for _, values in RESULTS)))


@pytest.fixture(scope="module")
def results_of_rows(spark: SparkSession) -> list[list[Any]]:
    udfs = [chosen(kind, values, False) for kind, values in RESULTS]
    return all_by_spark(spark, udfs, INDEXES)


@pytest.mark.parametrize("case", range(len(RESULTS)), ids=[kind.simpleString() for kind, _ in RESULTS])
def test_results_of_rows(results_of_rows: list[list[Any]], case: int) -> None:
    ours = by_lane(chosen(*RESULTS[case], False), [INDEXES], [T.LongType()])
    assert ours == results_of_rows[case]
    assert any(value is not None for value in ours)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), np.int64(1)),
        (T.DoubleType(), np.float64(1.5)),
        (T.LongType(), Color.RED),
        (T.LongType(), Decimal("Infinity")),
        (T.StringType(), datetime.datetime(2020, 1, 1, tzinfo=UTC)),
        (T.StringType(), T.Row(a=1)),
        (T.DateType(), "2020-01-01"),
        (T.TimestampType(), 1),
        (T.TimestampNTZType(), "x"),
        (T.LongType(), lambda: 1),
        (T.LongType(), [np.int64(1)]),
    ],
)
def test_results_of_rows_that_fail(spark: SparkSession, kind: T.DataType, value: Any) -> None:
    fails_alike(spark, F.udf(lambda at: value, kind, useArrow=False), [[1]], [T.LongType()])


def test_arguments(spark: SparkSession, subtests: pytest.Subtests) -> None:
    def show(*values: Any) -> str:
        return repr([(type(value).__name__, value) for value in values])

    calls = {}
    for arrow in (False, True):
        data = DATA + (NESTED if arrow else [])
        for nulls in (False, True):
            udf = F.udf(show, "string", useArrow=arrow)
            calls[f"arrow {arrow}, nulls {nulls}"] = (
                udf,
                columns_of(data, nulls),
                [kind for kind, _ in data],
            )
    compare(spark, subtests, calls)


def test_arguments_of_common_types_with_arrow(spark: SparkSession, subtests: pytest.Subtests) -> None:
    data = [(kind, values) for kind, values in DATA if kind.typeName() in Shortcut._LISTED]
    udf = F.udf(lambda *values: repr([(type(value), value) for value in values]), "string", useArrow=True)
    types = [kind for kind, _ in data]
    compare(
        spark, subtests, {f"nulls {nulls}": (udf, columns_of(data, nulls), types) for nulls in (False, True)}
    )
