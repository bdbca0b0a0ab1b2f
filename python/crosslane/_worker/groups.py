"""Columns whose rows are sorted by groups, in parts: what vectorized aggregates are given.

A state may keep its part. So no part keeps the whole column, and its labels, where it has some, begin at 0. Parts are copies, or, where
one costs more to make than to cut off, cut off from a block of 256 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crosslane._worker.vectors import into

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared

#: Parts of fewer rows are cut off from blocks of so many.
_BLOCK = 256

#: Gives so many rows of a column, from one on.
Part = Callable[[int, int], Any]


def parts(declared: Declared, arrays: list[pa.Array]) -> list[Part]:
    """What gives the parts of each column. They are to be asked for in their order."""
    wishes = zip(declared.columns, declared.admits_null, arrays)
    return [
        _parts(replace(declared, columns=[library], admits_null=[nullable]), array)
        for library, nullable, array in wishes
    ]


def _parts(declared: Declared, array: pa.Array) -> Part:
    (library,) = declared.columns

    def made(array: pa.Array) -> Any:
        (column,) = into(declared, [array])
        return column

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


def _in_blocks(array: pa.Array, made: Callable[[pa.Array], Any], cutter: Callable[[Any], Part]) -> Part:
    first = end = 0
    cut: Part

    def part(begin: int, count: int) -> Any:
        nonlocal first, end, cut
        if count >= _BLOCK:
            return made(pa.concat_arrays([array.slice(begin, count)]))
        if begin + count > end:
            # A copy, too, if it is of one.
            block = pa.concat_arrays([array.slice(begin, _BLOCK)])
            first, end, cut = begin, begin + len(block), cutter(made(block))
        return cut(begin - first, count)

    return part


def _of_numpy(column: Any) -> Part:
    import numpy

    if isinstance(column, numpy.ma.MaskedArray):
        values, mask = column.data, column.mask
        masked = partial(numpy.ma.MaskedArray, copy=True)
        return lambda begin, count: masked(values[begin : begin + count], mask[begin : begin + count])
    return lambda begin, count: column[begin : begin + count].copy()


def _of_pandas(column: Any) -> Part:
    import pandas

    values = column.array
    # Without this pandas would look for another one.
    dtype = column.dtype if column.dtype == object else None
    return lambda begin, count: pandas.Series(values[begin : begin + count], dtype=dtype)
