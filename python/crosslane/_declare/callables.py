"""Callables as Python's ``inspect`` sees them, behind partials, decorators and instances."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from crosslane._declare.classes import Stateful


def underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a callable calls in the end; it has the code and the annotations."""
    while function is not (inner := _inner(function)):
        function = inner
    if isinstance(function, type):
        made = (getattr(function, name) for name in ("__init__", "__new__"))
        return next(filter(inspect.isfunction, made), function)
    if not inspect.isroutine(function):
        return type(function).__call__
    return function


def defined_at(function: Callable[..., Any]) -> tuple[str, int]:
    """The file and line of a function; ``("<unknown>", 0)`` if it is not in Python."""
    code = getattr(underlying(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 0)


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a partial calls or a decorator wraps.

    Raises:
        ValueError: if wrappers wrap each other in a circle.
    """
    return function.func if isinstance(function, functools.partial) else inspect.unwrap(function)


def name_of(function: Callable[..., Any]) -> str:
    """A function's own name, or the name of its class if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function gives an awaitable."""
    return inspect.iscoroutinefunction(underlying(function))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call of the function gives a generator.

    A decorated function counts as it is: its wrapper need not give what the wrapped function gives.
    """
    if isinstance(function, Stateful):
        return is_generator(function.class_.__call__)
    called = inspect.isroutine(function) or isinstance(function, functools.partial)
    return inspect.isgeneratorfunction(function if called else type(function).__call__)
