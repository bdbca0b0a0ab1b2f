"""Functions of columns: called with the arrays of a batch, they give one array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crosslane._engines.spark.arrow_types import arrow_type, cast
from crosslane._engines.spark.shortcut import Shortcut
from crosslane._engines.spark.support import ARROW_BATCHED
from crosslane._engines.spark.worker import of_worker


def column_function(
    function: Callable[..., Any], eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Callable[..., Any]:
    """A function that is called with the arrays of a batch, and returns one array."""
    import pandas  # noqa: F401  A lane should find it imported.
    import pyarrow as pa

    evaluate = of_worker(function, eval_type, types, returns, conf)
    kinds = [arrow_type(kind, conf) for kind in types]
    names = [f"_{number}" for number in range(len(types))]

    def called(*arrays: Any) -> Any:
        columns = [cast(array, kind) for array, kind in zip(arrays, kinds)]
        (result,) = evaluate(iter([pa.RecordBatch.from_arrays(columns, names)]))
        return result.column(0)

    if eval_type != ARROW_BATCHED or not Shortcut.is_one(types, conf):
        return called
    # Spark's own code converts the results of the shortcut's calls that are not of the usual class.
    replay = _Replay()
    evaluate = of_worker(replay, eval_type, types, returns, conf)
    shortcut = Shortcut(function, len(types), returns, conf)

    def quickly(*arrays: Any) -> Any:
        results = shortcut.results(arrays)
        array = shortcut.array(results)
        if array is not None:
            return array
        replay.results = iter(results)
        return called(*arrays)

    return quickly


class _Replay:
    """Stands in for a function that was called already, and returns its results."""

    results: Iterator[Any] = iter(())

    def __call__(self, *_: object) -> Any:
        return next(self.results)
