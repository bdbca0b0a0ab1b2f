"""Functions of streams: a batch of rows in, any number of batches out. What both ends of a lane do with Arrow's types."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from crosslane import _guest
from crosslane._arrow.convert import fitting
from crosslane._declare.signature.annotations import quoted
from crosslane._worker.states import Stateful

if TYPE_CHECKING:
    import pandas

#: The most rows of a batch, either way.
MOST_ROWS = 65_536

_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float16(): "FLOAT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.time32("s"): "TIME",
    pa.time32("ms"): "TIME",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.month_day_nano_interval(): "INTERVAL",
    # A column of NULLs alone, as DuckDB has it.
    pa.null(): "INTEGER",
}
#: Arrow's type of a UUID.
_UUID = pa.binary(16)
#: Digits of a DECIMAL.
_MOST_DIGITS = 38


def sql_type(data_type: pa.DataType) -> str:
    """The SQL type of an Arrow type.

    Raises:
        TypeError: if SQL has none.

    >>> sql_type(pa.list_(pa.large_string()))
    'VARCHAR[]'
    """
    types = pa.types
    if data_type in _PLAIN:
        return _PLAIN[data_type]
    if isinstance(data_type, pa.BaseExtensionType):
        return sql_type(data_type.storage_type)
    if types.is_dictionary(data_type):
        return sql_type(data_type.value_type)
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return "VARCHAR"
    if (
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    ):
        return "BLOB"
    if types.is_timestamp(data_type):
        return "TIMESTAMP WITH TIME ZONE"
    if types.is_decimal(data_type) and data_type.precision <= _MOST_DIGITS and data_type.scale >= 0:
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if types.is_decimal256(data_type) and (data_type.precision, data_type.scale) == (39, 0):
        return "HUGEINT"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"{sql_type(data_type.value_type)}[]"
    if types.is_fixed_size_list(data_type):
        return f"{sql_type(data_type.value_type)}[{data_type.list_size}]"
    if types.is_map(data_type):
        return f"MAP({sql_type(data_type.key_type)}, {sql_type(data_type.item_type)})"
    if types.is_struct(data_type) and data_type.num_fields:
        return _struct(data_type)
    raise TypeError(f"SQL has no type for Arrow's {data_type}")


def _struct(fields: Iterable[pa.Field]) -> str:
    return f"STRUCT({', '.join(f'{quoted(field.name)} {sql_type(field.type)}' for field in fields)})"


class Table:
    """The columns of a table as they travel."""

    def __init__(self, schema: pa.Schema) -> None:
        if not schema.names:
            raise TypeError("a batch has at least one column")
        for field in schema:
            try:
                sql_type(field.type)
            except TypeError as error:
                raise TypeError(f"column {field.name}: {error}") from None
        self.given = schema
        self.type: pa.StructType = _guest.table_type(_struct(schema))
        #: What a lane is told of them.
        self.text = f"({_guest.parse_type(_struct(schema))})"
        self.schema = pa.schema(list(self.type))

    def array(self, batch: pa.RecordBatch) -> pa.StructArray:
        """A batch with these columns as it travels.

        Raises:
            KeyError: if it has not all columns.
            pyarrow.ArrowInvalid: if a value does not fit.
        """
        columns = [
            column if column.type == field.type else _cast(column, field.type)
            for column, field in zip(batch.columns, self.type)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema).to_struct_array()


def _cast(column: pa.Array, to: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.cast(to)


class Encoder:
    """Makes batches what travels: of bounded length, with their types."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        #: The columns that are declared, if they are.
        self._declared = Table(schema) if schema is not None else None
        self._last: Table | None = None

    def encode(self, batch: pa.RecordBatch, most: int) -> Iterator[tuple[str, pa.StructArray]]:
        """A batch as those that travel, with their types, each of at most so many bytes, if one row has no more."""
        if self._declared:
            table, batch = self._declared, _chosen(batch, self._declared.given.names)
        elif self._last is None or self._last.given != batch.schema:
            self._last = table = Table(batch.schema)
        else:
            table = self._last
        for part in _parts(batch, most):
            for piece in _pieces(table.array(part), most):
                yield table.text, piece


