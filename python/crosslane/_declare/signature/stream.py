"""Stream functions that are declared: what they are declared as, and how a lane calls them with a batch."""

from __future__ import annotations

import collections
import inspect
import keyword
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from crosslane import _guest
from crosslane._declare.decorators import Declaration, underlying
from crosslane._declare.signature.annotations import Declared, Shape, hints_of, quoted
from crosslane._worker.states import Stateful
from crosslane._worker.tables import explicit, iterated, result_columns

if TYPE_CHECKING:
    import pyarrow as pa

_ONE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass
class StreamTable:
    """What a lane needs to know of a stream function."""

    kind: ClassVar[str] = "stream"

    function: Callable[..., Any]
    #: Of the parameter, and of the columns of its table.
    parameter: str
    given: list[str]
    #: Those of the result.
    columns: list[str]
    types: list[str]
    shapes: list[Shape]
    vectorized: bool
    #: What a vectorized one gets: a key of `crosslane._arrow.encode.WISHES`.
    wish: str

    def set_up(self) -> None:
        """Prepares what the function needs before its first batch. Called before each."""
        if isinstance(self.function, Stateful):
            self.function.callee()

    def rows(self, columns: list[list[Any]]) -> Iterator[Any]:
        """The rows that the function makes of a batch, which is the values of its columns."""
        return self._made(list(map(self._row, zip(*columns))))

    def batches(self, array: pa.StructArray) -> Iterator[Any]:
        """The batches that the function makes of a batch."""
        import pyarrow as pa

        from crosslane._arrow.encode import WISHES

        return self._made(WISHES[self.wish](pa.RecordBatch.from_struct_array(array)))

    def _made(self, batch: Any) -> Iterator[Any]:
        function = self.function.callee() if isinstance(self.function, Stateful) else self.function
        made = function(batch)
        if made is None:
            return iter(())
        if self.vectorized:
            from crosslane._arrow.encode import is_batch

            if is_batch(made):
                return iter([made])
        return iterated(made)

    @cached_property
    def _row(self) -> Callable[[tuple[Any, ...]], Any]:
        # A name that Python cannot have becomes that of its place: _0.
        row: Any = collections.namedtuple(self.parameter, self.given, rename=True)  # type: ignore[misc]
        return row._make  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_row"}


def takes_table(signature: str | None) -> bool:
    """Whether a signature says that the function takes a table. What is wrong with it is said where it is resolved.

    >>> takes_table("late(flights TABLE(id BIGINT)) -> TABLE(id BIGINT)")
    True
    """
    try:
        _, parameters, _, _ = _guest.parse_signature(_named(signature or "", "f"))
    except ValueError:
        return False
    return any(sql.startswith("TABLE") for _, sql in parameters)


def resolve_stream(declaration: Declaration) -> list[Declared]:
    """As :func:`crosslane._declare.signature.annotations.resolve`, for a table function whose parameter is a table.

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
        given = _guest.stream_columns(_named(declaration.signature or "", name))
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


def _named(text: str, name: str) -> str:
    return quoted(name) + text.lstrip() if text.lstrip().startswith("(") else text


def wish_of(declaration: Declaration) -> str:
    """What the first parameter of a function of batches is to be: a key of `crosslane._arrow.encode.WISHES`."""
    hints = [hint for name, hint in hints_of(declaration).items() if name != "return"]
    library = getattr(hints[0], "__module__", "").split(".")[0] if hints else ""
    if library == "pyarrow" and getattr(hints[0], "__name__", "") == "Table":
        return "pyarrow.Table"
    return library if library in ("pandas", "polars") else "pyarrow"
