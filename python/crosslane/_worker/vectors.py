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
    """A numpy array. Its dtype depends on the SQL type only: NULLs are masked."""
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
    """A pandas Series. If it may have NULLs, types without NaN get nullable dtypes."""
    if not nullable:
        return array.to_pandas()
    import pandas

    def dtype(kind: pa.DataType) -> Any:
        return pandas.api.types.pandas_dtype(_NULLABLE[kind]) if kind in _NULLABLE else None

    return array.to_pandas(types_mapper=dtype)


#: The dtypes of pandas with a NULL of their own. Floats need none, because NaN is their NULL.
_NULLABLE = {
    pa.bool_(): "boolean",
    **{
        getattr(pa, f"{sign}int{bits}")(): f"{sign.upper()}Int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def _to_polars(array: pa.Array, nullable: bool) -> Any:
    import polars

    return polars.from_arrow(array)


#: For each library, what makes a column of an array; it is told whether the column may have NULLs.
FROM_ARROW: dict[str, Callable[[pa.Array, bool], Any]] = {
    "pyarrow": lambda array, _: array,
    "numpy": _to_numpy,
    "pandas": _to_pandas,
    "polars": _to_polars,
}


class ColumnGenerator:
    """A generator of columns. Each call gives it a batch, and takes the column for it."""

    def __init__(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._function = function
        self._results: Iterator[Any] | None = None
        #: The batch that the generator has not taken yet.
        self._batch: Any = None

    def __call__(self, *columns: Any) -> Any:
        """The column that the generator yields for a batch. After an exception, the next call
        starts a new generator.

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


def _can_replace(kind: pa.DataType) -> bool:
    """Whether pyarrow can replace values of a type by a mask: not for nested types."""
    none = pa.nulls(0, kind)
    try:
        pc.replace_with_mask(none, pa.nulls(0, pa.bool_()), none)
    except pa.ArrowNotImplementedError:
        return False
    return True


class Caller:
    """Calls a vectorized function with columns of the libraries that it is written for."""

    def __init__(self, declared: Declared, result: pa.DataType) -> None:
        function = declared.callee()
        self._function = ColumnGenerator(function) if declared.iterates else function
        self._convert = [FROM_ARROW[library] for library in declared.columns]
        self._admits_null = declared.admits_null
        self._variadic = declared.variadic
        self._result = result
        self._replaces = _can_replace(result)

    def __call__(self, arrays: list[pa.Array], rows: int) -> pa.Array | list[Any]:
        """The function's result as an array of the declared type, or as a list of objects.

        Rows that have NULL in a parameter that does not admit it are left out of the call; their
        results are NULL.

        Raises:
            TypeError, ValueError, OverflowError: if the result is no column, has another length, or
                does not fit.
        """
        valid = self._valid(arrays)
        if valid is None:
            return self._call(arrays, rows)
        if valid.true_count == 0:
            return pa.nulls(rows, self._result)
        results = self._call([array.filter(valid) for array in arrays], valid.true_count)
        if isinstance(results, list):
            rest = iter(results)
            return [next(rest) if called else None for called in valid.to_pylist()]
        if self._replaces:
            return pc.replace_with_mask(pa.nulls(rows, self._result), valid, results)
        indices = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return results.take(pc.if_else(valid, indices, None))

    def _valid(self, arrays: list[pa.Array]) -> pa.BooleanArray | None:
        """A mask of the rows that the function gets; None if it gets all."""
        valid = None
        for array, admits_null in zip(arrays, self._admits_null):
            if not admits_null and array.null_count:
                mask = array.is_valid()
                valid = mask if valid is None else pc.and_(valid, mask)
        return valid

    def _call(self, arrays: list[pa.Array], rows: int) -> pa.Array | list[Any]:
        converters, admits_null = self._convert, self._admits_null
        if self._variadic:
            # All lists of a batch have the same length, and each of their places becomes a column.
            values = arrays[-1].flatten()
            count = len(values) // rows
            rest = [values.take(pa.array(range(at, len(values), count))) for at in range(count)]
            arrays = arrays[:-1] + rest
            converters = converters + converters[-1:] * count
            admits_null = admits_null + admits_null[-1:] * count
        columns = [
            convert(array, nullable) for convert, array, nullable in zip(converters, arrays, admits_null)
        ]
        results = fitting(self._function(*columns), self._result)
        if len(results) != rows:
            raise ValueError(f"returned {len(results)} values where {rows} are due")
        return results
