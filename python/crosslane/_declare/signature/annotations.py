"""From a declaration to a signature: SQL types out of Python's annotations."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from crosslane import _guest
from crosslane._declare.decorators import Declaration, is_async, is_generator, underlying
from crosslane._worker.aggregates import Aggregate
from crosslane._worker.states import Stateful
from crosslane.types import Interval, TimeNs, TimestampNs

if TYPE_CHECKING:
    from crosslane._declare.signature.stream import StreamTable
    from crosslane._worker.tables import Table

#: What the native guest is told beyond the SQL type; see ``reader.rs``.
Shape = tuple[Any, ...] | None

_PLAIN: dict[Any, str] = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    bytes: "BLOB",
    bytearray: "BLOB",
    datetime.date: "DATE",
    datetime.time: "TIME",
    datetime.datetime: "TIMESTAMP",
    TimeNs: "TIME_NS",
    TimestampNs: "TIMESTAMP_NS",
    datetime.timedelta: "INTERVAL",
    Interval: "INTERVAL",
}
#: UUIDs, numpy's scalar types and pyarrow's array types, by name: none of these modules is imported for this.
_BY_NAME = {
    "uuid.UUID": "UUID",
    "numpy.bool": "BOOLEAN",
    "numpy.bool_": "BOOLEAN",
    "numpy.int8": "TINYINT",
    "numpy.int16": "SMALLINT",
    "numpy.int32": "INTEGER",
    "numpy.int64": "BIGINT",
    "numpy.uint8": "UTINYINT",
    "numpy.uint16": "USMALLINT",
    "numpy.uint32": "UINTEGER",
    "numpy.uint64": "UBIGINT",
    "numpy.float32": "FLOAT",
    "numpy.float64": "DOUBLE",
    "numpy.str_": "VARCHAR",
    "numpy.bytes_": "BLOB",
    "pyarrow.lib.BooleanArray": "BOOLEAN",
    "pyarrow.lib.Int8Array": "TINYINT",
    "pyarrow.lib.Int16Array": "SMALLINT",
    "pyarrow.lib.Int32Array": "INTEGER",
    "pyarrow.lib.Int64Array": "BIGINT",
    "pyarrow.lib.UInt8Array": "UTINYINT",
    "pyarrow.lib.UInt16Array": "USMALLINT",
    "pyarrow.lib.UInt32Array": "UINTEGER",
    "pyarrow.lib.UInt64Array": "UBIGINT",
    "pyarrow.lib.FloatArray": "FLOAT",
    "pyarrow.lib.DoubleArray": "DOUBLE",
    "pyarrow.lib.StringArray": "VARCHAR",
    "pyarrow.lib.BinaryArray": "BLOB",
    "pyarrow.lib.Date32Array": "DATE",
    "pyarrow.lib.Time64Array": "TIME",
    "pyarrow.lib.TimestampArray": "TIMESTAMP",
    "pyarrow.lib.MonthDayNanoIntervalArray": "INTERVAL",
}
_COLUMN_KINDS = {"pyarrow": "pyarrow", "numpy": "numpy", "pandas": "pandas", "polars": "polars"}
_WRITE_INSTEAD = "write the type in SQL, such as Annotated[{0}, 'VARCHAR'], or give udf a whole signature"


class Typed(NamedTuple):
    """What an annotation means."""

    sql: str
    shape: Shape = None
    admits_null: bool = False
    column: str = "pyarrow"


@dataclasses.dataclass
class Declared:
    """A function as the guest's loop and the engine need it."""

    name: str
    signature: str
    callable: Callable[..., Any]
    kind: str
    #: Whether the last parameter stands for any number of arguments. Its shape is that of their list.
    variadic: bool
    shapes: list[Shape]
    result_shape: Shape
    admits_null: list[bool]
    columns: list[str]
    deterministic: bool
    concurrency: int
    timeout: float | None
    memory_limit: int | None
    on_error: str
    retries: int
    inline: bool
    file: str
    line: int
    description: str
    #: Of a table function, or a stream function.
    table: Table | StreamTable | None = None
    #: For each parameter of a table function, whether SQL names it and may leave it out.
    named: list[bool] = dataclasses.field(default_factory=list)
    cardinality: int | None = None
    #: Whether it is a generator, which is called once with an iterator of batches.
    iterates: bool = False
    #: Whether what it makes of a row may depend on the others, so that the engine does not cut a batch.
    whole_batches: bool = False
    #: Whether it stays beside functions of its name that take other types.
    overload: bool = False

    def callee(self) -> Callable[..., Any]:
        """What is called with the arguments, on the lane that asks."""
        return self.callable.callee() if isinstance(self.callable, Stateful) else self.callable

    def for_types(self, types: str) -> Declared:
        """What it is for arguments of these types, such as "(BIGINT, VARCHAR[])", if it takes arguments of any.

        Raises:
            ValueError: if it takes no such arguments.
        """
        signature, count = _guest.for_types(self.signature, types)
        shapes = self.shapes
        if self.variadic:
            last = shapes[-1]
            shapes = [*shapes[:-1], last and last[1]]

        def each(items: list[Any]) -> list[Any]:
            fixed = len(items) - self.variadic
            return items[:fixed] + items[fixed:] * (count - fixed)

        return dataclasses.replace(
            self,
            signature=signature,
            variadic=False,
            shapes=each(shapes),
            admits_null=each(self.admits_null),
            columns=each(self.columns),
        )

    def message(self) -> dict[str, Any]:
        """What the engine is told, as JSON."""
        return {
            "signature": self.signature,
            "admits_null": self.admits_null,
            "deterministic": self.deterministic,
            "calling": self.kind,
            "ends_late_calls": self.kind == "async",
            "concurrency": self.concurrency,
            "timeout": self.timeout,
            "memory_limit": self.memory_limit,
            "on_error": self.on_error,
            "retries": self.retries,
            "kind": "aggregate" if isinstance(self.callable, Aggregate) else "scalar",
            "set_up": isinstance(self.callable, Stateful),
            "whole_batches": self.whole_batches,
            "overload": self.overload,
            "file": self.file,
            "line": self.line,
            "description": self.description,
            **(self.table_message() if self.table else {}),
        }

    def table_message(self) -> dict[str, Any]:
        """What the engine is told of a table function, or a stream function, beside what it is told of any."""
        from crosslane._worker.tables import Table

        if not isinstance(self.table, Table):
            return {"kind": "stream"}
        return {
            "kind": "table",
            "named": self.named,
            "partitions": self.table.partition is not None,
            "cardinality": self.cardinality,
        }


