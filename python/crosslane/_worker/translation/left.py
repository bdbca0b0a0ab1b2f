"""What a function does only in rows that leave the program: it raises exceptions, and catches them.

Such rows are called after the other rows of their batch were evaluated. So nothing that they do may
change what other rows rely on.
"""

from __future__ import annotations

import ast
import builtins
import logging
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

#: Methods of values that change nothing, and methods of loggers.
_QUESTIONS = frozenset({
    "format", "get", "isoformat", "items", "join", "keys", "lower", "split", "strftime", "strip", "upper", "values",
})  # fmt: skip
_LOGS = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
#: Builtin functions that only look at a value, and `print`.
_BUILTINS = ("abs", "bool", "float", "int", "len", "max", "min", "print", "repr", "round", "str", "type")


def find_harmful(
    nodes: Iterable[ast.AST | None], variables: set[str], object_of: Callable[[ast.expr], Any]
) -> ast.AST | None:
    """The first part that could change what other rows rely on; None if there is none.

    Args:
        nodes: what only rows that leave do.
        variables: the function's own variables.
        object_of: what a variable outside of the function is, or an attribute of one. None if it is not
            known.
    """
    for node in (inner for outer in nodes if outer for inner in ast.walk(outer)):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _is_logger(
                owner, variables, object_of
            ):
                harmless = name in _LOGS
            case ast.Call(func=ast.Attribute(attr=name, value=owner)) if _is_local(owner, variables):
                harmless = name in _QUESTIONS
            case ast.Call(func=called):
                harmless = not _is_local(called, variables) and _is_harmless(object_of(called))
            case ast.AugAssign(value=value):
                # A list could get more elements, under the name of a variable, too.
                harmless = isinstance(value, ast.Constant) and type(value.value) in (int, float)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                harmless = name in variables
            case ast.Attribute(ctx=context) | ast.Subscript(ctx=context):
                harmless = isinstance(context, ast.Load)
            case ast.Await() | ast.Yield() | ast.YieldFrom() | ast.Import() | ast.ImportFrom():
                harmless = False
            case ast.Global() | ast.Nonlocal() | ast.FunctionDef() | ast.ClassDef() | ast.Lambda():
                harmless = False
            case _:
                continue
        if not harmless:
            return node
    return None


def _is_local(node: ast.expr, variables: set[str]) -> bool:
    """Whether a value comes from the row, and not from a variable outside."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return not isinstance(node, ast.Name) or node.id in variables


def _is_logger(node: ast.expr, variables: set[str], object_of: Callable[[ast.expr], Any]) -> bool:
    owner = None if _is_local(node, variables) else object_of(node)
    return owner is logging or type(owner) is logging.Logger


def _is_harmless(called: Any) -> bool:
    """Whether a call makes an exception, or looks at a value."""
    if type(called) is type and issubclass(called, BaseException):
        own = (vars(one).get(name) for one in called.__mro__ for name in ("__init__", "__new__"))
        return not any(isinstance(one, FunctionType) for one in own)
    return any(called is getattr(builtins, name) for name in _BUILTINS)
