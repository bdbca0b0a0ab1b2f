"""Functions that a program hands over to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from crosslane._declare.classes import is_aggregate
from crosslane._declare.declaration import Declaration, DeclarationError, declare
from crosslane._declare.decorators import declaration_of

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared


def of_program(
    function: Callable[..., Any], signature: str | None, options: Mapping[str, Any]
) -> tuple[Declaration, list[Declared]]:
    """The declaration of a function, decorated or not, and its functions for SQL.

    Raises:
        DeclarationError: if it is not callable, its types are missing, or it cannot work.
    """
    # The native half, which programs that only declare functions do not need.
    from crosslane._declare.signature.resolve import resolve

    if not callable(function):
        raise DeclarationError(f"register takes a function, not {function!r}")
    declaration = declaration_of(function)
    if declaration:
        given = declaration.given.copy()
        if signature is not None:
            # The signature may have a name; a name in the decorator does not count then.
            given["name"] = None if signature.split("(")[0].strip() else declaration.name
        options = {**given, **options}
        signature = signature if signature is not None else declaration.signature
        kind = declaration.kind
    elif "->TABLE(" in "".join((signature or "").split()).upper():
        kind = "table"
    else:
        kind = "aggregate" if is_aggregate(function) else "scalar"
    declaration = declare(function, signature, kind=kind, **options)
    return declaration, resolve(declaration)
