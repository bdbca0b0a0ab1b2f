"""Values of all types, as arguments and results."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

NUMBERS = [0, 1, -1, 127, 128, 300, 70_000, 2**31, -(2**31) - 1, 2**40, 2**63 - 1, -(2**63), 2**63, 2**70]


FLOATS = [
    0.0,
    -0.0,
    1.0,
    2.5,
    1.1,
    1e7,
    123456.789,
    9999999.0,
    12345678.9,
    1e-3,
    9.99e-4,
    1e-5,
    1e16,
    1e300,
    5e-324,
]


FLOATS += [100.0, -2e-3, 3.5e38, 3.4028235e38, 3.40282356e38, math.nan, math.inf, -math.inf]


DECIMALS = [
    Decimal(text) for text in ("1.5", "1E+3", "1E-10", "-0", "2.345", "-2.345", "0E-20", "NaN", "1234567.899")
]


COLLECTIONS = [
    [1, "a", None, 2.5, True],
    [],
    [[1], {"k": None}],
    {"c": 1, "d": 2, "h": 3},
    {},
    {1: "x", -1: "y"},
]


COLLECTIONS += [
    {"b": {"x": [Decimal("1.0")]}, True: 2.0, None: 1, 2**40: 2, 1.5: 0},
    {3, 1, 2},
    frozenset("abc"),
]


COLLECTIONS += [{f"key{number}": number for number in range(count)} for count in (1, 2, 4, 6, 7, 12, 13, 20)]


COLLECTIONS += [{f"key{number}" for number in range(count)} for count in (11, 12, 13, 25)]


MOMENTS = [
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2021, 7, 2, 23, 30),
    datetime.datetime(1960, 3, 1),
]


ANY = [None, True, False, *NUMBERS, *FLOATS, "x", "", "12", "äß€😀", *DECIMALS, *COLLECTIONS]


BYTES = [b"ab", bytearray(b"xy")]


DATA: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), [True, False]),
    (T.ByteType(), [1, -128]),
    (T.ShortType(), [300, -1]),
    (T.IntegerType(), [70_000, -1]),
    (T.LongType(), [2**53 + 1, -1]),
    (T.FloatType(), [1.5, 1.100000023841858]),
    (T.DoubleType(), [2.5, 1e300]),
    (T.StringType(), ["x", "äß€😀"]),
    (T.BinaryType(), [bytearray(b"ab"), bytearray(b"")]),
    (T.DateType(), [datetime.date(2020, 1, 2), datetime.date(1500, 1, 1)]),
    (T.TimestampType(), [MOMENTS[0], MOMENTS[1]]),
    (T.TimestampNTZType(), [MOMENTS[0], MOMENTS[2]]),
    (T.DecimalType(20, 9), [Decimal("1.500000000"), Decimal("0E-9")]),
    (T.ArrayType(T.IntegerType()), [[1, None, 2], []]),
    (T.ArrayType(T.BinaryType()), [[bytearray(b"a"), None], []]),
    (T.ArrayType(T.TimestampType()), [[MOMENTS[0], None], []]),
]


NESTED: list[tuple[T.DataType, list[Any]]] = [
    (T.MapType(T.StringType(), T.LongType()), [{"a": 1, "b": None}, {}]),
    (T.StructType().add("p", T.IntegerType()).add("q", T.StringType()), [(1, "x"), (None, "y")]),
    (
        T.StructType().add("p", T.ArrayType(T.StructType().add("d", T.DateType()))),
        [([(MOMENTS[0].date(),)],), (None,)],
    ),
]


def columns_of(data: list[tuple[T.DataType, list[Any]]], nulls: bool) -> list[list[Any]]:
    """Three rows, with a NULL or without."""
    return [[*values, None if nulls else values[0]] for _, values in data]
