"""What vectorized functions return, as pyarrow arrays of the declared type."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Iterable, Mapping, Sized
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from crosslane._guest import is_missing
from crosslane.types import decimal_of

_DAY = 86_400_000_000
_MIDNIGHT = time()
#: Enough digits for any number that fits a DECIMAL, and to see of any other that it does not.
_DIGITS = decimal.Context(prec=400)

#: The numbers of infinite dates and timestamps, by the bits that they have.
_INFINITE = {(bits, sign * math.inf): sign * (2 ** (bits - 1) - 1) for bits in (32, 64) for sign in (1, -1)}


def fitting(result: Any, kind: pa.DataType) -> pa.Array:
    """A column of any library as an array of a type.

    Raises:
        TypeError, ValueError, OverflowError: if it is no column, or has values that the type does not have.
    """
    return _cast(_array(result, kind), kind)


def _array(result: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
        if isinstance(result, pa.ChunkedArray):  # pyarrow keeps what exceeds 2 GiB in chunks
            raise ValueError("the results of one batch exceed 2 GiB")
    if isinstance(result, pa.Array):
        result.validate()
        return result
    library = type(result).__module__.split(".")[0]
    if library == "polars":
        return result.to_arrow()
    if library == "pandas" and getattr(result, "ndim", 0) == 1:
        return _objects(result, kind) if result.dtype == object else pa.Array.from_pandas(result)
    if library == "numpy" and getattr(result, "ndim", 0) == 1:
        return _from_numpy(result, kind)
    if isinstance(result, (list, tuple)):
        return _objects(result, kind)
    raise TypeError(
        f"returned {type(result).__name__} where a column is due: a pyarrow array, or a numpy, pandas or polars one"
    )


def _from_numpy(result: Any, kind: pa.DataType) -> pa.Array:
    import numpy

    if result.dtype == object:
        return _objects(result.tolist(), kind)
    if result.dtype.kind in "mM":
        # pyarrow knows four units, and no multiples of them.
        unit, _ = numpy.datetime_data(result.dtype)
        if not (unit in ("s", "ms", "us", "ns") or (unit == "D" and result.dtype.kind == "M")):
            unit = "ns" if unit in ("ps", "fs", "as") else "s"
        result = result.astype(f"{result.dtype.kind}8[{unit}]", copy=False)
    # NaN is no value of any other type: it stands for NULL.
    return pa.array(result, from_pandas=not pa.types.is_floating(kind))


def _objects(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    values = [None if is_missing(value) else value for value in values]
    first = next((value for value in values if value is not None), None)
    if type(first).__name__ in ("datetime64", "timedelta64"):
        import numpy

        return _from_numpy(numpy.array(values, type(first)), kind)
    if pa.types.is_decimal(kind):
        return _decimals(values, kind)
    _check_values(values, kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        bits = kind.bit_width
        values = [_INFINITE.get((bits, it), it) if isinstance(it, float) else it for it in values]
    # pyarrow makes infinity of a number that is too large for FLOAT: that is looked at after a cast.
    return pa.array(values, type=_wide(kind), from_pandas=not pa.types.is_floating(kind))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    elif isinstance(array, pa.RunEndEncodedArray):
        array = pc.run_end_decode(array)
    if array.type == kind:
        return array
    if _has_views(array.type):
        # pyarrow's own cast of list views loses elements (26.0.1).
        return _cast(_objects(array.to_pylist(), kind), kind)
    if pa.types.is_duration(array.type) and pa.types.is_interval(kind):
        micros = array.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
        parts = [None if m is None else (0, m // _DAY, m % _DAY * 1000) for m in micros]
        return pa.array(parts, kind)
    if pa.types.is_floating(array.type) and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        # Only infinite ones are values.
        return _objects(array.to_pylist(), kind)
    if pa.types.is_decimal(kind):
        if pa.types.is_floating(array.type):
            # A float32 is the number that it shows; as a float it would show another.
            texts = array.cast(pa.string()).to_pylist()
            return _decimals((None if text is None else float(text) for text in texts), kind)
        if pa.types.is_decimal(array.type) and not pa.types.is_decimal256(kind):
            array = _rounded(array, kind.scale)
        elif pa.types.is_integer(array.type):
            # Straight into a narrow DECIMAL, pyarrow casts no integers, however small.
            array = array.cast(pa.decimal256(76, kind.scale))
    _check(array, kind)
    return array.cast(kind)


def _rounded(array: pa.Array, scale: int) -> pa.Array:
    """Decimals rounded half away from zero, as SQL's casts do."""
    if array.type.scale <= scale:
        return array
    return pc.round(array, ndigits=scale, round_mode="half_towards_infinity")


