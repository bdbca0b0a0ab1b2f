"""Loops over the rows of a batch, from which CPython calls functions at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CellType
from typing import TYPE_CHECKING, Any

from crosslane._worker import inlining, translation

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared

_SOURCE = """\
def around({variables}):
    def called(function, values):
        nonlocal result
        for {first} in values:
            result = function({names})
    return called
"""

#: Calls a function for each row of an iterator. The iterator gives the first argument, puts the
#: others into their cells, and takes the result of the previous row from its cell. So there is no
#: list of results, and an exception loses none of them.
Each = Callable[[Iterator[Any]], None]


def compile_loop(
    source: str, arguments: list[str], **texts: str
) -> tuple[Callable[..., None], CellType, list[CellType]]:
    """A loop from its source, the cell of its variable ``result``, and the cells of its arguments.

    The source has a function ``around`` of ``{variables}`` that returns the loop.
    """
    variables = [*arguments, "result"]
    namespace: dict[str, Any] = {}
    text = source.format(variables=", ".join(variables), **texts)
    exec(compile(text, __file__, "exec"), namespace)
    called = namespace["around"](*variables)
    cells = dict(zip(called.__code__.co_freevars, called.__closure__))
    return called, cells["result"], [cells[name] for name in arguments]


def make(declared: Declared, count: int) -> tuple[Each, CellType, list[CellType]]:
    """A new loop over a function of ``count`` parameters, the cell of its result, and the cells of
    all arguments but the first.

    Each function gets its own loop, because CPython specializes a call for the function that it has
    called there.
    """
    function = declared.callee()
    first, *others = names = [f"value_{number}" for number in range(count)]
    called, result, arguments = compile_loop(_SOURCE, others, first=first, names=", ".join(names))
    inlined = inlining.loop(function, result, arguments) if declared.inline else None
    code = inlined and function.__code__

    def each(values: Iterator[Any]) -> None:
        # A debugger sees only calls, and only a call runs code that has replaced the function's.
        if inlined and function.__code__ is code and not inlining.is_watched():
            inlined(values)
        else:
            called(function, values)

    return each, result, arguments


def prepare(functions: list[Declared]) -> inlining.Sources:
    """Compiles in the zygote what all lanes of a library need. Returns the files that it has read."""
    sources: inlining.Sources = {}
    inlining.prepare(_plain(functions), sources)
    return sources


def translate(functions: list[Declared], sources: inlining.Sources) -> None:
    """Translates functions in the zygote. A lane would translate a function before its first call."""
    called = (one for one in functions if one.kind in ("row", "vectorized"))
    inner = [(one.inner, len(one.shapes)) for one in called if one.inner]
    translation.prepare([*_plain(functions), *inner], sources)


def _plain(functions: list[Declared]) -> list[tuple[Any, int]]:
    """The functions that may be inlined or evaluated by columns, and their numbers of parameters."""
    return [
        (function.callable, len(function.shapes))
        for function in functions
        if function.kind == "row" and function.inline and not function.variadic
    ]
