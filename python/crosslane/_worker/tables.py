"""Table functions: what they are declared as, and how a lane calls them."""

from __future__ import annotations

import collections.abc
import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin

from crosslane import _guest
from crosslane._declare.decorators import Declaration, is_async, underlying
from crosslane._declare.signature.annotations import (
    Declared,
    Shape,
    fields_of,
    from_annotation,
    from_hint,
    hints_of,
    normal,
    quoted,
)

if TYPE_CHECKING:
    from crosslane._declare.signature.annotations import Typed

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


@dataclass
class Parameter:
    """What SQL can pass."""

    #: In the function.
    name: str
    #: Whether SQL names it, and may leave it out.
    named: bool


@dataclass
class Table:
    """What a lane needs to know of a table function."""

    kind: ClassVar[str] = "table"

    function: Callable[..., Any]
    parameters: list[Parameter]
    columns: list[str]
    types: list[str]
    shapes: list[Shape]
    vectorized: bool
    #: Whether it wants to know which columns the query wants.
    projects: bool
    partition: Callable[..., Any] | None

    def scan(self, values: list[Any], partition: bytes | None, wanted: list[int] | None) -> Iterator[Any]:
        """The rows, as the function makes them; of its columns those at the places ``wanted`` are, or all."""
        leading = () if partition is None else (pickle.loads(partition),)
        positional, named = self._arguments(values)
        if self.projects:
            places = range(len(self.columns)) if wanted is None else wanted
            named["wanted"] = tuple(self.columns[place] for place in places)
        made = self.function(*leading, *positional, **named)
        if self.vectorized and (hasattr(made, "__arrow_c_array__") or hasattr(made, "__arrow_c_stream__")):
            return iter([made])
        return iterated(made)

    def partitions(self, values: list[Any]) -> list[bytes]:
        """The partitions for these arguments, as bytes each."""
        assert self.partition is not None
        positional, named = self._arguments(values)
        names = [parameter.name for parameter in self.parameters if not parameter.named]
        given = dict(zip(names, positional)) | named
        takes = inspect.signature(self.partition).parameters.values()
        if not any(item.kind is item.VAR_KEYWORD for item in takes):
            given = {item.name: given[item.name] for item in takes if item.name in given}
        made = self.partition(**given)
        if isinstance(made, (str, bytes, dict)) or not hasattr(made, "__iter__"):
            raise TypeError(f"partitions returned {type(made).__name__} where a list is due")
        return [pickle.dumps(partition, pickle.HIGHEST_PROTOCOL) for partition in made]

    def _arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        pairs = list(zip(self.parameters, values))
        positional = [value for parameter, value in pairs if not parameter.named]
        # What SQL left out came as NULL, and the function's own default counts.
        named = {item.name: value for item, value in pairs if item.named and value is not None}
        return positional, named


def iterated(made: Any) -> Iterator[Any]:
    """The rows (or batches) that a function has returned, if it did not yield them.

    Raises:
        TypeError: if it returned something else.
    """
    if isinstance(made, (str, bytes, dict)) or not hasattr(made, "__iter__"):
        raise TypeError(
            f"returned {type(made).__name__} where rows are due: yield them, or return an iterable"
        )
    return iter(made)


def resolve_table(declaration: Declaration) -> list[Declared]:
    """As :func:`crosslane._declare.signature.annotations.resolve`, for a table function: it is one function for SQL.

    Raises:
        DeclarationError: if a type is missing, cannot be read, or contradicts the function.
    """
    function = declaration.function
    if is_async(function) or inspect.isasyncgenfunction(underlying(function)):
        raise declaration.error("a table function cannot be async")
    if declaration.signature is not None:
        from crosslane._declare.signature.stream import resolve_stream, takes_table

        if takes_table(declaration.signature):
            return resolve_stream(declaration)
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
        function=function,
        parameters=parameters,
        columns=[column for column, _ in columns],
        types=[one.sql for _, one in columns],
        shapes=[one.shape for _, one in columns],
        vectorized=declaration.vectorized,
        projects=projects,
        partition=declaration.partitions,
    )
    return [
        Declared(
            name=name,
            signature=text,
            callable=function,
            kind="vectorized" if declaration.vectorized else "row",
            variadic=False,
            shapes=[one.shape for one in typed],
            result_shape=None,
            admits_null=[declaration.nulls == "call" or one.admits_null for one in typed],
            columns=["pyarrow"] if declaration.vectorized else [],
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
            named=[item.named for item in parameters],
            cardinality=declaration.cardinality,
        )
    ]