def resolve(declaration: Declaration) -> list[Declared]:
    """Works out a function's types. What has defaults can be called with less: each way is a function for SQL, the one
    with all parameters first.

    Raises:
        DeclarationError: if a type is missing, cannot be read, or contradicts the function.
    """
    if declaration.kind == "table":
        from crosslane._worker.tables import resolve_table

        return resolve_table(declaration)
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
            _any(hints.get(name)) or from_hint(declaration, f"parameter {name}", hints.get(name), kind)
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
        return Declared(
            name=name,
            signature=text,
            callable=function,
            kind=kind,
            variadic=any_number,
            shapes=[item.shape for item in items],
            result_shape=result.shape,
            admits_null=[declaration.nulls == "call" or item.admits_null for item in items],
            columns=[item.column for item in items],
            deterministic=declaration.deterministic,
            concurrency=declaration.concurrency if asynchronous else 1,
            timeout=declaration.timeout,
            memory_limit=declaration.memory_limit,
            on_error=declaration.on_error,
            retries=declaration.retries,
            inline=declaration.inline and not isinstance(function, (Stateful, Aggregate)),
            iterates=iterates,
            overload=declaration.overload,
            file=declaration.file,
            line=declaration.line,
            description=_description(function),
        )

    if declaration.kind == "aggregate":
        # DuckDB takes one aggregate of a name.
        return [declared(len(typed))]
    # Any number of arguments behind the fixed ones may be none.
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


_Parameter = inspect.Parameter
_BY_POSITION = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)


def _parameters(declaration: Declaration, hints: dict[str, Any]) -> tuple[list[str], int, bool]:
    """The names of what SQL can pass, how many it must, and whether the last one stands for any number."""
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
    # What has a default and no type at the end is for Python's callers only.
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
    """The name of ``*args``, if there are any."""
    return [item.name for item in signature.parameters.values() if item.kind is item.VAR_POSITIONAL]


def hints_of(declaration: Declaration) -> dict[str, Any]:
    function = declaration.function
    try:
        hints = typing.get_type_hints(underlying(function), include_extras=True)
        if isinstance(function, Aggregate):
            finish = typing.get_type_hints(function.made_by.finish, include_extras=True)
            hints["return"] = finish.get("return")
    except Exception as error:
        if declaration.signature is not None:
            return {}
        raise declaration.error(f"an annotation cannot be read: {type(error).__name__}: {error}") from None
    return {**hints, "return": function} if isinstance(function, type) else hints


