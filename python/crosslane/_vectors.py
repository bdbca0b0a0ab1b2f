"""Vectorized functions: columns in the library that the function wants, and back to pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from crosslane._signature import Declared


def _to_numpy(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _to_pandas(array: pa.Array) -> Any:
    return array.to_pandas()


def _to_polars(array: pa.Array) -> Any:
    import polars

    return polars.from_arrow(array)


_INTO: dict[str, Callable[[pa.Array], Any] | None] = {
    "pyarrow": None,
    "numpy": _to_numpy,
    "pandas": _to_pandas,
    "polars": _to_polars,
}


class Caller:
    """Calls a vectorized function with pyarrow arrays, whatever library it is written for."""

    def __init__(self, declared: Declared, result: pa.DataType) -> None:
        self._function = declared.callable
        self._name = declared.name
        self._into = [_INTO[column] for column in declared.columns]
        self._plain = not any(self._into)
        self._result = result

    def __call__(self, arrays: list[pa.Array], rows: int) -> pa.Array:
        """The function's result as an array of the declared type.

        Raises:
            TypeError, ValueError: if the result is no column, has another length, or does not fit.
        """
        if self._plain:
            result = self._function(*arrays)
        else:
            result = self._function(
                *[into(array) if into else array for into, array in zip(self._into, arrays)]
            )
        array = self._array(result)
        if len(array) != rows:
            raise ValueError(f"returned {len(array)} values where {rows} are due")
        return array

    def _array(self, result: Any) -> pa.Array:
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
            if isinstance(result, pa.ChunkedArray):  # pyarrow keeps what exceeds 2 GiB in chunks
                raise ValueError("the results of one batch exceed 2 GiB")
        elif not isinstance(result, pa.Array):
            result = self._foreign(result)
        if isinstance(result, pa.DictionaryArray):
            result = result.dictionary_decode()
        return result if result.type == self._result else result.cast(self._result)

    def _foreign(self, result: Any) -> pa.Array:
        library = type(result).__module__.split(".")[0]
        if library == "polars":
            return result.to_arrow()
        if library == "pandas":
            return pa.Array.from_pandas(result, type=self._result)
        if library == "numpy" and getattr(result, "ndim", 0) == 1:
            # numpy's integers have no NULL: a column with one is float, and NaN where NULL was.
            return pa.array(result, from_pandas=not pa.types.is_floating(self._result))
        if isinstance(result, (list, tuple)):
            return pa.array(result, type=self._result)
        raise TypeError(
            f"returned {type(result).__name__} where a column is due: a pyarrow array, or a numpy, pandas or polars one"
        )
