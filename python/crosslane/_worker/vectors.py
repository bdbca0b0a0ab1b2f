"""Vectorized functions: columns in the library that the function wants, and back to pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from crosslane._arrow.convert import fitting

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared


def _to_numpy(array: pa.Array, nullable: bool) -> Any:
    """The dtype is that of the SQL type, whether there are NULLs or not: those are masked."""
    if not nullable:
        return array.to_numpy(zero_copy_only=False)
    import numpy

    filled = array
    if pa.types.is_integer(array.type):
        filled = array.fill_null(0)
    elif pa.types.is_boolean(array.type):
        filled = array.fill_null(False)
    values = filled.to_numpy(zero_copy_only=False)
    if values.dtype == object:
        return values
    return numpy.ma.MaskedArray(values, array.is_null().to_numpy(zero_copy_only=False))


def _to_pandas(array: pa.Array, nullable: bool) -> Any:
    """As numpy's, with pandas' own dtypes for what may be NULL and has no NaN."""
    if not nullable:
        return array.to_pandas()
    import pandas

    def dtype(kind: pa.DataType) -> Any:
        return pandas.api.types.pandas_dtype(_NULLABLE[kind]) if kind in _NULLABLE else None

    return array.to_pandas(types_mapper=dtype)


#: pandas' dtypes with a NULL of their own, for types whose plain one has none. NaN is that of floats.
_NULLABLE = {
    pa.bool_(): "boolean",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
}


def _to_polars(array: pa.Array, nullable: bool) -> Any:
    import polars

    return polars.from_arrow(array)


_INTO: dict[str, Callable[[pa.Array, bool], Any] | None] = {
    "pyarrow": None,
    "numpy": _to_numpy,
    "pandas": _to_pandas,
    "polars": _to_polars,
}


def into(declared: Declared, arrays: list[pa.Array]) -> list[Any]:
    """Arrays in the libraries that a function's parameters are written for."""
    made = [_INTO[column] for column in declared.columns]
    return [
        make(array, nullable) if make else array
        for make, array, nullable in zip(made, arrays, declared.admits_null)
    ]


class Steps:
    """A generator of columns, called batch by batch: it begins with the first, and goes on with each further one."""

    def __init__(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._function = function
        self._results: Iterator[Any] | None = None
        #: The batch that it has not taken.
        self._batch: Any = None

    def __call__(self, *columns: Any) -> Any:
        """What it yields for a batch. After an exception it begins anew.

        Raises:
            RuntimeError: if it ends, or does not yield one column for each batch.
        """
        self._batch = columns if len(columns) > 1 else columns[0]
        if self._results is None:
            self._results = self._function(self._batches())
        try:
            result = next(self._results)
        except BaseException as error:
            self._results = None
            if isinstance(error, StopIteration):
                raise RuntimeError("ended, where it yields a column for each batch of its iterator") from None
            raise
        if self._batch is not None:
            self._results = None
            raise RuntimeError("yielded a column without a batch: it takes one from its iterator before each")
        return result

    def _batches(self) -> Iterator[Any]:
        while True:
            if self._batch is None:
                raise RuntimeError("asked for another batch before it yielded the column for the last")
            batch, self._batch = self._batch, None
            yield batch


def _fills_places(kind: pa.DataType) -> bool:
    """Whether pyarrow itself puts values of a type into the places that a mask has. It does so for all but nested ones."""
    none = pa.nulls(0, kind)
    try:
        pc.replace_with_mask(none, pa.nulls(0, pa.bool_()), none)
    except pa.ArrowNotImplementedError:
        return False
    return True


class Caller:
    """Calls a vectorized function with pyarrow arrays, whatever library it is written for."""

    def __init__(self, declared: Declared, result: pa.DataType) -> None:
        function = declared.callee()
        self._function = Steps(function) if declared.iterates else function
        self._into = [_INTO[column] for column in declared.columns]
        self._admits_null = declared.admits_null
        self._variadic = declared.variadic
        self._result = result
        self._fills_places = _fills_places(result)

    def __call__(self, arrays: list[pa.Array], rows: int) -> pa.Array | list[Any]:
        """The function's result as an array of the declared type, or as a list of objects.

        The function does not get the rows that have NULL in a parameter that admits none; they are NULL.

        Raises:
            TypeError, ValueError, OverflowError: if the result is no column, has another length, or does not fit.
        """
        kept = self._kept(arrays)
        if kept is None:
            return self._call(arrays, rows)
        if kept.true_count == 0:
            return pa.nulls(rows, self._result)
        results = self._call([array.filter(kept) for array in arrays], kept.true_count)
        if isinstance(results, list):
            rest = iter(results)
            return [next(rest) if called else None for called in kept.to_pylist()]
        if self._fills_places:
            return pc.replace_with_mask(pa.nulls(rows, self._result), kept, results)
        places = pc.subtract(pc.cumulative_sum(kept.cast(pa.int64())), 1)
        return results.take(pc.if_else(kept, places, None))

    def _kept(self, arrays: list[pa.Array]) -> pa.BooleanArray | None:
        """Which rows the function gets, if not all."""
        kept = None
        for array, admits_null in zip(arrays, self._admits_null):
            if not admits_null and array.null_count:
                valid = array.is_valid()
                kept = valid if kept is None else pc.and_(kept, valid)
        return kept

    def _call(self, arrays: list[pa.Array], rows: int) -> pa.Array | list[Any]:
        into, admits_null = self._into, self._admits_null
        if self._variadic:
            # All lists of a batch are of one length: so many columns more.
            values = arrays[-1].flatten()
            count = len(values) // rows
            rest = [values.take(pa.array(range(at, len(values), count))) for at in range(count)]
            arrays = arrays[:-1] + rest
            into, admits_null = into + into[-1:] * count, admits_null + admits_null[-1:] * count
        columns = [
            into(array, nullable) if into else array
            for into, array, nullable in zip(into, arrays, admits_null)
        ]
        results = fitting(self._function(*columns), self._result)
        if len(results) != rows:
            raise ValueError(f"returned {len(results)} values where {rows} are due")
        return results
