"""The types of scalar functions and aggregates, one signature for each way to call them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin

from crosslane import _guest
from crosslane._declare.callables import is_async, is_generator
from crosslane._declare.classes import Aggregate, DeclaredClass
from crosslane._declare.declaration import Declaration
from crosslane._declare.signature.annotations import (
    Typed,
    any_type,
    column_kind,
    from_annotation,
    from_hint,
    hints_of,
    is_union,
    normal,
)
from crosslane._declare.signature.declared import Declared
from crosslane._runtime.sql import quoted, with_name

_Parameter = inspect.Parameter
_BY_POSITION = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)


def resolve_scalar(declaration: Declaration) -> list[Declared]:
    """As ``resolve``, for scalar functions and aggregates."""
    function = declaration.function
    asynchronous = is_async(function)
    kind = "vectorized" if declaration.vectorized else "async" if asynchronous else "row"
    hints = hints_of(declaration)
    # An aggregate takes columns of rows, and gives one value.
    result_kind = "row" if isinstance(function, Aggregate) else kind
    iterates = declaration.vectorized and is_generator(function)
    if iterates:
        hints = _of_batches(declaration, hints)
    if declaration.signature is None:
        parameters, required, variadic = _parameters(declaration, hints)
        typed = [
            any_type(hints.get(name)) or from_hint(declaration, f"parameter {name}", hints.get(name), kind)
            for name in parameters
        ]
        result = from_hint(declaration, "the result", hints.get("return"), result_kind)
        inner = [(name, item.sql) for name, item in zip(parameters, typed)]
        name, returns = declaration.name, result.sql
    else:
        name, inner, returns, typed, result, variadic = _explicit(
            declaration, hints, kind, result_kind, iterates
        )
        required = len(inner)
    if variadic:
        typed[-1] = typed[-1]._replace(shape=typed[-1].shape and ("list", typed[-1].shape))

    def declared(count: int) -> Declared:
        any_number = variadic and count == len(typed)
        text = _text(name, inner[:count], returns, any_number)
        try:
            _guest.parse_signature(text)
        except ValueError as error:
            raise declaration.error(str(error)) from None
        items = typed[:count]
        return Declared.of(
            declaration,
            name=name,
            signature=text,
            kind=kind,
            variadic=any_number,
            shapes=[item.shape for item in items],
            result_shape=result.shape,
            admits_null=[declaration.nulls == "call" or item.admits_null for item in items],
            columns=[item.column for item in items],
            concurrency=declaration.concurrency if asynchronous else 1,
            inline=declaration.inline and not isinstance(function, DeclaredClass),
            iterates=iterates,
            description=_description(function),
        )

    if declaration.kind == "aggregate":
        # DuckDB takes one aggregate of a name.
        return [declared(len(typed))]
    # "Any number" of arguments may be none, so that the variadic parameter can be left out, too.
    fewer = range(len(typed) - 1 - variadic, required - 1, -1)
    return [declared(count) for count in (len(typed), *fewer)]


def _description(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.getdoc(function) or ""


def _text(name: str, parameters: list[tuple[str, str]], returns: str, variadic: bool) -> str:
    inner = [f"{quoted(parameter)} {sql}" for parameter, sql in parameters]
    if variadic:
        inner[-1] = f"*{inner[-1]}"
    return f"{quoted(name)}({', '.join(inner)}) -> {returns}"


def _parameters(declaration: Declaration, hints: dict[str, Any]) -> tuple[list[str], int, bool]:
    """The parameters for SQL, the number of required ones, and whether it is variadic."""
    try:
        signature = inspect.signature(declaration.function)
    except (TypeError, ValueError):
        raise declaration.error(
            "its parameters cannot be found out; give it a signature, such as 'f(x BIGINT) -> BIGINT'"
        ) from None
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL and parameter.name not in hints:
            raise declaration.error(
                f"takes a variable number of arguments ({parameter}) of no type; annotate it, or give udf a "
                f"signature, such as 'f({parameter} BIGINT) -> BIGINT'"
            )
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise declaration.error(f"the parameter {parameter.name} is keyword-only; SQL passes by position")
    rest = _rest(signature)
    parameters = [item for item in signature.parameters.values() if item.kind in _BY_POSITION]
    # The last parameters are for callers in Python only, if they have a default and no type.
    while (
        not rest
        and parameters
        and parameters[-1].default is not _Parameter.empty
        and parameters[-1].name not in hints
    ):
        parameters.pop()
    required = sum(parameter.default is _Parameter.empty for parameter in parameters)
    return [parameter.name for parameter in parameters] + rest, required, bool(rest)


def _rest(signature: inspect.Signature) -> list[str]:
    """The name of the parameter ``*args``, if there is one."""
    return [item.name for item in signature.parameters.values() if item.kind is item.VAR_POSITIONAL]


def _explicit(
    declaration: Declaration, hints: dict[str, Any], kind: str, result_kind: str, iterates: bool
) -> tuple[str, list[tuple[str, str]], str, list[Typed], Typed, bool]:
    """The name and the types of a signature, and what the annotations add to them."""
    text = declaration.signature or ""
    if "(" not in text.split("->")[0]:
        raise declaration.error(f"{text!r} is no signature such as 'slug(title VARCHAR) -> VARCHAR'")
    text = with_name(text, declaration.name)
    try:
        name, declared, returns, variadic = _guest.parse_signature(text)
        if _guest.table_columns(text) is not None:
            raise declaration.error("it returns a table: decorate it with udtf")
    except ValueError as error:
        raise declaration.error(str(error)) from None

    def shaped(sql: str, hint: Any, kind: str) -> Typed:
        # The annotation tells how values look in Python, but only if it means the same SQL type.
        try:
            typed = from_annotation(hint, kind)
        except TypeError:
            rest = [argument for argument in get_args(hint) if argument is not type(None)]
            optional = is_union(hint) and len(rest) == 1
            column = column_kind(rest[0] if optional else hint)
            return Typed(sql, column=column or "pyarrow", admits_null=optional)
        same = normal(typed.sql) == sql
        return typed._replace(sql=sql, shape=typed.shape if same else None)

    if iterates:
        names = list(hints)[:-1]
        if variadic or not declared:
            raise declaration.error(
                "a generator of columns takes at least one, and no variable number of them"
            )
        if len(names) == 1:
            # One annotation is for all columns.
            names *= len(declared)
        elif len(names) != len(declared):
            raise declaration.error(
                f"the signature has {len(declared)} parameters ({declaration.signature}), and its batches {len(names)} columns"
            )
    else:
        names = _called_with(declaration, len(declared), variadic)
    typed = [shaped(sql, hints.get(name), kind) for name, (_, sql) in zip(names, declared)]
    result = shaped(returns, hints.get("return"), result_kind)
    return declaration.given.get("name") or name, declared, returns, typed, result, variadic


def _of_batches(declaration: Declaration, hints: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a generator: one for each column of a batch, then the result's."""
    signature = inspect.signature(declaration.function)
    parameters = [item for item in signature.parameters.values() if item.kind in _BY_POSITION]
    names = [item.name for item in parameters if item.default is _Parameter.empty]
    if len(names) != 1:
        raise declaration.error(
            "a generator of columns has one parameter, the iterator of batches: each is a column, or a tuple of them"
        )
    (name,) = names

    def element(hint: Any) -> Any:
        arguments = get_args(hint)
        return arguments[0] if arguments else None

    batch, result = element(hints.get(name)), element(hints.get("return"))
    if get_origin(batch) is not tuple:
        return {name: batch, "return": result}
    if declaration.signature is None:
        raise declaration.error(
            "its columns have no names; give it a signature, such as 'f(x BIGINT, y BIGINT) -> BIGINT'"
        )
    columns = [column for column in get_args(batch) if column is not Ellipsis]
    if len(get_args(batch)) == 1:
        raise declaration.error(
            "a batch of one column is the column itself: its iterator is no iterator of tuples"
        )
    return {**{f"{name}[{place}]": column for place, column in enumerate(columns)}, "return": result}


def _called_with(declaration: Declaration, count: int, variadic: bool) -> list[str]:
    """The names of the first ``count`` parameters; empty names where a function does not tell them.

    If it is variadic, the last one is the name of ``*args``.
    """
    try:
        signature = inspect.signature(declaration.function)
    except (TypeError, ValueError):
        return [""] * count
    rest = _rest(signature)
    if variadic and not rest:
        raise declaration.error(
            f"the signature takes any number of arguments ({declaration.signature}), the function does not"
        )
    try:
        signature.bind(*range(count - variadic))
    except TypeError as error:
        raise declaration.error(
            f"the signature has {count} parameters ({declaration.signature}), with which it cannot be called: {error}"
        ) from None
    names = [item.name for item in signature.parameters.values() if item.kind in _BY_POSITION]
    fixed = count - variadic
    return (names + [""] * fixed)[:fixed] + rest[:variadic]
