"""A server's functions, and their arguments as the native client takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.encode import fit_column
from crosslane._arrow.sql_types import sql_type


@dataclass(frozen=True)
class ServedFunction:
    """A function of a server, as the server describes it."""

    #: Its name in SQL.
    name: str
    #: Such as ``initials(name VARCHAR) -> VARCHAR``.
    signature: str
    #: ``scalar``, ``table``, ``aggregate`` or ``stream``.
    kind: str
    #: Its docstring, or the comment above it.
    description: str
    #: Where it is defined, on the server's machine.
    file: str
    #: The line there, from 1.
    line: int
    _index: int = field(repr=False)
    #: Names and types. The last may stand for any number of arguments of its type.
    _parameters: tuple[tuple[str, str], ...] = field(repr=False)
    _variadic: bool = field(repr=False)
    #: For each parameter, whether it may be left out.
    _optional: tuple[bool, ...] = field(repr=False)

    @classmethod
    def _of(cls, index: int, signature: str, spec: str) -> ServedFunction:
        said = json.loads(spec)
        name, parameters, _, variadic = _guest.parse_signature(signature)
        optional = [*said["named"], *[False] * len(parameters)][: len(parameters)]
        return cls(
            name=name,
            signature=signature,
            kind=said["kind"],
            description=said["description"],
            file=said["file"],
            line=said["line"],
            _index=index,
            _parameters=tuple(parameters),
            _variadic=variadic,
            _optional=tuple(optional),
        )

    def _bind(self, values: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[str, str, Any]]:
        """The arguments of a call, each with its name and its type."""
        fixed = self._parameters[:-1] if self._variadic else self._parameters
        names = [name for name, _ in fixed]
        wrong = next((name for name in named if name not in names[len(values) :]), None)
        if wrong is not None:
            what = "is given twice" if wrong in names else "is no parameter"
            raise TypeError(f"{wrong} {what}: {self.signature}")
        if len(values) > len(fixed) and not self._variadic:
            raise TypeError(f"{len(values)} arguments for {self.signature}")
        bound = [(name, kind, value) for (name, kind), value in zip(fixed, values)]
        for (name, kind), optional in list(zip(fixed, self._optional))[len(values) :]:
            if name not in named and not optional:
                raise TypeError(f"the argument {name} is missing: {self.signature}")
            bound.append((name, kind, named.get(name)))
        if self._variadic:
            bound += [(*self._parameters[-1], value) for value in values[len(fixed) :]]
        return bound


def types_of(bound: list[tuple[str, str, Any]], known: Callable[[Any], str]) -> tuple[list[str], str | None]:
    """The types of arguments; and these as text, if some depend on the arguments (``ANY``)."""
    types = [known(value) if kind == "ANY" else kind for _, kind, value in bound]
    return types, f"({', '.join(types)})" if any(kind == "ANY" for _, kind, _ in bound) else None


def type_of_value(value: Any) -> str:
    """The SQL type of a value of Python."""
    return sql_type(pa.array([value]).type)


def _array(column: Any) -> pa.Array | None:
    """An object with an Arrow interface as an array; None for any other object."""
    if isinstance(column, pa.Array):
        return column
    if not isinstance(column, pa.ChunkedArray):
        if hasattr(column, "__arrow_c_array__"):
            return pa.array(column)
        if not hasattr(column, "__arrow_c_stream__"):
            return None
        column = pa.chunked_array(column)
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # pyarrow keeps what exceeds 2 GiB in chunks
        raise ValueError("a column exceeds 2 GiB; call with parts of it, or map over it")
    return joined


def _column(name: str, column: Any, sql: str) -> pa.Array | list[Any]:
    """A column of any library as an array of a type, or as a list of values."""
    kind = _guest.table_type(f"STRUCT(x {sql})", sent=True).field(0).type
    array = _array(column)
    is_list = isinstance(column, Sequence) and not isinstance(column, (str, bytes, bytearray))
    if array is None and is_list:
        return list(column)
    return fit_column(column if array is None else array, pa.field(name, kind))


def columns_of(bound: list[tuple[str, str, Any]]) -> tuple[list[Any], str | None]:
    """Columns for the native client; and their types as text, if some depend on the columns."""
    known = [
        (parameter, kind, pa.array(value) if kind == "ANY" and _array(value) is None else value)
        for parameter, kind, value in bound
    ]
    kinds, types = types_of(known, lambda column: sql_type(_array(column).type))  # type: ignore[union-attr]
    return [_column(parameter, value, kind) for (parameter, _, value), kind in zip(known, kinds)], types


def count_rows(columns: Sequence[Any]) -> int:
    """The number of rows of columns, which must have the same length."""
    rows = {len(column) for column in columns}
    if len(rows) > 1:
        raise ValueError(f"columns of {' and '.join(map(str, sorted(rows)))} rows")
    return rows.pop()


def group_keys(keys: Any) -> tuple[list[Any], list[int]]:
    """The distinct keys in the order of their first rows, and for each row the index of its key."""
    if isinstance(keys, (str, bytes, bytearray)):
        raise TypeError(f"by is a column of keys, not {type(keys).__name__}")
    array = _array(keys)
    if array is not None:
        keys = array.to_pylist()
    elif hasattr(keys, "tolist"):
        keys = keys.tolist()
    indices: dict[Any, int] = {}
    groups = [indices.setdefault(key, len(indices)) for key in keys]
    return list(indices), groups
