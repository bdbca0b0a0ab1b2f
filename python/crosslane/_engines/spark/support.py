"""The kinds of functions, types and settings of PySpark that are supported."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

#: The supported numbers of ``pyspark.util.PythonEvalType``.
BATCHED, ARROW_BATCHED, SCALAR_PANDAS, SCALAR_ARROW = 100, 101, 200, 250
SCALAR_PANDAS_ITER, SCALAR_ARROW_ITER, MAP_PANDAS_ITER, MAP_ARROW_ITER = 204, 251, 205, 207
#: Functions that get the batches of a whole task, as an iterator.
ITERATORS = frozenset({SCALAR_PANDAS_ITER, SCALAR_ARROW_ITER, MAP_PANDAS_ITER, MAP_ARROW_ITER})
#: Functions of rows to rows. Their batches have one column, a struct.
MAPS = frozenset({MAP_PANDAS_ITER, MAP_ARROW_ITER})
_KNOWN_TYPES = ITERATORS | {BATCHED, ARROW_BATCHED, SCALAR_PANDAS, SCALAR_ARROW}
#: The supported Spark types by their names in Spark's JSON. ``decimal(p,s)`` is supported, too.
_ATOMS = frozenset(
    {
        "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp",
        "timestamp_ntz",
    }
)  # fmt: skip
_DECIMAL = re.compile(r"decimal(\(\s*\d+\s*,\s*\d+\s*\))?")
_PROFILER = "spark.sql.pyspark.udf.profiler"
_THREADS = "spark.sql.execution.pythonUDF.arrow.concurrency.level"


class Unsupported(Exception):
    """A lane cannot run the function, so that Spark has to; the message says why."""


def reason_against(
    eval_type: int, argument_types: list[str], return_type: str, conf: dict[str, str]
) -> str | None:
    """Why Spark has to run such a function itself; None if a lane can run it. Does not import
    PySpark.

    Args:
        eval_type: a number of ``pyspark.util.PythonEvalType``.
        argument_types: Spark's types as JSON, such as ``'"long"'``.
        return_type: the same for the result.
        conf: the settings of the query that concern Python.
    """
    if eval_type not in _KNOWN_TYPES:
        return f"functions of eval type {eval_type} are not known"
    if conf.get(_PROFILER):
        return f"{_PROFILER} is set"
    threads = conf.get(_THREADS)
    if eval_type == ARROW_BATCHED and threads and int(threads) > 0:
        return f"{_THREADS} is set"
    if eval_type != BATCHED and not argument_types:
        return "a function of columns has no argument"
    for number, text in enumerate(argument_types, 1):
        wrong = _wrong(parsed(text), eval_type == BATCHED, False)
        if wrong:
            return f"argument {number} has the type {wrong}"
    wrong = _wrong(parsed(return_type), eval_type == BATCHED, True)
    return f"the result has the type {wrong}" if wrong else None


def parsed(text: str) -> Any:
    """The JSON of a type. A name without quotes stands for itself."""
    text = text.strip()
    return json.loads(text) if text[:1] in ('"', "{") else text


def _wrong(kind: Any, by_row: bool, is_result: bool) -> str | None:
    """The name of the part of a type that is not supported; None if all is supported."""
    if isinstance(kind, str):
        return None if kind in _ATOMS or _DECIMAL.fullmatch(kind) else kind
    name = kind.get("type")
    if name == "array":
        if by_row and is_result and not kind.get("containsNull", True):
            return "array of elements that cannot be NULL"
        return _wrong(kind["elementType"], by_row, is_result)
    if name == "udt" or by_row:
        return str(name)
    if name == "map":
        return _wrong(kind["keyType"], by_row, is_result) or _wrong(kind["valueType"], by_row, is_result)
    if name == "struct":
        names = [field["name"].lower() for field in kind["fields"]]
        if not names or len(set(names)) < len(names):
            return "struct with no fields, or several of a name"
        parts = (_wrong(field["type"], by_row, is_result) for field in kind["fields"])
        return next(filter(None, parts), None)
    return str(name)


def is_true(conf: dict[str, str], key: str, default: str) -> bool:
    return conf.get(key, default).lower() == "true"


@functools.cache
def version() -> tuple[int, int]:
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)
