"""The types of a stream function: a table function whose parameter is a table."""

from __future__ import annotations

import inspect
import keyword

from crosslane import _guest
from crosslane._declare.declaration import Declaration
from crosslane._declare.signature.annotations import hints_of
from crosslane._declare.signature.declared import Declared
from crosslane._declare.signature.resolve_table import explicit, result_columns
from crosslane._declare.signature.tables import StreamTable
from crosslane._runtime.sql import quoted, with_name

_ONE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def resolve_stream(declaration: Declaration) -> Declared:
    """As ``resolve``, for a table function whose parameter is a table."""
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
    frame = frame_of(declaration) if vectorized else "pyarrow"
    table = StreamTable(
        function=declaration.function,
        parameter=parameter if named else "row",
        given=[column for column, _ in given],
        columns=[column for column, _ in typed],
        types=[one.sql for _, one in typed],
        shapes=[one.shape for _, one in typed],
        vectorized=vectorized,
        frame=frame,
    )
    return Declared.of(
        declaration,
        name=name,
        signature=f"{quoted(name)}({quoted(parameter)} TABLE({arguments})) -> TABLE({returns})",
        shapes=[None for _ in given],
        admits_null=[True],
        columns=["pyarrow", frame.split(".")[0]] if vectorized else [],
        table=table,
    )


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


def frame_of(declaration: Declaration) -> str:
    """The class of batches that a function takes: a key of `_arrow.batches.FRAMES`."""
    hints = [hint for name, hint in hints_of(declaration).items() if name != "return"]
    library = getattr(hints[0], "__module__", "").split(".")[0] if hints else ""
    if library == "pyarrow" and getattr(hints[0], "__name__", "") == "Table":
        return "pyarrow.Table"
    return library if library in ("pandas", "polars") else "pyarrow"
