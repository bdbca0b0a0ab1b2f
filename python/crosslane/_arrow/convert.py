"""Results of vectorized functions, converted to pyarrow arrays of the declared type."""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from crosslane.types import decimal_of

_DAY = 86_400_000_000
#: Has enough digits for any DECIMAL, and to tell that a larger number does not fit.
_DIGITS = decimal.Context(prec=400)


def fitting(result: Any, kind: pa.DataType) -> pa.Array | list[Any]:
    """A column of any library as an array of a type.

    A column of Python's objects is returned as a list: they are converted like the results of a row
    function.

    Raises:
        TypeError, ValueError, OverflowError: if it is no column, or has values that the type does
            not have.
    """
    column = _column(result, kind)
    return column if isinstance(column, list) else _cast(column, kind)


def _column(result: Any, kind: pa.DataType) -> pa.Array | list[Any]:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
        if isinstance(result, pa.ChunkedArray):  # pyarrow keeps what exceeds 2 GiB in chunks
            raise ValueError("the results of one batch exceed 2 GiB")
    if isinstance(result, pa.Array):
        result.validate()
        return result
    library = type(result).__module__.split(".")[0]
    if library == "polars" and type(result).__name__ == "Series":
        return result.to_list() if str(result.dtype) == "Object" else result.to_arrow()
    if library == "pandas" and getattr(result, "ndim", 0) == 1:
        if result.dtype != object:
            return pa.Array.from_pandas(result)
        return [None if missing else value for value, missing in zip(result.tolist(), result.isna().tolist())]
    if library == "numpy" and getattr(result, "ndim", 0) == 1:
        return result.tolist() if result.dtype == object else _from_numpy(result, kind)
    if isinstance(result, (list, tuple)):
        # A copy, because the function may change its own list later.
        return list(result)
    raise TypeError(
        f"returned {type(result).__name__} where a column is due: a pyarrow array, or a numpy, pandas or polars one"
    )


