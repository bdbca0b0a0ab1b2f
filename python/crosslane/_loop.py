"""The loop over a batch, in Python: inside a comprehension CPython calls without leaving its own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_SOURCE = "def each(function, values):\n    return [function(value) for value in values]\n"


def make() -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """A new function ``each(function, values)`` that calls a function with each value.

    Every library function gets its own, because CPython remembers at the place of a call what was called
    there last.
    """
    namespace: dict[str, Any] = {}
    exec(compile(_SOURCE, __file__, "exec"), namespace)
    return namespace["each"]
