"""SQL types of Python's annotations."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin

from crosslane import _guest
from crosslane._declare.callables import underlying
from crosslane._declare.classes import Aggregate
from crosslane._declare.declaration import Declaration
from crosslane._runtime.sql import quoted
from crosslane.types import Interval, TimeNs, TimestampNs

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
#: UUIDs, numpy's scalar types and pyarrow's array types. They are found by name, so that no module
#: is imported for them.
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


#: What the native guest is told beyond the SQL type; see ``objects.rs``.
Shape = tuple[Any, ...] | None


class Typed(NamedTuple):
    """The meaning of an annotation."""

    sql: str
    shape: Shape = None
    admits_null: bool = False
    column: str = "pyarrow"


def hints_of(declaration: Declaration) -> dict[str, Any]:
    """The annotations of a function's parameters, and of its result as "return"."""
    function = declaration.function
    try:
        hints = typing.get_type_hints(underlying(function), include_extras=True)
        if isinstance(function, Aggregate):
            finish = typing.get_type_hints(function.class_.finish, include_extras=True)
            hints["return"] = finish.get("return")
    except Exception as error:
        if declaration.signature is not None:
            return {}
        raise declaration.error(f"an annotation cannot be read: {type(error).__name__}: {error}") from None
    return {**hints, "return": function} if isinstance(function, type) else hints


def normal(sql: str) -> str:
    """A SQL type as the engine writes it."""
    try:
        return _guest.parse_type(sql)
    except ValueError:
        return sql


def from_hint(declaration: Declaration, what: str, hint: Any, kind: str) -> Typed:
    """As :func:`from_annotation`; an error names the function, and what the annotation is for."""
    if hint is None:
        raise declaration.error(f"{what} has no type; annotate it, or give udf a signature")
    try:
        return from_annotation(hint, kind)
    except TypeError as error:
        raise declaration.error(f"{what}: {error}") from None


def any_type(hint: Any) -> Typed | None:
    """The meaning of an annotation for arguments of any type; None for other annotations."""
    if hint is Any or hint is object:
        return Typed("ANY")
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        inner, *notes = arguments
        sql = next((note for note in notes if isinstance(note, str)), None)
        if sql is None:
            return any_type(inner)
        if sql.strip().upper() != "ANY":
            return None
        members = get_args(inner) if is_union(inner) else (inner,)
        column = next(filter(None, map(column_kind, members)), "pyarrow")
        return Typed("ANY", admits_null=type(None) in members, column=column)
    if is_union(hint) and type(None) in arguments and len(arguments) == 2:
        typed = next(filter(None, map(any_type, arguments)), None)
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
    if is_union(hint):
        rest = [argument for argument in arguments if argument is not type(None)]
        if len(rest) != 1 or len(rest) == len(arguments):
            raise TypeError(f"{hint} is more than one type; " + _WRITE_INSTEAD.format("..."))
        return from_annotation(rest[0], kind)._replace(admits_null=True)
    if kind == "vectorized":
        return _column(hint, origin, arguments)
    return _value(hint, origin, arguments)


def is_optional(hint: Any) -> bool:
    """Whether an annotation admits None."""
    return is_union(hint) and type(None) in get_args(hint)


def is_union(hint: Any) -> bool:
    """Whether an annotation is a union, also one of a type and None."""
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
        members = get_args(inner) if is_union(inner) else (inner,)
        column = next(filter(None, map(column_kind, members)), "pyarrow")
        return Typed(declared, admits_null=type(None) in members, column=column)
    # The shape belongs to the annotation's own type.
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
    """The fields of a dataclass, a NamedTuple or a TypedDict; none for other classes."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return {item.name: hints[item.name] for item in dataclasses.fields(hint) if item.init}
    if typing.is_typeddict(hint) or (issubclass(hint, tuple) and hasattr(hint, "_fields")):
        hints = typing.get_type_hints(hint, include_extras=True)
        return {name: _without_presence(field) for name, field in hints.items()}
    return {}


def _without_presence(field: Any) -> Any:
    """The type of a TypedDict's key, without `Required` or `NotRequired` around it."""
    return get_args(field)[0] if get_origin(field) in (Required, NotRequired) else field


def _struct(hint: type, fields: dict[str, Any]) -> Typed:
    typed = {name: from_annotation(field) for name, field in fields.items()}
    inner = ", ".join(f"{quoted(name)} {field.sql}" for name, field in typed.items())
    factory = None if typing.is_typeddict(hint) else hint
    lacking = _not_required(hint)
    may_lack = [field.admits_null or name in lacking for name, field in typed.items()]
    return Typed(f"STRUCT({inner})", ("struct", factory, [field.shape for field in typed.values()], may_lack))


def _not_required(hint: type) -> set[str]:
    """The keys that a TypedDict may lack, by its ``total=False`` or by ``NotRequired``."""
    if not typing.is_typeddict(hint):
        return set()
    hints = typing.get_type_hints(hint, include_extras=True)
    # If annotations are strings, Python itself does not see `Required` and `NotRequired` in them.
    return {
        name
        for name, field in hints.items()
        if get_origin(field) is NotRequired
        or (name in hint.__optional_keys__ and get_origin(field) is not Required)
    }


def _column(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Typed:
    column = column_kind(origin or hint)
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


def column_kind(hint: Any) -> str | None:
    """The library of columns that an annotation is from; None if it is no column."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else get_origin(hint) or hint
    return _COLUMN_KINDS.get((getattr(hint, "__module__", "") or "").split(".")[0])


def _enum(values: Iterable[str]) -> str:
    return "ENUM(" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + ")"
