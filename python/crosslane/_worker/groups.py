"""Slices of columns whose rows are sorted by groups, for vectorized aggregates.

The state of a group may keep its slice. So a slice does not keep the whole column alive, and its
labels begin at 0. A slice is a copy. Where a copy costs more than a cut, small slices are cut from
copies of 256 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crosslane._worker.vectors import FROM_ARROW

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared

#: How many rows a block has. Slices of fewer rows are cut from blocks.
_BLOCK = 256

#: Gives a slice of a column, by its first row and its number of rows.
Slicer = Callable[[int, int], Any]


def slicers(declared: Declared, arrays: list[pa.Array]) -> list[Slicer]:
    """A slicer for each column. Slices must be taken in the order of their rows."""
    return list(map(_slicer, declared.columns, declared.admits_null, arrays))


def _slicer(library: str, nullable: bool, array: pa.Array) -> Slicer:
    def made(array: pa.Array) -> Any:
        return FROM_ARROW[library](array, nullable)

    if library == "numpy":
        return _of_numpy(made(array))
    if library == "pandas":
        import numpy
        import pandas

        dtype = made(array.slice(0, 0)).dtype
        if isinstance(dtype, numpy.dtype) and dtype.kind in "biuf":
            values = made(array).to_numpy()
            return lambda begin, count: pandas.Series(values[begin : begin + count], copy=True)
        return _in_blocks(array, made, _of_pandas)
    return _in_blocks(array, made, attrgetter("slice"))


def _in_blocks(array: pa.Array, made: Callable[[pa.Array], Any], cutter: Callable[[Any], Slicer]) -> Slicer:
    first = end = 0
    cut: Slicer

    def rows(begin: int, count: int) -> Any:
        nonlocal first, end, cut
        if count >= _BLOCK:
            return made(pa.concat_arrays([array.slice(begin, count)]))
        if begin + count > end:
            # concat_arrays copies even a single array.
            block = pa.concat_arrays([array.slice(begin, _BLOCK)])
            first, end, cut = begin, begin + len(block), cutter(made(block))
        return cut(begin - first, count)

    return rows


def _of_numpy(column: Any) -> Slicer:
    import numpy

    if isinstance(column, numpy.ma.MaskedArray):
        values, mask = column.data, column.mask
        masked = partial(numpy.ma.MaskedArray, copy=True)
        return lambda begin, count: masked(values[begin : begin + count], mask[begin : begin + count])
    return lambda begin, count: column[begin : begin + count].copy()


def _of_pandas(column: Any) -> Slicer:
    import pandas

    values = column.array
    # Without it, pandas would infer another dtype from the objects.
    dtype = column.dtype if column.dtype == object else None
    return lambda begin, count: pandas.Series(values[begin : begin + count], dtype=dtype)