def _parts(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch, cut into parts that have about so many bytes at most when they travel, if one row has no more."""
    weighers = [_weigher(column) for column in batch.columns]

    def cut(start: int, rows: int) -> Iterator[pa.RecordBatch]:
        weight = sum(weigh(start, rows) for weigh in weighers)
        if rows <= 1 or (weight <= most and rows <= MOST_ROWS):
            part = batch.slice(start, rows)
            yield part if rows == batch.num_rows else _compact(part)
            return
        length = max(1, min(MOST_ROWS, rows * most // max(weight, 1)))
        for first in range(start, start + rows, length):
            yield from cut(first, min(length, start + rows - first))

    return cut(0, batch.num_rows)


def _compact(part: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows. A cast of a part of lists makes the elements of all rows longer, also of those that are not in it."""
    if not any(map(_has_nested_dictionary, part.schema.types)):
        return part
    rows = pa.array(range(part.num_rows), pa.int32())
    columns = [
        column.take(rows) if _has_nested_dictionary(column.type) else column for column in part.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=part.schema)


def _pieces(array: pa.StructArray, most: int) -> Iterator[pa.StructArray]:
    """What a cast has made longer than so many bytes, cut again."""
    if array.nbytes <= most or len(array) <= 1:
        yield array
        return
    middle = len(array) // 2
    yield from _pieces(array[:middle], most)
    yield from _pieces(array[middle:], most)


def _weigher(column: pa.Array) -> Callable[[int, int], int]:
    """Says how many bytes so many rows of a column from one on have, with their values in the place of a dictionary's codes."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray) and _has_lengths(column.type.value_type):
        lengths = pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)
        return lambda start, rows: 5 * rows + (pc.sum(lengths.slice(start, rows)).as_py() or 0)
    return lambda start, rows: _weight(column.slice(start, rows))


def _weight(column: pa.Array) -> int:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray):
        values = column.dictionary
        return len(column) * -(-_weight(values) // max(len(values), 1))
    if not _has_dictionary(column.type):
        return column.nbytes  # type: ignore[no-any-return]
    if pa.types.is_struct(column.type):
        return sum(map(_weight, column.flatten()))
    if pa.types.is_map(column.type):
        first, *_, last = column.offsets.to_pylist() or [0, 0]
        entries = (column.keys.slice(first, last - first), column.items.slice(first, last - first))
        return 4 * len(column) + sum(map(_weight, entries))
    return 4 * len(column) + _weight(column.flatten())


def _has_dictionary(data_type: pa.DataType) -> bool:
    fields = (data_type.field(place).type for place in range(data_type.num_fields))
    return pa.types.is_dictionary(data_type) or any(map(_has_dictionary, fields))


def _has_nested_dictionary(data_type: pa.DataType) -> bool:
    return not pa.types.is_dictionary(data_type) and _has_dictionary(data_type)


def _has_lengths(data_type: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_of(data_type)
        for is_of in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


class Chooser:
    """Makes batches what travels to a function that declares the columns of its input: these, of just their types."""

    def __init__(self, columns: str) -> None:
        self._text = f"({columns})"
        self._type: pa.StructType = _guest.table_type(columns, sent=True)
        self._schema = pa.schema(list(self._type))

    def encode(self, batch: pa.RecordBatch, most: int) -> Iterator[tuple[str, pa.StructArray]]:
        """As :meth:`Encoder.encode`.

        Raises:
            ValueError: if a column is missing.
            TypeError, ValueError, OverflowError: if a column cannot become what is declared; it names the column.
        """
        places = self._places(batch.schema.names)
        for part in _parts(batch.select(places), most):
            columns = [_fitted(column, field) for column, field in zip(part.columns, self._type)]
            fitted = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            for piece in _pieces(fitted.to_struct_array(), most):
                yield self._text, piece

    def _places(self, names: list[str]) -> list[int]:
        """Where the declared columns are, as SQL finds them: whatever their case."""
        lower = [name.lower() for name in names]
        places, missing = [], []
        for field in self._type:
            found = [place for place, name in enumerate(names) if name == field.name]
            found = found or [place for place, name in enumerate(lower) if name == field.name.lower()]
            if len(found) > 1:
                raise ValueError(f"the input has {len(found)} columns {field.name}")
            places += found
            missing += [] if found else [field.name]
        if missing:
            raise ValueError(f"the input has no column {', '.join(missing)}; it has {', '.join(names)}")
        return places


def _fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == field.type:
        return column
    try:
        if field.type == _UUID and pa.types.is_string(column.type):
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


def is_batch(thing: object) -> bool:
    """Whether a thing is a batch, or several, and no iterable of them."""
    return (
        isinstance(thing, (pa.RecordBatch, pa.Table, dict))
        or hasattr(thing, "__arrow_c_stream__")
        or hasattr(thing, "__arrow_c_array__")
        or _is_pandas(thing)
    )


def batches(thing: Any) -> Iterator[pa.RecordBatch]:
    """The batches that a thing is.

    Raises:
        TypeError: if it is none.
    """
    if isinstance(thing, pa.RecordBatch):
        yield thing
    elif isinstance(thing, pa.Table):
        yield from thing.to_batches() or [pa.RecordBatch.from_pylist([], schema=thing.schema)]
    elif isinstance(thing, dict):
        yield pa.RecordBatch.from_pydict(thing)
    elif _is_pandas(thing):
        yield pa.RecordBatch.from_pandas(thing, preserve_index=False)
    elif hasattr(thing, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(thing)
    elif hasattr(thing, "__arrow_c_array__"):
        yield pa.record_batch(thing)
    else:
        raise TypeError(
            "a batch is a pyarrow RecordBatch or Table, a data frame of pandas or polars, or a dict of columns, not "
            f"{type(thing).__name__}"
        )


def _is_pandas(thing: object) -> bool:
    return type(thing).__module__.split(".")[0] == "pandas" and hasattr(thing, "columns")


def _to_pandas(batch: pa.RecordBatch) -> pandas.DataFrame:
    return batch.to_pandas()


def _to_polars(batch: pa.RecordBatch) -> Any:
    import polars

    return polars.from_arrow(batch)


def _to_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


#: What a function may want, by its parameter's annotation.
WISHES: dict[str, Callable[[pa.RecordBatch], Any]] = {
    "pyarrow": lambda batch: batch,
    "pyarrow.Table": _to_table,
    "pandas": _to_pandas,
    "polars": _to_polars,
}


@dataclass
class Stream:
    """A stream function as the guest's loop and the engine need it."""

    name: str
    callable: Callable[..., Any]
    #: One of `WISHES`.
    wish: str
    #: The columns of its results, if they are declared.
    schema: pa.Schema | None
    deterministic: bool
    timeout: float | None
    memory_limit: int | None
    on_error: str
    retries: int
    file: str
    line: int
    kind = "stream"
    table = None

    @property
    def columns(self) -> list[str]:
        """The libraries that its lanes need."""
        return ["pyarrow", self.wish.split(".")[0]]

    def message(self) -> dict[str, Any]:
        """What the engine is told, as JSON."""
        declared = "" if self.schema is None else _struct(self.schema).removeprefix("STRUCT")
        return {
            "signature": f"{quoted(self.name)}(rows TABLE) -> TABLE{declared}",
            "kind": self.kind,
            "admits_null": [True],
            "calling": "vectorized",
            "deterministic": self.deterministic,
            "timeout": self.timeout,
            "memory_limit": self.memory_limit,
            "on_error": self.on_error,
            "retries": self.retries,
            "set_up": isinstance(self.callable, Stateful),
            "file": self.file,
            "line": self.line,
        }

    def set_up(self) -> None:
        """Prepares what the function needs before its first batch. Called by the native guest, before each."""
        if isinstance(self.callable, Stateful):
            self.callable.callee()

    def answers(
        self, array: pa.StructArray, most: int
    ) -> list[tuple[str, pa.StructArray]] | Iterator[tuple[str, pa.StructArray]]:
        """What the function gives for a batch: a list, if it has given all. Called by the native guest."""
        function = self.callable.callee() if isinstance(self.callable, Stateful) else self.callable
        result = function(WISHES[self.wish](pa.RecordBatch.from_struct_array(array)))
        if result is None:
            return []
        encoder = self._encoder()
        if is_batch(result):
            return [encoded for batch in batches(result) for encoded in encoder.encode(batch, most)]
        if not hasattr(result, "__iter__"):
            raise TypeError(
                f"{self.name} gives a batch, yields batches, or gives None, and gave {type(result).__name__}"
            )
        return self._each(result, most)

    def _each(self, results: Iterable[Any], most: int) -> Iterator[tuple[str, pa.StructArray]]:
        encoder = self._encoder()
        for result in results:
            for batch in batches(result):
                yield from encoder.encode(batch, most)

    def _encoder(self) -> Encoder:
        if not hasattr(self, "_known"):
            self._known = Encoder(self.schema)
        return self._known