def _explicit(
    declaration: Declaration, hints: dict[str, Any], kind: str, result_kind: str, iterates: bool
) -> tuple[str, list[tuple[str, str]], str, list[Typed], Typed, bool]:
    """What a signature says, and what the annotations add to it."""
    text = declaration.signature or ""
    if "(" not in text.split("->")[0]:
        raise declaration.error(f"{text!r} is no signature such as 'slug(title VARCHAR) -> VARCHAR'")
    if text.lstrip().startswith("("):
        text = quoted(declaration.name) + text.lstrip()
    try:
        name, declared, returns, variadic = _guest.parse_signature(text)
        if _guest.table_columns(text) is not None:
            raise declaration.error("it returns a table: decorate it with udtf")
    except ValueError as error:
        raise declaration.error(str(error)) from None

    def shaped(sql: str, hint: Any, kind: str) -> Typed:
        # The annotation only says how values look in Python, and only if it means the same type.
        try:
            typed = from_annotation(hint, kind)
        except TypeError:
            rest = [argument for argument in get_args(hint) if argument is not type(None)]
            optional = _is_union(hint) and len(rest) == 1
            column = _column_kind(rest[0] if optional else hint)
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
            # They are not annotated one by one.
            names *= len(declared)
        elif len(names) != len(declared):
            raise declaration.error(
                f"the signature has {len(declared)} parameters ({declaration.signature}), and its batches {len(names)} columns"
            )
    else:
        names = _called_with(declaration, len(declared), variadic)
    typed = [shaped(sql, hints.get(name), kind) for name, (_, sql) in zip(names, declared)]
    result = shaped(returns, hints.get("return"), result_kind)
    return declaration.given["name"] or name, declared, returns, typed, result, variadic


