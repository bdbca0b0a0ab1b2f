"""From a declaration to the functions that SQL sees."""

from __future__ import annotations

import inspect

from crosslane._declare.callables import is_async, underlying
from crosslane._declare.declaration import Declaration
from crosslane._declare.signature.declared import Declared
from crosslane._declare.signature.resolve_scalar import resolve_scalar
from crosslane._runtime.sql import takes_table


def resolve(declaration: Declaration) -> list[Declared]:
    """Works out a function's types.

    A function whose parameters have defaults can be called with fewer arguments. Each way to call
    it is a function for SQL; the one with all parameters comes first.

    Raises:
        DeclarationError: if a type is missing, cannot be read, or contradicts the function.
    """
    if declaration.kind != "table":
        return resolve_scalar(declaration)
    function = declaration.function
    if is_async(function) or inspect.isasyncgenfunction(underlying(function)):
        raise declaration.error("a table function cannot be async")
    # Most libraries have no table function.
    if takes_table(declaration.signature):
        from crosslane._declare.signature.resolve_stream import resolve_stream

        return [resolve_stream(declaration)]
    from crosslane._declare.signature.resolve_table import resolve_table

    return [resolve_table(declaration)]
