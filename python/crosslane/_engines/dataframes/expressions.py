"""Calls of functions as expressions of polars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars
import pyarrow as pa


def expression(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    result_type: pa.DataType | None,
    is_aggregate: bool,
) -> polars.Expr:
    """The expression that calls a function with arguments, of which some are expressions.

    Args:
        function: the function, which takes Series.
        arguments: its arguments.
        result_type: the type of its results. If it is None, polars finds out by a call.
        is_aggregate: whether it returns one value for all rows.
    """
    places = [place for place, one in enumerate(arguments) if isinstance(one, polars.Expr)]

    def call(columns: Sequence[polars.Series]) -> Any:
        given = list(arguments)
        lengths = {len(column) for column in columns}
        for place, column in zip(places, columns):
            # polars gives a literal as a column of one row.
            is_value = len(column) == 1 and len(lengths) > 1
            given[place] = column[0] if is_value else column
        return function(*given)

    return polars.map_batches(
        [arguments[place] for place in places],
        call,
        return_dtype=None if result_type is None else polars.from_arrow(pa.array([], result_type)).dtype,
        is_elementwise=not is_aggregate,
        returns_scalar=is_aggregate,
    )
