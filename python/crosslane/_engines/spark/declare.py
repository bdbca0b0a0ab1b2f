"""Functions of PySpark as a lane needs them. The plugin's Scala code names this module."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

from crosslane import _guest
from crosslane._declare.callables import defined_at
from crosslane._declare.signature.declared import Declared
from crosslane._engines.spark.columns import column_function
from crosslane._engines.spark.iterated import Iterated
from crosslane._engines.spark.rows import is_unchanged, row_function
from crosslane._engines.spark.shortcut import Shortcut
from crosslane._engines.spark.support import (
    ARROW_BATCHED,
    BATCHED,
    ITERATORS,
    Unsupported,
    parsed,
    reason_against,
)
from crosslane._runtime.sql import quoted


def declare(
    name: str,
    signature: str,
    command: bytes,
    eval_type: int,
    argument_types: list[str],
    return_type: str,
    conf: dict[str, str],
    files: str,
    broadcasts: dict[str, str],
) -> list[Declared | Iterated]:
    """A function of PySpark as a lane needs it, for
    :func:`crosslane._declare.library.load_pickles`.

    Args:
        name: the name of the function in errors.
        signature: its types in SQL, such as ``f(a BIGINT) -> BIGINT``.
        command: the bytes of PySpark: the pickled function and the type of its result.
        eval_type: a number of ``pyspark.util.PythonEvalType``.
        argument_types: Spark's types as JSON.
        return_type: the same for the result.
        conf: the settings of the query that concern Python, with ``spark.sql.session.timeZone``.
        files: the folder of the files that Spark has sent to this machine.
        broadcasts: the files with the values of broadcast variables, by their numbers.

    Raises:
        Unsupported: if Spark has to run the function itself.
        Exception: any exception of unpickling the function.
    """
    reason = reason_against(eval_type, argument_types, return_type, conf)
    if reason:
        raise Unsupported(reason)
    _prepare(files, broadcasts)
    from pyspark.core.broadcast import Broadcast

    loaded = pickle.loads(command)
    if isinstance(loaded, Broadcast):
        # A large function travels as a broadcast variable.
        loaded = pickle.loads(loaded.value)
    if not (isinstance(loaded, tuple) and len(loaded) == 2 and callable(loaded[0])):
        raise Unsupported(f"the command is a {type(loaded).__name__}, and no function with its type")
    function = loaded[0]
    types = [_spark_type(text) for text in argument_types]
    returns = _spark_type(return_type)
    if eval_type == BATCHED:
        called = row_function(function, types, returns, conf)
        return [_declared(name, signature, function, called, "row", is_unchanged(types, returns))]
    if eval_type in ITERATORS:
        return [Iterated(name, signature, function, eval_type, types, returns, conf)]
    called = column_function(function, eval_type, types, returns, conf)
    is_plain = eval_type == ARROW_BATCHED and Shortcut.has_plain_values(conf) and is_unchanged(types, returns)
    return [_declared(name, signature, function, called, "vectorized", is_plain)]


def _prepare(files: str, broadcasts: dict[str, str]) -> None:
    """Lets functions of this process find files and broadcast variables, as in Spark's workers."""
    from pyspark import SparkFiles
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry

    class Read(Broadcast):  # type: ignore[type-arg]
        """A variable whose value is an attribute. Spark's property takes as long as a small function."""

        value = None

    SparkFiles._root_directory, SparkFiles._is_running_on_worker = files, True
    for number, path in broadcasts.items():
        variable = _broadcastRegistry[int(number)] = Read(path=path)
        # Workers are forks of this process, and share the value.
        variable.value = variable.load_from_path(path)


def _declared(
    name: str,
    signature: str,
    function: Callable[..., Any],
    called: Callable[..., Any],
    kind: str,
    is_plain: bool,
) -> Declared:
    _, parameters, returns, _ = _guest.parse_signature(signature)
    inner = ", ".join(f"{quoted(parameter)} {sql}" for parameter, sql in parameters)
    count = len(parameters)
    file, line = defined_at(function)
    return Declared(
        name=name,
        signature=f"{quoted(name)}({inner}) -> {returns}",
        callable=called,
        kind=kind,
        shapes=[None] * count,
        admits_null=[True] * count,
        columns=["pyarrow"] * count,
        # Spark calls a function for each row, even if it is deterministic.
        deterministic=False,
        inline=called is function,
        inner=function if is_plain else None,
        file=file,
        line=line,
        description=inspect.getdoc(function) or "",
        # A function of columns gets the batches that Spark would give it.
        whole_batches=kind == "vectorized",
    )


def _spark_type(text: str) -> Any:
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(json.dumps(parsed(text)))