def _of_batches(declaration: Declaration, hints: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a generator of columns by its parameter: those of each column of a batch, and of the result, the last."""
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
    """The names of the parameters that so many arguments are for, the last of them for any number if it is variadic; none
    that a function knows if it does not tell."""
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


def normal(sql: str) -> str:
    try:
        return _guest.parse_type(sql)
    except ValueError:
        return sql


def from_hint(declaration: Declaration, what: str, hint: Any, kind: str) -> Typed:
    if hint is None:
        raise declaration.error(f"{what} has no type; annotate it, or give udf a signature")
    try:
        return from_annotation(hint, kind)
    except TypeError as error:
        raise declaration.error(f"{what}: {error}") from None


def _any(hint: Any) -> Typed | None:
    """What the annotation of a parameter means that takes arguments of any type; None if it does not."""
    if hint is Any or hint is object:
        return Typed("ANY")
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        inner, *notes = arguments
        sql = next((note for note in notes if isinstance(note, str)), None)
        if sql is None:
            return _any(inner)
        if sql.strip().upper() != "ANY":
            return None
        members = get_args(inner) if _is_union(inner) else (inner,)
        column = next(filter(None, map(_column_kind, members)), "pyarrow")
        return Typed("ANY", admits_null=type(None) in members, column=column)
    if _is_union(hint) and type(None) in arguments and len(arguments) == 2:
        typed = next(filter(None, map(_any, arguments)), None)
        return typed and typed._replace(admits_null=True)
    return None


def from_annotation(hint: Any, kind: str = "row") -> Typed:
    """The SQL type of an annotation.

    >>> from_annotation(list[int]).sql
    'BIGINT[]'
    >>> from_annotation(str | None).admits_null
    True

    Raises:
        TypeError: if the annotation has no SQL type, with what to write instead.
    """
    if hint is None or hint is Any or hint is type(None):
        raise TypeError(f"{hint!r} has no SQL type; " + _WRITE_INSTEAD.format("Any"))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(hint, arguments, kind)
    if _is_union(hint):
        rest = [argument for argument in arguments if argument is not type(None)]
        if len(rest) != 1 or len(rest) == len(arguments):
            raise TypeError(f"{hint} is more than one type; " + _WRITE_INSTEAD.format("..."))
        return from_annotation(rest[0], kind)._replace(admits_null=True)
    if kind == "vectorized":
        return _column(hint, origin, arguments)
    return _value(hint, origin, arguments)


def is_optional(hint: Any) -> bool:
    """Whether an annotation admits None."""
    return _is_union(hint) and type(None) in get_args(hint)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _annotated(hint: Any, arguments: tuple[Any, ...], kind: str) -> Typed:
    inner, *notes = arguments
    sql = next((note for note in notes if isinstance(note, str)), None)
    if sql is None:
        return from_annotation(inner, kind)
    try:
        declared = _guest.parse_type(sql)
    except ValueError as error:
        raise TypeError(f"{hint}: {error}") from None
    if declared == "JSON":
        return Typed("JSON", ("text",) if inner is str else None)
    try:
        typed = from_annotation(inner, kind)
    except TypeError:
        members = get_args(inner) if _is_union(inner) else (inner,)
        column = next(filter(None, map(_column_kind, members)), "pyarrow")
        return Typed(declared, admits_null=type(None) in members, column=column)
    # A shape is made for the annotation's own type, and fits no other.
    shape = typed.shape if normal(typed.sql).split("(")[0] == declared.split("(")[0] else None
    return typed._replace(sql=declared, shape=shape)


def _value(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Typed:
    if hint in _PLAIN:
        shape = ("timedelta",) if hint is datetime.timedelta else None
        return Typed(_PLAIN[hint], shape)
    if origin is Literal:
        if not all(isinstance(value, str) for value in arguments):
            raise TypeError(f"{hint} has values that are no strings; " + _WRITE_INSTEAD.format("..."))
        return Typed(_enum(arguments))
    if origin in (list, Sequence, Iterable):
        element = from_annotation(arguments[0])
        return Typed(f"{element.sql}[]", element.shape and ("list", element.shape))
    if origin in (dict, Mapping):
        key, value = (from_annotation(argument) for argument in arguments)
        shape = ("map", key.shape, value.shape) if key.shape or value.shape else None
        return Typed(f"MAP({key.sql}, {value.sql})", shape)
    if isinstance(hint, type):
        by_name = _BY_NAME.get(f"{hint.__module__}.{hint.__qualname__}")
        if by_name:
            return Typed(by_name)
        if issubclass(hint, enum.Enum):
            members = list(hint)
            by_value = all(isinstance(member.value, str) for member in members)
            return Typed(_enum([m.value if by_value else m.name for m in members]), ("enum", members))
        fields = fields_of(hint)
        if fields:
            return _struct(hint, fields)
    if hint is decimal.Decimal:
        raise TypeError(
            "Decimal does not say how many digits it has; write them, such as Annotated[Decimal, 'DECIMAL(18,3)']"
        )
    if hint in (list, dict, tuple, set):
        raise TypeError(
            f"{hint.__name__} does not say what it holds; write it out, such as list[int] or dict[str, int]"
        )
    if hint is float or hint is complex:
        raise TypeError(f"{hint} has no SQL type")
    raise TypeError(f"{getattr(hint, '__name__', hint)} has no SQL type; " + _WRITE_INSTEAD.format("..."))


def fields_of(hint: type) -> dict[str, Any]:
    """The fields of a dataclass, NamedTuple or TypedDict; empty for other classes."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return {item.name: hints[item.name] for item in dataclasses.fields(hint) if item.init}
    if typing.is_typeddict(hint) or (issubclass(hint, tuple) and hasattr(hint, "_fields")):
        hints = typing.get_type_hints(hint, include_extras=True)
        return {name: _without_presence(field) for name, field in hints.items()}
    return {}


def _without_presence(field: Any) -> Any:
    """The type of a TypedDict's key, without what is said of whether the key must be there."""
    return get_args(field)[0] if get_origin(field) in (Required, NotRequired) else field


def _struct(hint: type, fields: dict[str, Any]) -> Typed:
    typed = {name: from_annotation(field) for name, field in fields.items()}
    inner = ", ".join(f"{quoted(name)} {field.sql}" for name, field in typed.items())
    factory = None if typing.is_typeddict(hint) else hint
    lacking = _not_required(hint)
    may_lack = [field.admits_null or name in lacking for name, field in typed.items()]
    return Typed(f"STRUCT({inner})", ("struct", factory, [field.shape for field in typed.values()], may_lack))


def _not_required(hint: type) -> set[str]:
    """The keys that a TypedDict may lack: by its ``total=False``, or by ``NotRequired``."""
    if not typing.is_typeddict(hint):
        return set()
    hints = typing.get_type_hints(hint, include_extras=True)
    # Where annotations are texts, Python itself does not find what they say of single keys.
    return {
        name
        for name, field in hints.items()
        if get_origin(field) is NotRequired
        or (name in hint.__optional_keys__ and get_origin(field) is not Required)
    }


def _column(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Typed:
    column = _column_kind(origin or hint)
    if column == "numpy" and arguments:
        # numpy.typing.NDArray[T] is ndarray[shape, dtype[T]].
        scalar = get_args(arguments[-1])
        if scalar:
            return _value(scalar[0], None, ())._replace(column=column)
    if column == "pyarrow":
        by_name = _BY_NAME.get(f"{hint.__module__}.{hint.__qualname__}")
        if by_name:
            return Typed(by_name)
    if column is None:
        raise TypeError(
            f"{getattr(hint, '__name__', hint)} is no column; a vectorized function takes pyarrow arrays "
            "(pa.DoubleArray), or numpy, pandas or polars ones with their type: Annotated[pd.Series, 'DOUBLE']"
        )
    raise TypeError(f"does not say what it holds; write Annotated[{hint.__name__}, 'DOUBLE'] or so")


def _column_kind(hint: Any) -> str | None:
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else get_origin(hint) or hint
    return _COLUMN_KINDS.get((getattr(hint, "__module__", "") or "").split(".")[0])


def _enum(values: Iterable[str]) -> str:
    return "ENUM(" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + ")"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