def _parameters(declaration: Declaration) -> tuple[list[Parameter], bool]:
    """What SQL can pass, those that it must first; and whether the function wants to know which columns are wanted."""
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
    """The columns that a signature says, with what the annotation of the result adds to them."""
    row = _row(hints.get("return"))
    if row is not None and list(fields_of(row)) == [column for column, _ in columns]:
        return [(column, _shaped(sql, hint)) for (column, sql), hint in zip(columns, fields_of(row).values())]
    return [(column, _shaped(sql, None)) for column, sql in columns]


def explicit(declaration: Declaration) -> tuple[str, list[tuple[str, str]], list[tuple[str, str]]]:
    """The name, the parameters and the columns that a signature says."""
    text = declaration.signature or ""
    if text.lstrip().startswith("("):
        text = quoted(declaration.name) + text.lstrip()
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
    return declaration.given["name"] or name, parameters, columns


def _row(hint: Any) -> type | None:
    """The class of the rows that an annotation of an iterable says; None if it says none."""
    if get_origin(hint) not in _ITERABLES or not get_args(hint):
        return None
    row = get_args(hint)[0]
    return row if isinstance(row, type) and fields_of(row) else None


def _annotated(declaration: Declaration, hint: Any) -> list[tuple[str, Typed]]:
    """The columns that the annotation of the result says."""
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
    """A type of a signature, and how its values look in Python, if an annotation says so of the same type."""
    from crosslane._declare.signature.annotations import Typed, is_optional

    try:
        typed = from_annotation(hint, "row")
    except TypeError:
        return Typed(sql, admits_null=is_optional(hint))
    return typed._replace(sql=sql, shape=typed.shape if normal(typed.sql) == sql else None)


class Batches:
    """What a vectorized table function yields, as columns of the declared types."""

    def __init__(self, table: Table, wanted: list[int], kinds: list[Any]) -> None:
        self._names = table.columns
        self._wanted = wanted
        self._kinds = kinds

    def parts(self, yielded: Any) -> Iterator[tuple[int, list[Any]]]:
        """The number of rows and the wanted columns of what was yielded, which may have several parts: pyarrow arrays of the
        declared types, or lists of Python's objects.

        Raises:
            TypeError, ValueError, OverflowError: if it is no batch of the table's columns.
        """
        import pyarrow as pa

        from crosslane._arrow.convert import fitting

        for rows, columns in self._parts(yielded, pa):
            fit = [fitting(column, kind) for column, kind in zip(columns, self._kinds)]
            lengths = {len(column) for column in fit}
            if lengths - {rows}:
                raise ValueError(
                    f"yielded columns of {' and '.join(map(str, sorted(lengths | {rows})))} rows"
                )
            yield rows, fit

    def _parts(self, yielded: Any, pa: Any) -> Iterator[tuple[int, list[Any]]]:
        if isinstance(yielded, dict):
            columns = self._chosen(list(yielded), list(yielded.values()))
            yield (len(next(iter(yielded.values()))) if yielded else 0), columns
            return
        if isinstance(yielded, (tuple, list)):
            columns = self._chosen(None, list(yielded))
            yield (len(yielded[0]) if yielded else 0), columns
            return
        if isinstance(yielded, pa.RecordBatch):
            batches = [yielded]
        elif hasattr(yielded, "__arrow_c_stream__"):
            batches = pa.RecordBatchReader.from_stream(yielded)
        elif hasattr(yielded, "__arrow_c_array__"):
            batches = [pa.record_batch(yielded)]
        elif type(yielded).__module__.split(".")[0] == "pandas":
            batches = pa.Table.from_pandas(yielded, preserve_index=False).to_batches()
        else:
            raise TypeError(
                f"yielded {type(yielded).__name__} where a batch is due: a pyarrow RecordBatch or Table, another library's "
                "frame, or a tuple or dict of columns"
            )
        for batch in batches:
            # It may come from anywhere.
            batch.validate()
            yield batch.num_rows, self._chosen(batch.schema.names, batch.columns)

    def _chosen(self, names: list[str] | None, columns: list[Any]) -> list[Any]:
        """The wanted columns, by their names or else by their places."""
        wanted = [self._names[place] for place in self._wanted]
        if names is not None and all(names.count(name) == 1 for name in wanted):
            return [columns[names.index(name)] for name in wanted]
        if len(columns) == len(self._names):
            return [columns[place] for place in self._wanted]
        if names is None and len(columns) == len(wanted):
            return columns
        said = (
            f"{len(columns)} columns"
            if names is None
            else f"the columns {', '.join(map(str, names)) or '(none)'}"
        )
        raise ValueError(f"yielded {said}, where those of the table are {', '.join(self._names)}")
