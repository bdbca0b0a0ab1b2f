"""Functions of columns, and functions of rows that get columns from Arrow."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from comparing import (
    CONF,
    IS_NEW,
    UTC,
    all_by_spark,
    both_or_neither,
    by_lane,
    chosen,
    compare,
    fails_alike,
    where,
)
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from samples import DATA, MOMENTS, NESTED, columns_of

from crosslane._engines.spark.columns import column_function

IDENTICAL = [*DATA, *NESTED]


MAKERS = {
    "udf": lambda kind: F.udf(lambda value: value, kind, useArrow=True),
    "pandas_udf": lambda kind: F.pandas_udf(lambda column: column, kind),
    "arrow_udf": lambda kind: F.arrow_udf(lambda column: column, kind),
}


def test_identity_of_columns(spark: SparkSession, subtests: pytest.Subtests) -> None:
    """Every type there and back."""
    calls = {}
    for maker, make_udf in MAKERS.items():
        for kind, values in IDENTICAL:
            # Spark 4.0 makes floats of its integers, and then fails.
            if hasattr(F, maker) and (
                IS_NEW or maker == "pandas_udf" or kind != T.ArrayType(T.IntegerType())
            ):
                for nulls in (False, True):
                    name = f"{maker} {kind.simpleString()}, nulls {nulls}"
                    calls[name] = (make_udf(kind), columns_of([(kind, values)], nulls), [kind])
    compare(spark, subtests, calls)


#: Results of functions with Arrow, a batch each: what Spark makes of one depends on the others.
BATCHES: list[tuple[T.DataType, list[Any]]] = [
    (T.LongType(), [1, 2]),
    (T.LongType(), [1, None]),
    (T.LongType(), [2**53 + 1, None]),
    (T.LongType(), [1, 2.5]),
    (T.LongType(), [2.0, 3.0]),
    (T.LongType(), ["1", "2"]),
    (T.LongType(), [np.int64(1), np.int32(2)]),
    (T.LongType(), [Decimal("1"), Decimal("2.5")]),
    (T.LongType(), [None, None]),
    (T.IntegerType(), [1, None]),
    (T.ShortType(), [1, None]),
    (T.DoubleType(), [1.5, None]),
    (T.DoubleType(), [math.nan, 1.0]),
    (T.DoubleType(), [1, 2]),
    (T.DoubleType(), [1, 2.5]),
    (T.DoubleType(), ["1.5", "2"]),
    (T.DoubleType(), [True, 1.0]),
    (T.FloatType(), [1.1, None]),
    (T.FloatType(), [1e300, math.nan]),
    (T.FloatType(), [3.5e38, 3.40282356e38]),
    (T.FloatType(), [1, 2]),
    (T.BooleanType(), [True, None]),
    (T.BooleanType(), [1, 0]),
    (T.BooleanType(), ["true", "false"]),
    (T.StringType(), ["a", None]),
    (T.StringType(), ["", "äß€😀"]),
    (T.StringType(), [1, True]),
    (T.StringType(), [b"x", 1.5]),
    (T.StringType(), [{"a": 1}, [1]]),
    (T.BinaryType(), [b"x", bytearray(b"y")]),
    (T.BinaryType(), [b"x", None]),
    (T.DateType(), [datetime.date(2020, 1, 2), None]),
    (T.DateType(), [datetime.datetime(2020, 1, 2, 3), None]),
    (T.TimestampType(), [MOMENTS[0], None]),
    (
        T.TimestampType(),
        [datetime.datetime(2020, 1, 2, tzinfo=UTC), datetime.datetime(2020, 1, 2, tzinfo=UTC)],
    ),
    (T.TimestampNTZType(), [MOMENTS[0], None]),
    (T.DecimalType(10, 2), [Decimal("1.5"), None]),
    (T.DecimalType(10, 2), [Decimal("1.234"), Decimal("1")]),
    (T.ArrayType(T.LongType()), [[1, 2], None]),
    (T.MapType(T.StringType(), T.LongType()), [{"a": 1}, None]),
    (T.StructType().add("p", T.IntegerType()).add("q", T.StringType()), [(1, "x"), T.Row(p=2, q="y")]),
    (T.StructType().add("p", T.IntegerType()).add("q", T.StringType()), [{"p": 1, "q": "x"}, None]),
]


BAD: list[tuple[T.DataType, list[Any]]] = [
    (T.LongType(), ["1", 2]),
    (T.LongType(), ["x", "y"]),
    (T.LongType(), [[1], [2]]),
    (T.BinaryType(), ["x", "y"]),
    (T.DateType(), ["2020-01-02", None]),
    (T.DecimalType(10, 2), [1, 2]),
]


#: What Spark 4.0 takes, and later ones do not.
BAD_LATER: list[tuple[T.DataType, list[Any]]] = [
    (T.LongType(), [2**63, 1]),
    (T.LongType(), [True, False]),
    (T.IntegerType(), [2**31, 1]),
    (T.ByteType(), [1, 300]),
    (T.BinaryType(), [3, b""]),
]


#: The other way round.
BAD_FIRST: list[tuple[T.DataType, list[Any]]] = [(T.DateType(), [1, 2])]


BATCHES += BAD_FIRST if IS_NEW else BAD_LATER


BAD += BAD_LATER if IS_NEW else BAD_FIRST


@pytest.fixture(scope="module")
def results_with_arrow(spark: SparkSession) -> list[list[Any]]:
    udfs = [chosen(kind, values, True) for kind, values in BATCHES]
    return all_by_spark(spark, udfs, [0, 1])


@pytest.mark.parametrize(
    "case", range(len(BATCHES)), ids=[f"{kind.simpleString()}-{v}" for kind, v in BATCHES]
)
def test_results_with_arrow(results_with_arrow: list[list[Any]], case: int) -> None:
    assert by_lane(chosen(*BATCHES[case], True), [[0, 1]], [T.LongType()]) == results_with_arrow[case]


@pytest.mark.parametrize(("kind", "values"), BAD, ids=[f"{kind.simpleString()}-{v}" for kind, v in BAD])
def test_results_with_arrow_that_fail(spark: SparkSession, kind: T.DataType, values: list[Any]) -> None:
    fails_alike(spark, chosen(kind, values, True), [[0, 1]], [T.LongType()])


def test_each_row_is_called_once_with_arrow() -> None:
    seen: list[int] = []

    def odd(value: int) -> Any:
        seen.append(value)
        return 2.5

    evaluate = column_function(odd, 101, [T.LongType()], T.LongType(), CONF)
    assert evaluate(pa.array([1, 2])).to_pylist() == [2, 2]
    assert seen == [1, 2]
    assert evaluate(pa.array([3])).to_pylist() == [2]
    assert seen == [1, 2, 3]


# Spark 4.0 knows no other conversion.
@where(IS_NEW)
def test_legacy_conversion(spark: SparkSession, subtests: pytest.Subtests) -> None:
    conf = {"spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": "true"}
    spark.conf.set(*next(iter(conf.items())))
    try:
        shown = F.udf(lambda value: repr(value), "string", useArrow=True)
        times = F.udf(lambda value: value * 1.0, "double", useArrow=True)
        calls = {
            "integers": (shown, [[1, 2]], [T.LongType()]),
            "an integer and NULL": (shown, [[1, None]], [T.LongType()]),
            "floats": (times, [[math.nan, 1.0]], [T.DoubleType()]),
        }
        compare(spark, subtests, calls, conf)
    finally:
        spark.conf.unset(next(iter(conf)))


ARGUMENTS = ([[1, None], [3, 4]], [T.LongType(), T.IntegerType()])


def test_pandas(spark: SparkSession, subtests: pytest.Subtests) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "a sum": lambda a, b: a + b,
        "floats": lambda a, b: (a + b).astype("float64"),
        "NULLs": lambda a, b: pd.Series([None] * len(a)),
        "an array": lambda a, b: (a + b).to_numpy(),
        "names and types": lambda a, b: pd.Series(
            [f"{a.name} {a.dtype} {b.name} {b.dtype}".__len__()] * len(a)
        ),
        "categories": lambda a, b: (a + b).astype("category"),
        "too few": lambda a, b: a.head(1),
        "a number": lambda a, b: 1,
        "texts": lambda a, b: pd.Series(["x"] * len(a)),
        "an error": lambda a, b: 1 / 0,
    }
    calls = {name: (F.pandas_udf(function, "long"), *ARGUMENTS) for name, function in functions.items()}
    for name, (ours, theirs) in both_or_neither(spark, subtests, calls).items():
        with subtests.test(f"{name}: what is told"):
            assert str(ours).splitlines()[0] in theirs


def test_pandas_struct(spark: SparkSession, subtests: pytest.Subtests) -> None:
    kind = T.StructType().add("p", T.IntegerType()).add("q", T.StringType())
    calls = {
        "to a struct": (
            F.pandas_udf(lambda rows: pd.DataFrame({"q": rows.q + "!", "p": rows.p}), kind),
            [[(1, "x"), (2, "y")]],
            [kind],
        ),
        "to a number": (
            F.pandas_udf(lambda rows: rows.p.fillna(0) + 1, "long"),
            [[(1, "x"), (None, "y")]],
            [kind],
        ),
    }
    compare(spark, subtests, calls)


@where(hasattr(F, "arrow_udf"))
def test_arrow(spark: SparkSession, subtests: pytest.Subtests) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "a sum": lambda a, b: pa.compute.add(a, b),
        "whole floats": lambda a, b: pa.array([1.0] * len(a)),
        "floats": lambda a, b: pa.array([1.5] * len(a)),
        "texts": lambda a, b: pa.array(["x"] * len(a)),
        "too few": lambda a, b: a[:1],
        "a number": lambda a, b: 1,
        "NULLs": lambda a, b: pa.nulls(len(a)),
        "chunks": lambda a, b: pa.chunked_array([a]),
    }
    calls = {name: (F.arrow_udf(function, "long"), *ARGUMENTS) for name, function in functions.items()}
    both_or_neither(spark, subtests, calls)
