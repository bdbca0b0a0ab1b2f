"""Functions as Ibis's built-in functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import ibis


class Builtins:
    """The functions as attributes. Each takes and gives expressions of Ibis."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            function = self._functions[name]
        except KeyError as error:
            raise AttributeError(*error.args) from None
        declared = function.declared
        if declared.kind in ("table", "stream"):
            raise TypeError(f"{name} is a {declared.kind} function, and Ibis has functions of columns only")
        if function.result_type is None:
            raise TypeError(f"Ibis needs one type of results, and {name} has several: {declared}")

        def call(*arguments: Any) -> Any:
            declared.check_count(len(arguments))
            return _builtin(function, len(arguments))(*arguments)

        return call

    def __dir__(self) -> Iterable[str]:
        return list(self._functions)


def _builtin(function: Any, count: int) -> Callable[..., Any]:
    """The function for a number of arguments. DuckDB checks and casts their types."""

    def stub(*_: Any) -> None: ...

    stub.__name__ = function.__name__
    names = [f"argument_{place + 1}" for place in range(count)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    stub.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    udf = ibis.udf.agg if function.declared.kind == "aggregate" else ibis.udf.scalar
    return udf.builtin(stub, signature=((None,) * count, function.result_type))
