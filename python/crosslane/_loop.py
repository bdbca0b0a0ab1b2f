"""The loops over a batch, in Python: inside them CPython calls without leaving its own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from crosslane import _inline

if TYPE_CHECKING:
    from crosslane._signature import Declared

_SOURCE = """\
def whole(function, values):
    return [function({names}) for {names} in values]

def lenient(function, values, results):
    for {names} in values:
        results.append(function({names}))
"""

#: Calls a function with all that an iterator gives. Without a list it returns the results; with one it appends each of
#: them as soon as it is there, so that those before an exception are not lost.
Each = Callable[[Iterator[Any], "list[Any] | None"], "list[Any] | None"]


def make(declared: Declared, count: int) -> Each:
    """A new loop over a function of so many parameters; of several, each value is a tuple of arguments.

    Every library function gets its own, because CPython remembers at the place of a call what was called
    there last.
    """
    function = declared.callable
    names = ", ".join(f"value_{number}" for number in range(count))
    namespace: dict[str, Any] = {}
    exec(compile(_SOURCE.format(names=names), __file__, "exec"), namespace)
    whole, lenient = namespace["whole"], namespace["lenient"]
    inlined = _inline.loops(function, count) if declared.inline else None
    code = inlined and function.__code__

    def each(values: Iterator[Any], results: list[Any] | None) -> list[Any] | None:
        # Only what is called is seen by a debugger, and only a call sees that the code was replaced.
        if inlined and function.__code__ is code and not _inline.is_watched():
            return inlined[0](values) if results is None else inlined[1](values, results)
        return whole(function, values) if results is None else lenient(function, values, results)

    return each


def prepare(functions: list[Declared]) -> None:
    """Does once what all lanes of a library need."""
    _inline.prepare(
        (function.callable, len(function.shapes))
        for function in functions
        if function.kind == "row" and function.inline and not function.variadic
    )
