"""Puts faster parts into ``pyspark.worker``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

#: The version whose loops are known. Workers of other versions run Spark's code alone.
_KNOWN = "4.3."
#: Numbers of ``pyspark.util.PythonEvalType``: functions of groups that get data frames of pandas.
FRAMES = frozenset({201, 206, 216})
#: Functions of groups and windows that get series, and return one value.
SERIES = frozenset({202, 203, 217})


def install() -> None:
    """Makes the workers that this process will fork use faster parts, where they are known."""
    import pyspark
    from pyspark import worker

    if pyspark.__version__.startswith(_KNOWN):
        worker.read_udfs = _around(worker.read_udfs, _groups)
        worker.read_udtf = _around(worker.read_udtf, _tables)


def _around(read: Callable[..., Any], improve: Callable[..., None]) -> Callable[..., Any]:
    """Spark's function that reads the functions of a task, with a faster loop in its result."""

    from pyspark import worker
    from pyspark.sql import conversion

    @functools.wraps(read)
    def around(pickler: Any, info: Any, eval_type: int, conf: Any, *more: Any) -> Any:
        # The task before may have had faster parts.
        worker.ArrowBatchTransformer = conversion.ArrowBatchTransformer
        worker.PandasToArrowConversion = conversion.PandasToArrowConversion
        made = read(pickler, info, eval_type, conf, *more)
        # A later release may have loops with other variables. They stay as they are.
        with contextlib.suppress(KeyError):
            improve(made[0], eval_type, conf)
        return made

    return around


def _groups(loop: Callable[..., Any], eval_type: int, conf: Any) -> None:
    if eval_type in FRAMES or eval_type in SERIES:
        # Other functions may run where pandas is not installed.
        from crosslane._engines.spark.workers import groups

        groups.improve(loop, eval_type in FRAMES, conf)


def _tables(loop: Callable[..., Any], eval_type: int, conf: Any) -> None:
    from crosslane._engines.spark.workers import tables

    tables.improve(loop, eval_type, conf)
