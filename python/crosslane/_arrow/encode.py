"""Batches as they travel to a lane: of bounded length, with the types of their columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.convert import fitting
from crosslane._arrow.cut import cut_array, cut_batch, storage_of
from crosslane._arrow.sql_types import sql_type, struct_type

#: The Arrow type of a UUID.
_UUID = pa.binary(16)


class Columns:
    """The columns of batches, and the types with which they travel."""

    def __init__(self, schema: pa.Schema) -> None:
        if not schema.names:
            raise TypeError("a batch has at least one column")
        for field in schema:
            try:
                sql_type(field.type)
            except TypeError as error:
                raise TypeError(f"column {field.name}: {error}") from None
        self.given = schema
        self.type: pa.StructType = _guest.table_type(struct_type(schema))
        #: The columns as a lane is told of them.
        self.text = f"({_guest.parse_type(struct_type(schema))})"
        self.schema = pa.schema(list(self.type))

    def array(self, batch: pa.RecordBatch) -> pa.StructArray:
        """A batch with these columns, as it travels.

        Raises:
            pyarrow.ArrowInvalid: if a value does not fit.
        """
        columns = [
            column if column.type == field.type else storage_of(column).cast(field.type)
            for column, field in zip(batch.columns, self.type)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema).to_struct_array()


class Encoder:
    """Prepares batches for a lane: cut, and with their own types."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        #: The declared columns, if there are any.
        self._declared = Columns(schema) if schema is not None else None
        self._last: Columns | None = None

    def encode(self, batch: pa.RecordBatch, most: int) -> Iterator[tuple[str, pa.StructArray]]:
        """Parts of a batch with their types, of ``most`` bytes or of one longer row."""
        if self._declared:
            table, batch = self._declared, _chosen(batch, self._declared.given.names)
        elif self._last is None or self._last.given != batch.schema:
            self._last = table = Columns(batch.schema)
        else:
            table = self._last
        for part in cut_batch(batch, most):
            for piece in cut_array(table.array(part), most):
                yield table.text, piece


class Chooser:
    """Prepares batches for a function that declares its input: chooses and casts columns."""

    def __init__(self, columns: str) -> None:
        self._text = f"({columns})"
        self._type: pa.StructType = _guest.table_type(columns, sent=True)
        self._schema = pa.schema(list(self._type))

    def encode(self, batch: pa.RecordBatch, most: int) -> Iterator[tuple[str, pa.StructArray]]:
        """As :meth:`Encoder.encode`.

        Raises:
            ValueError: if a column is missing.
            TypeError, ValueError, OverflowError: if a column cannot be cast; it names the column.
        """
        indices = self._indices(batch.schema.names)
        for part in cut_batch(batch.select(indices), most):
            columns = [fit_column(column, field) for column, field in zip(part.columns, self._type)]
            fitted = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            for piece in cut_array(fitted.to_struct_array(), most):
                yield self._text, piece

    def _indices(self, names: list[str]) -> list[int]:
        """The indices of the declared columns. As in SQL, the case of names does not matter."""
        lower = [name.lower() for name in names]
        indices, missing = [], []
        for field in self._type:
            found = [index for index, name in enumerate(names) if name == field.name]
            found = found or [index for index, name in enumerate(lower) if name == field.name.lower()]
            if len(found) > 1:
                raise ValueError(f"the input has {len(found)} columns {field.name}")
            indices += found
            missing += [] if found else [field.name]
        if missing:
            raise ValueError(f"the input has no column {', '.join(missing)}; it has {', '.join(names)}")
        return indices


def fit_column(column: Any, field: pa.Field) -> pa.Array:
    """A column of any library as an array of a field's type.

    Raises:
        TypeError, ValueError, OverflowError: if it cannot be cast; it names the column.
    """
    column = storage_of(column)
    is_array = isinstance(column, pa.Array)
    if is_array and column.type == field.type:
        return column
    try:
        if field.type == _UUID and is_array and pa.types.is_string(column.type):
            values = [None if text is None else uuid.UUID(text).bytes for text in column.to_pylist()]
            return pa.array(values, _UUID)
        return fitting(column, field.type)  # type: ignore[return-value]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, pa.ArrowException) else type(error)
        raise kind(f"column {field.name}: {str(error).removeprefix('returned ')}") from None


def _chosen(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise ValueError(f"a batch without the column {missing[0]}; it has {', '.join(batch.schema.names)}")
    return batch.select(names)
