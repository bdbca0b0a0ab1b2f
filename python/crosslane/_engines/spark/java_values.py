"""The values that Spark's JVM makes of values of Python."""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any

from crosslane._engines.spark.java_text import java_text

BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
#: Python's classes that Java can unpickle, besides containers. A value of a class that does not fit
#: the type becomes NULL.
_KNOWN = (
    type(None), bool, int, float, complex, str, bytes, bytearray, decimal.Decimal, datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta,
)  # fmt: skip


def check_sent(value: Any) -> None:
    """Refuses values that the JVM cannot unpickle."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        for item in value:
            check_sent(item)
    elif kind is dict:
        for pair in value.items():
            check_sent(pair)
    elif kind is decimal.Decimal and value.is_infinite():
        raise ValueError(f"Spark takes no {value!r}")
    elif kind not in _KNOWN:
        # If Python cannot pickle the value, the error is that of Spark.
        pickle.dumps(value)
        raise TypeError(
            f"returned a {kind.__module__}.{kind.__qualname__}, which Spark takes only as a plain value of Python: "
            "convert it, such as by its .item() or .tolist() if it is numpy's"
        )


def from_java(returns: Any) -> Callable[[Any], Any]:
    """Converts a value as `EvaluatePython.makeFromJava` does. None if it does not fit."""
    name = returns.typeName()
    if name == "boolean":
        return lambda value: value if type(value) is bool else None
    if name in BITS:
        return functools.partial(_integer, BITS[name])
    if name == "float":
        return _single
    if name == "double":
        return _double
    if name == "string":
        return java_text
    if name == "binary":
        return _binary
    if name == "date":
        start = _EPOCH.toordinal()
        return lambda value: datetime.date.fromordinal(start + value) if type(value) is int else None
    if name in ("timestamp", "timestamp_ntz"):
        start = _EPOCH_UTC if name == "timestamp" else _EPOCH

        def timestamp(value: Any) -> datetime.datetime | None:
            return start + datetime.timedelta(microseconds=value) if type(value) is int else None

        return timestamp
    if name == "decimal":
        return lambda value: value if type(value) is decimal.Decimal and value.is_finite() else None
    element = from_java(returns.elementType)

    def elements(value: Any) -> list[Any] | None:
        if type(value) not in (list, tuple):
            return None
        return [item if item is None else element(item) for item in value]

    return elements


def _integer(bits: int, value: Any) -> int | None:
    """An int without the bits that do not fit; None if it has more than 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        return None
    half = 1 << bits - 1
    return (value + half) % (half * 2) - half


def _double(value: Any) -> float | None:
    if type(value) is float:
        return value
    # A NaN of Decimal becomes a double, because Java's BigDecimal has none.
    return math.nan if type(value) is decimal.Decimal and value.is_nan() else None


def _single(value: Any) -> float | None:
    number = _double(value)
    if number is None:
        return None
    try:
        struct.pack("f", number)
    except OverflowError:
        return math.copysign(math.inf, number)
    return number


def _binary(value: Any) -> bytes | None:
    if type(value) is str:
        return value.encode(errors="replace")
    return bytes(value) if type(value) in (bytes, bytearray) else None