def _from_numpy(result: Any, kind: pa.DataType) -> pa.Array:
    import numpy

    if result.dtype.kind in "mM":
        # pyarrow has four units of time, and no multiples of them.
        unit, _ = numpy.datetime_data(result.dtype)
        if not (unit in ("s", "ms", "us", "ns") or (unit == "D" and result.dtype.kind == "M")):
            unit = "ns" if unit in ("ps", "fs", "as") else "s"
        result = result.astype(f"{result.dtype.kind}8[{unit}]", copy=False)
    # NaN stands for NULL in all types but floats.
    return pa.array(result, from_pandas=not pa.types.is_floating(kind))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    elif isinstance(array, pa.RunEndEncodedArray):
        array = pc.run_end_decode(array)
    if array.type == kind:
        return array
    if _has_views(array.type):
        # pyarrow's own cast of list views loses elements (26.0.1).
        return _cast(pa.array(array.to_pylist(), _without_views(array.type)), kind)
    if pa.types.is_duration(array.type) and pa.types.is_interval(kind):
        micros = array.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
        parts = [None if m is None else (0, m // _DAY, m % _DAY * 1000) for m in micros]
        return pa.array(parts, kind)
    if pa.types.is_floating(array.type) and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return _infinite(array, kind)
    if pa.types.is_decimal(kind):
        if pa.types.is_floating(array.type):
            # A float32 stands for the number of its shortest text. As a float64, it has another text.
            texts = array.cast(pa.string()).to_pylist()
            return _decimals((None if text is None else float(text) for text in texts), kind)
        if pa.types.is_decimal(array.type) and not pa.types.is_decimal256(kind):
            array = _rounded(array, kind.scale)
        elif pa.types.is_integer(array.type):
            # pyarrow does not cast integers to a narrow DECIMAL directly, even if they fit.
            array = array.cast(pa.decimal256(76, kind.scale))
    _check(array, kind)
    return array.cast(kind)


def _infinite(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Infinite floats as dates or timestamps. NaN is NULL, and any other float is an error."""
    most = 2 ** (kind.bit_width - 1) - 1
    numbers = {math.inf: most, -math.inf: -most}

    def number(value: float | None) -> int | None:
        if value is None or math.isnan(value):
            return None
        if value not in numbers:
            raise TypeError(f"returned {value!r} where {_name(kind)} is due")
        return numbers[value]

    return pa.array(map(number, array.to_pylist()), kind)


def _rounded(array: pa.Array, scale: int) -> pa.Array:
    """Decimals rounded half away from zero, as SQL's casts do."""
    if array.type.scale <= scale:
        return array
    return pc.round(array, ndigits=scale, round_mode="half_towards_infinity")


def _decimals(values: Iterable[float | None], kind: pa.DataType) -> pa.Array:
    """Floats as DECIMAL, rounded as by row functions; or as HUGEINT, without a fraction."""
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    whole = pa.types.is_decimal256(kind)
    name = "HUGEINT" if whole else f"DECIMAL({kind.precision},{kind.scale})"

    def fit(value: float | None) -> decimal.Decimal | None:
        if value is None:
            return None
        number = decimal_of(value)
        try:
            rounded = number.quantize(unit, decimal.ROUND_HALF_UP, _DIGITS)
            fits = rounded.is_finite() and len(rounded.as_tuple().digits) <= kind.precision
        except decimal.InvalidOperation:
            fits = False
        if not fits or (whole and rounded != number):
            raise OverflowError(f"returned {value!r}, which does not fit {name}")
        return rounded

    return pa.array(map(fit, values), kind)


def _has_views(kind: pa.DataType) -> bool:
    """Whether a type has list views, at any depth."""
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return True
    return any(_has_views(kind.field(index).type) for index in range(kind.num_fields))


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type with plain lists in the place of list views."""
    if pa.types.is_list_view(kind) or pa.types.is_list(kind):
        return pa.list_(_without_views(kind.value_type))
    if pa.types.is_large_list_view(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_without_views(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_without_views(kind.value_type), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_views(field.type)) for field in kind])
    return kind


def _check(array: pa.Array, kind: pa.DataType) -> None:
    """Refuses, at any depth, values that a cast of pyarrow would change silently.

    pyarrow's casts make infinity of a number that is too large for FLOAT, and true of any number.
    They take integers for times and times for integers. They cut timestamps to dates and times, and
    drop time zones.
    """
    given = array.type
    if pa.types.is_float32(kind):
        if pa.types.is_float64(given):
            large = array.filter(pc.and_(pc.is_finite(array), pc.is_inf(array.cast(kind)))).drop_null()
            if len(large):
                raise OverflowError(f"returned {large[0].as_py()!r}, which does not fit FLOAT")
    elif pa.types.is_boolean(kind):
        _check_same(array, kind)
    elif pa.types.is_temporal(kind):
        if pa.types.is_integer(given) or (pa.types.is_time(kind) and pa.types.is_timestamp(given)):
            raise TypeError(f"returned {given} where {_name(kind)} is due")
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(given) and given.tz and not kind.tz:
            raise ValueError(
                f"returned {given} where TIMESTAMP is due; declare TIMESTAMPTZ, or return moments without a zone"
            )
        if pa.types.is_date(kind) and pa.types.is_timestamp(given):
            _check_same(array, kind)
    elif pa.types.is_integer(kind) and pa.types.is_temporal(given):
        raise TypeError(f"returned {given} where {kind} is due")
    elif pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        for place, part in enumerate(array.flatten()):
            field = kind.get_field_index(array.type.field(place).name)
            if field >= 0:
                _check(part, kind.field(field).type)
    elif pa.types.is_map(kind) and pa.types.is_map(array.type):
        _check(array.keys, kind.key_type)
        _check(array.items, kind.item_type)
    elif pa.types.is_nested(kind) and hasattr(array.type, "value_type"):
        _check(array.flatten(), kind.value_type)


def _check_same(array: pa.Array, kind: pa.DataType) -> None:
    """Refuses values that differ after a cast to the type and back."""
    changed = array.filter(pc.not_equal(array.cast(kind).cast(array.type), array)).drop_null()
    if len(changed):
        raise TypeError(f"returned {changed[0]} where {_name(kind)} is due")


def _name(kind: pa.DataType) -> str:
    """The name of a type in SQL, or else in Arrow."""
    names = {"bool": "BOOLEAN", "date": "DATE", "time": "TIME", "timestamp": "TIMESTAMP"}
    return next((name for start, name in reversed(names.items()) if str(kind).startswith(start)), str(kind))
