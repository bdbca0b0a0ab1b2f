"""Columns of Python's libraries: as Arrow data, and results as columns of the same kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Column:
    """An argument that is a column."""

    values: pa.ChunkedArray
    #: Makes a column of the argument's kind from a result.
    like: Callable[[pa.ChunkedArray], Any]
    #: The index of a pandas Series.
    index: Any = None


def column_of(argument: Any) -> Column | None:
    """The column that an argument is, or None if it is a single value.

    Columns are pyarrow's Array and ChunkedArray, a Series of polars or pandas, a NumPy array of one
    dimension, a list, and any object with the Arrow C interface of an array. The result for the last
    is a ChunkedArray.

    Raises:
        TypeError: if it is a table, has more than one dimension, or has values without an Arrow
            type.
    """
    if isinstance(argument, loaded("numpy", "ndarray")) and argument.ndim != 1:
        if argument.ndim == 0:
            return None
        raise TypeError(f"has {argument.ndim} dimensions, and a column has one")
    if hasattr(argument, "columns"):
        raise TypeError(
            f"is a table ({type(argument).__name__}), and not a column: pass its columns one by one"
        )
    try:
        return _column(argument)
    # The libraries have exceptions of their own for values without an Arrow type.
    except Exception as error:
        raise TypeError(f"is a {type(argument).__name__} without a type in Arrow: {error}") from error


def _column(argument: Any) -> Column | None:
    if isinstance(argument, pa.ChunkedArray):
        return Column(argument, lambda result: result)
    if isinstance(argument, pa.Array):
        return Column(_chunked(argument), _array)
    if isinstance(argument, list):
        return Column(_chunked(pa.array(argument)), pa.ChunkedArray.to_pylist)
    if isinstance(argument, loaded("polars", "Series")):
        if argument.dtype.is_object():
            # Arrow would get the addresses of the objects.
            raise TypeError("its dtype is Object")
        return Column(pa.chunked_array(argument), lambda result: _polars(result, argument.name))
    if isinstance(argument, loaded("pandas", "Series")):
        values = _chunked(pa.Array.from_pandas(argument))
        return Column(values, lambda result: _pandas(result, argument), argument.index)
    if isinstance(argument, loaded("numpy", "ndarray")):
        return Column(_chunked(pa.array(argument)), _numpy)
    if hasattr(argument, "__arrow_c_stream__"):
        return Column(pa.chunked_array(argument), lambda result: result)
    if hasattr(argument, "__arrow_c_array__"):
        return Column(_chunked(pa.array(argument)), lambda result: result)
    return None


def loaded(module: str, name: str) -> Any:
    """A class of a library for ``isinstance``. An object of it exists only if the library is
    imported."""
    return getattr(sys.modules.get(module), name, ())


def _chunked(values: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def _array(result: pa.ChunkedArray) -> pa.Array:
    return result.combine_chunks()


def _polars(result: pa.ChunkedArray, name: str) -> Any:
    import polars

    return polars.from_arrow(result, rechunk=False).alias(name)


def _numpy(result: pa.ChunkedArray) -> Any:
    """An array. If integers or booleans have NULLs, it is a masked array, because NumPy has no other
    form that keeps them."""
    import numpy

    if pa.types.is_dictionary(result.type):
        # pyarrow gives some value of the dictionary for NULL.
        result = result.cast(result.type.value_type)
    if pa.types.is_nested(result.type):
        return _objects(result)
    if not result.null_count or not _is_exact(result.type):
        values = result.to_numpy()
        # A result of one chunk would share Arrow's memory, which must not change.
        return values if values.flags.writeable else values.copy()
    filled = pc.fill_null(result, pa.scalar(0).cast(result.type))
    return numpy.ma.MaskedArray(filled.to_numpy(), mask=result.is_null().to_numpy(), copy=True)


def _pandas(result: pa.ChunkedArray, like: Any) -> Any:
    """A Series with the index and the name of another. Its dtype is Arrow's or a nullable one if the
    other's is. Otherwise integers and booleans with NULLs have a nullable dtype, because floats
    would not keep them."""
    import pandas

    if isinstance(like.dtype, pandas.ArrowDtype):
        series = result.to_pandas(types_mapper=pandas.ArrowDtype)
    elif pa.types.is_nested(result.type):
        series = pandas.Series(_objects(result))
    else:
        nullable = result.null_count or getattr(like.dtype, "na_value", None) is pandas.NA
        series = result.to_pandas(types_mapper=_nullable if nullable else None)
    if result.num_chunks == 1:
        # The series may share Arrow's memory, which must not change.
        series = series.copy()
    return series.set_axis(like.index).rename(like.name)


def _objects(result: pa.ChunkedArray) -> Any:
    """An array of Python's values. pyarrow would make floats of integers in nested values."""
    import numpy

    return numpy.fromiter(result.to_pylist(), dtype=object, count=len(result))


def _nullable(data_type: pa.DataType) -> Any:
    """pandas's nullable dtype of an integer or boolean type, or None for other types."""
    import pandas

    if not _is_exact(data_type):
        return None
    if pa.types.is_boolean(data_type):
        return pandas.BooleanDtype()
    return pandas.api.types.pandas_dtype(str(data_type).replace("i", "I").replace("u", "U"))


def _is_exact(data_type: pa.DataType) -> bool:
    return pa.types.is_integer(data_type) or pa.types.is_boolean(data_type)
