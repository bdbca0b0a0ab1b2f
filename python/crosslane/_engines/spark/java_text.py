"""Texts that Java makes of Python's values, with the order of its hash tables."""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Iterable
from typing import Any


def java_text(value: Any) -> str | None:
    """What Java's ``toString`` gives for a value of Python in the JVM; None for None.

    >>> java_text([True, 1e10, {"b": None}])
    '[true, 1.0E10, {b=null}]'

    Raises:
        TypeError: if the text of such a value depends on Java.
    """
    return None if value is None else _java_text(value)


def _java_text(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return value
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return _java_double(value)
    if kind is decimal.Decimal:
        return "NaN" if value.is_nan() else _java_decimal(value)
    if kind is list:
        return f"[{', '.join(map(_java_text, value))}]"
    if kind in (set, frozenset):
        return f"[{', '.join(_java_text(item) for item in _hashed(value))}]"
    if kind is dict:
        pairs = (f"{_java_text(key)}={_java_text(value[key])}" for key in _put(value))
        return f"{{{', '.join(pairs)}}}"
    if kind is tuple:
        return f"[Ljava.lang.Object;@{id(value) & 0x7FFFFFFF:x}"
    if kind in (bytes, bytearray):
        return f"[B@{id(value) & 0x7FFFFFFF:x}"
    raise TypeError(
        f"returned a {kind.__qualname__} where a string is due, of which only Java knows its text: return a str"
    )


def _java_decimal(value: decimal.Decimal) -> str:
    """A decimal as BigDecimal writes it, which has no negative zero."""
    return str(value.copy_abs() if value.is_zero() else value)


def _java_double(value: float) -> str:
    """As `Double.toString`.

    >>> [_java_double(value) for value in (1.0, 1e7, 1e-3, -1.5e-4, math.inf)]
    ['1.0', '1.0E7', '0.001', '-1.5E-4', 'Infinity']
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    if len(text) == 1:
        # Java writes two digits, and the second need not be a zero.
        closest, _, power = f"{abs(value):.1e}".partition("e")
        text, point = closest.replace(".", "").rstrip("0"), int(power) + 1
    minus = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        whole = text[:point].ljust(point, "0") if point > 0 else "0"
        rest = text[point:] if point > 0 else "0" * -point + text
        return f"{minus}{whole}.{rest or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _hashed(keys: Iterable[Any]) -> list[Any]:
    """Keys in the order of a Java `HashMap` to which they were added, the last key first."""
    keys = list(keys)[::-1]
    size = 16
    while len(keys) > size * 3 // 4:
        size *= 2
    return sorted(keys, key=lambda key: _spread_hash(key) & (size - 1))


def _put(keys: Iterable[Any]) -> list[Any]:
    """Keys in the order of a `HashMap` of Java 17 to which all keys of another were added at once."""
    keys = _hashed(keys)
    size = 1
    while size < len(keys) * 4 // 3 + 1:
        size *= 2
    return sorted(keys, key=lambda key: _spread_hash(key) & (size - 1))


def _spread_hash(key: Any) -> int:
    """The hash of a key as `HashMap.hash` spreads it."""
    number = _java_hash(key) & 0xFFFFFFFF
    return number ^ number >> 16


def _java_hash(key: Any) -> int:
    """A key's `hashCode`."""
    kind = type(key)
    if key is None:
        return 0
    if kind is bool:
        return 1231 if key else 1237
    if kind is int and -(1 << 63) <= key < 1 << 63:
        bits = key & 0xFFFFFFFFFFFFFFFF
        return key if -(1 << 31) <= key < 1 << 31 else bits ^ bits >> 32
    if kind is float:
        (bits,) = struct.unpack("<Q", struct.pack("<d", key))
        return bits ^ bits >> 32
    if kind is str:
        units = key.encode("utf-16-le", errors="surrogatepass")
        result = 0
        for unit in struct.unpack(f"<{len(units) // 2}H", units):
            result = result * 31 + unit & 0xFFFFFFFF
        return result
    raise TypeError(
        f"returned a collection with a {kind.__qualname__} where a string is due, whose order only Java knows: return a str"
    )