def _decimals(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Numbers as DECIMAL, rounded as a row function's; or as HUGEINT, which are not rounded."""
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    whole = pa.types.is_decimal256(kind)
    name = "HUGEINT" if whole else f"DECIMAL({kind.precision},{kind.scale})"

    def fit(value: Any) -> decimal.Decimal | None:
        if value is None:
            return None
        try:
            number = decimal_of(value)
            rounded = number.quantize(unit, decimal.ROUND_HALF_UP, _DIGITS)
            fits = rounded.is_finite() and len(rounded.as_tuple().digits) <= kind.precision
        except (decimal.InvalidOperation, TypeError, ValueError):
            fits = False
        if not fits or (whole and rounded != number):
            raise OverflowError(f"returned {value!r}, which does not fit {name}")
        return rounded

    return pa.array(map(fit, values), kind)


def _has_views(kind: pa.DataType) -> bool:
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return True
    return any(_has_views(kind.field(index).type) for index in range(kind.num_fields))


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type with DOUBLE in the place of FLOAT."""
    if pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_list(kind):
        return pa.list_(_wide(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_wide(kind.value_type), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_wide(kind.key_type), _wide(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _wide(field.type)) for field in kind])
    return kind


def _check(array: pa.Array, kind: pa.DataType) -> None:
    """Refuses, at any depth, what pyarrow's casts would change: they make infinity of what is too large for FLOAT, take
    integers for times, and cut moments to days."""
    if pa.types.is_float32(kind):
        if pa.types.is_float64(array.type):
            large = array.filter(pc.and_(pc.is_finite(array), pc.is_inf(array.cast(kind)))).drop_null()
            if len(large):
                raise OverflowError(f"returned {large[0].as_py()!r}, which does not fit FLOAT")
    elif pa.types.is_temporal(kind):
        if pa.types.is_integer(array.type):
            raise TypeError(f"returned {array.type} where {_name(kind)} is due")
        if pa.types.is_date(kind) and pa.types.is_timestamp(array.type):
            cut = array.filter(pc.not_equal(array.cast(kind).cast(array.type), array)).drop_null()
            if len(cut):
                raise TypeError(f"returned {cut[0]} where DATE is due")
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


def _check_values(values: Iterable[Any], kind: pa.DataType) -> None:
    """Refuses, at any depth, objects of which pyarrow makes other values: it cuts numbers to integers and moments to
    days, and takes numbers for times. What is no value of the type in any way, it refuses itself."""
    values = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        for place, field in enumerate(kind):
            named = [value.get(field.name) for value in values if isinstance(value, Mapping)]
            placed = [value[place] for value in values if isinstance(value, tuple) and place < len(value)]
            _check_values(named + placed, field.type)
    elif pa.types.is_map(kind):
        pairs = [
            pair for value in values for pair in (value.items() if isinstance(value, Mapping) else value)
        ]
        _check_values([key for key, _ in pairs], kind.key_type)
        _check_values([item for _, item in pairs], kind.item_type)
    elif pa.types.is_nested(kind):
        _check_values(
            [part for value in values if isinstance(value, Sized) for part in value], kind.value_type
        )
    else:
        for value in values:
            if not _is_kept(value, kind):
                raise TypeError(f"returned {value!r} where {_name(kind)} is due")


def _is_kept(value: Any, kind: pa.DataType) -> bool:
    """Whether pyarrow keeps a value as it is, or refuses it. NaN stands for NULL."""
    if isinstance(value, (numbers.Number, decimal.Decimal)) and value == value:
        if pa.types.is_integer(kind):
            return isinstance(value, numbers.Integral) or (not math.isinf(value) and value == int(value))
        endless = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        return not pa.types.is_temporal(kind) or (endless and value in (math.inf, -math.inf))
    if not pa.types.is_date(kind) or value != value:
        return True
    return value.time() == _MIDNIGHT if isinstance(value, datetime) else isinstance(value, date)


def _name(kind: pa.DataType) -> str:
    """A type by its name in SQL, as far as there is one name for it."""
    names = {"date": "DATE", "time": "TIME", "timestamp": "TIMESTAMP"}
    return next((name for start, name in reversed(names.items()) if str(kind).startswith(start)), str(kind))
