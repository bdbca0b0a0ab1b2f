"""The types of a table function: its parameters and the columns of its rows."""

from __future__ import annotations

import collections.abc
import inspect
from typing import Any, get_args, get_origin

from crosslane import _guest
from crosslane._declare.declaration import Declaration
from crosslane._declare.signature.annotations import (
    Typed,
    fields_of,
    from_annotation,
    from_hint,
    hints_of,
    is_optional,
    normal,
)
from crosslane._declare.signature.declared import Declared
from crosslane._declare.signature.tables import Parameter, Table
from crosslane._runtime.sql import quoted, with_name

_Parameter = inspect.Parameter
_ITERABLES = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
    list,
    tuple,
)
_INSTEAD = "give udtf a signature, such as 'f(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)'"


def resolve_table(declaration: Declaration) -> Declared:
    """As ``resolve``, for a table function, which SQL calls in one way."""
    parameters, projects = _parameters(declaration)
    hints = hints_of(declaration)
    if declaration.signature is None:
        typed = [
            from_hint(declaration, f"parameter {item.name}", hints.get(item.name), "row")
            for item in parameters
        ]
        name, inner = declaration.name, [(item.name, one.sql) for item, one in zip(parameters, typed)]
        columns = _annotated(declaration, hints.get("return"))
    else:
        name, inner, declared = explicit(declaration)
        least = sum(not item.named for item in parameters)
        if not least <= len(inner) <= len(parameters):
            raise declaration.error(
                f"the signature has {len(inner)} parameters ({declaration.signature}), and the function takes "
                + (f"{least}" if least == len(parameters) else f"{least} to {len(parameters)}")
            )
        parameters = parameters[: len(inner)]
        typed = [_shaped(sql, hints.get(item.name)) for item, (_, sql) in zip(parameters, inner)]
        columns = result_columns(hints, declared)
    arguments = ", ".join(f"{quoted(parameter)} {sql}" for parameter, sql in inner)
    returns = ", ".join(f"{quoted(column)} {one.sql}" for column, one in columns)
    text = f"{quoted(name)}({arguments}) -> TABLE({returns})"
    try:
        _guest.parse_signature(text)
    except ValueError as error:
        raise declaration.error(str(error)) from None
    table = Table(
        function=declaration.function,
        parameters=parameters,
        columns=[column for column, _ in columns],
        types=[one.sql for _, one in columns],
        shapes=[one.shape for _, one in columns],
        vectorized=declaration.vectorized,
        projects=projects,
        partition=declaration.partitions,
    )
    return Declared.of(
        declaration,
        name=name,
        signature=text,
        shapes=[one.shape for one in typed],
        admits_null=[declaration.nulls == "call" or one.admits_null for one in typed],
        columns=["pyarrow"] if declaration.vectorized else [],
        table=table,
        named=[item.named for item in parameters],
        cardinality=declaration.cardinality,
    )


def _parameters(declaration: Declaration) -> tuple[list[Parameter], bool]:
    """The parameters for SQL, required ones first, and whether it takes ``wanted``."""
    try:
        signature = inspect.signature(declaration.function)
    except (TypeError, ValueError):
        raise declaration.error("its parameters cannot be found out; wrap it in a function") from None
    items = list(signature.parameters.values())
    projects = any(item.name == "wanted" and item.kind is item.KEYWORD_ONLY for item in items)
    items = [item for item in items if item.kind is not item.VAR_KEYWORD]
    if projects:
        items = [item for item in items if item.name != "wanted"]
    if declaration.partitions is not None:
        if not items or items[0].kind not in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD):
            raise declaration.error("it has partitions, and needs a first parameter that takes one of them")
        items = items[1:]
    parameters = []
    for item in items:
        named = item.default is not item.empty
        if item.kind is item.VAR_POSITIONAL:
            raise declaration.error(
                f"takes a variable number of arguments ({item}), which table functions cannot"
            )
        if item.kind is item.KEYWORD_ONLY and not named:
            raise declaration.error(
                f"the parameter {item.name} is keyword-only; give it a default: SQL names it then"
            )
        if item.kind is item.POSITIONAL_ONLY and named:
            raise declaration.error(
                f"the parameter {item.name} has a default, so SQL names it; it is positional-only"
            )
        parameters.append(Parameter(item.name, named))
    return sorted(parameters, key=lambda item: item.named), projects


def result_columns(hints: dict[str, Any], columns: list[tuple[str, str]]) -> list[tuple[str, Typed]]:
    """The columns of a signature, with the shapes that the annotation of the result says."""
    row = _row(hints.get("return"))
    if row is not None and list(fields_of(row)) == [column for column, _ in columns]:
        return [(column, _shaped(sql, hint)) for (column, sql), hint in zip(columns, fields_of(row).values())]
    return [(column, _shaped(sql, None)) for column, sql in columns]


def explicit(declaration: Declaration) -> tuple[str, list[tuple[str, str]], list[tuple[str, str]]]:
    """The name, the parameters and the columns of a signature."""
    text = with_name(declaration.signature or "", declaration.name)
    try:
        name, parameters, _, variadic = _guest.parse_signature(text)
        columns = _guest.table_columns(text)
    except ValueError as error:
        raise declaration.error(str(error)) from None
    if columns is None:
        raise declaration.error(
            f"a table function's signature ends with -> TABLE(column TYPE, ...); {text!r} does not"
        )
    if variadic or any(sql == "ANY" for _, sql in parameters):
        raise declaration.error("table functions take no variable number of arguments, and none of any type")
    return declaration.given.get("name") or name, parameters, columns


def _row(hint: Any) -> type | None:
    """The class of the rows of an annotated iterable; None if the annotation does not say it."""
    if get_origin(hint) not in _ITERABLES or not get_args(hint):
        return None
    row = get_args(hint)[0]
    return row if isinstance(row, type) and fields_of(row) else None


def _annotated(declaration: Declaration, hint: Any) -> list[tuple[str, Typed]]:
    """The columns of the class of rows that the annotation of the result names."""
    row = _row(hint)
    if row is None:
        said = "is not annotated" if hint is None else f"is annotated with {getattr(hint, '__name__', hint)}"
        raise declaration.error(
            f"the result {said}, which names no columns; annotate it with an Iterator of a dataclass, a NamedTuple or a "
            f"TypedDict, or {_INSTEAD}"
        )
    return [
        (name, from_hint(declaration, f"column {name}", field, "row"))
        for name, field in fields_of(row).items()
    ]


def _shaped(sql: str, hint: Any) -> Typed:
    """A type of a signature, with the shape of an annotation of the same type."""
    try:
        typed = from_annotation(hint, "row")
    except TypeError:
        return Typed(sql, admits_null=is_optional(hint))
    return typed._replace(sql=sql, shape=typed.shape if normal(typed.sql) == sql else None)
