"""The rule ``swallowed-timeout``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from crosslane._cli.check.strict.source import Source, Unit, own, own_part

_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def swallowed_timeouts(source: Source, units: list[Unit]) -> Iterator[tuple[int, str]]:
    """Handlers of ``async`` functions that catch the end of their own call.

    A timeout or the end of a query raises CancelledError where the function waits. It is no
    Exception, so that only the widest handlers catch it.
    """
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for node in own(function):
            if isinstance(node, (ast.Try, ast.TryStar)) and any(map(_waits, node.body)):
                yield from _of_handlers(source, node.handlers)


def _of_handlers(source: Source, handlers: list[ast.ExceptHandler]) -> Iterator[tuple[int, str]]:
    for handler in handlers:
        caught: list[ast.expr | None] = (
            [*handler.type.elts] if isinstance(handler.type, ast.Tuple) else [handler.type]
        )
        if any(one is not None and source.path_of(one) == "asyncio.CancelledError" for one in caught):
            # What follows does not see it.
            return
        named = [one.id for one in caught if isinstance(one, ast.Name)]
        is_wide = handler.type is None or "BaseException" in named
        if is_wide and not any(isinstance(inner, ast.Raise) for inner in own(handler)):
            what = "except BaseException" if handler.type else "a bare except"
            yield (
                handler.lineno,
                f"{what} also catches what ends a call after its timeout, and the call goes on; catch Exception, or raise again",
            )


def _waits(node: ast.AST) -> bool:
    return any(isinstance(inner, _WAITS) for inner in own_part(node))
