"""The types of a stream function: a table function whose parameter is a table."""

from __future__ import annotations

import inspect
import keyword

from crosslane import _guest
from crosslane._declare.callables import underlying
from crosslane._declare.declaration import Declaration
from crosslane._declare.signature.annotations import hints_of
from crosslane._declare.signature.declared import Declared
from crosslane._declare.signature.resolve_table import explicit, result_columns
from crosslane._declare.signature.tables import StreamTable
from crosslane._runtime.sql import quoted, with_name

_ONE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def resolve_stream(declaration: Declaration) -> Declared:
    """As :func:`crosslane._declare.signature.resolve.resolve`, for a table function whose parameter is a table.

    Raises:
        DeclarationError: if the function or an option contradicts that.
    """
    function = declaration.function
    for option, given in (
        ("partitions", declaration.partitions),
        ("cardinality", declaration.cardinality),
        ("nulls", declaration.nulls if declaration.nulls != "skip" else None),
    ):
        if given is not None:
            raise declaration.error(f"it takes a table, and so has no option {option}")
    _check_parameter(declaration)
    name, ((parameter, _),), columns = explicit(declaration)
    try:
        given = _guest.stream_columns(with_name(declaration.signature or "", name))
    except ValueError as error:
        raise declaration.error(str(error)) from None
    typed = result_columns(hints_of(declaration), columns)
    arguments = ", ".join(f"{quoted(column)} {sql}" for column, sql in given)
    returns = ", ".join(f"{quoted(column)} {one.sql}" for column, one in typed)
    vectorized = declaration.vectorized
    named = parameter.isidentifier() and not keyword.iskeyword(parameter) and not parameter.startswith("_")
    wish = wish_of(declaration) if vectorized else "pyarrow"
    table = StreamTable(
        function=function,
        parameter=parameter if named else "row",
        given=[column for column, _ in given],
        columns=[column for column, _ in typed],
        types=[one.sql for _, one in typed],
        shapes=[one.shape for _, one in typed],
        vectorized=vectorized,
        wish=wish,
    )
    return [
        Declared(
            name=name,
            signature=f"{quoted(name)}({quoted(parameter)} TABLE({arguments})) -> TABLE({returns})",
            callable=function,
            kind="vectorized" if vectorized else "row",
            variadic=False,
            shapes=[None for _ in given],
            result_shape=None,
            admits_null=[True],
            columns=["pyarrow", wish.split(".")[0]] if vectorized else [],
            deterministic=declaration.deterministic,
            concurrency=1,
            timeout=declaration.timeout,
            memory_limit=declaration.memory_limit,
            on_error=declaration.on_error,
            retries=declaration.retries,
            inline=False,
            overload=declaration.overload,
            file=declaration.file,
            line=declaration.line,
            description=inspect.getdoc(underlying(function)) or "",
            table=table,
        )
    ]


def _check_parameter(declaration: Declaration) -> None:
    try:
        parameters = list(inspect.signature(declaration.function).parameters.values())
    except (TypeError, ValueError):
        raise declaration.error("its parameters cannot be found out; wrap it in a function") from None
    if (
        len(parameters) != 1
        or parameters[0].kind not in _ONE
        or parameters[0].default is not inspect.Parameter.empty
    ):
        said = ", ".join(map(str, parameters)) or "none"
        raise declaration.error(
            f"it takes a table as its one parameter, which has no default; its parameters are {said}"
        )


def wish_of(declaration: Declaration) -> str:
    """What the first parameter of a function of batches is to be: a key of `crosslane._arrow.batches.WISHES`."""
    hints = [hint for name, hint in hints_of(declaration).items() if name != "return"]
    library = getattr(hints[0], "__module__", "").split(".")[0] if hints else ""
    if library == "pyarrow" and getattr(hints[0], "__name__", "") == "Table":
        return "pyarrow.Table"
    return library if library in ("pandas", "polars") else "pyarrow"
