"""Cuts batches, so that none is longer than what a lane carries at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

#: The largest number of rows of a batch, in both directions.
MOST_ROWS = 65_536


def cut_batch(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch in parts of about ``most`` bytes, or of one row if it is longer."""
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
    """The same rows, without the elements of other rows.

    A cast of a slice of lists would decode the dictionaries in the elements of all rows of the
    batch.
    """
    if not any(map(_has_nested_dictionary, part.schema.types)):
        return part
    rows = pa.array(range(part.num_rows), pa.int32())
    columns = [
        column.take(rows) if _has_nested_dictionary(column.type) else column for column in part.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=part.schema)


def cut_array(array: pa.StructArray, most: int) -> Iterator[pa.StructArray]:
    """An array in pieces of ``most`` bytes, because a cast may have made it longer."""
    if array.nbytes <= most or len(array) <= 1:
        yield array
        return
    middle = len(array) // 2
    yield from cut_array(array[:middle], most)
    yield from cut_array(array[middle:], most)


def storage_of(column: pa.Array) -> pa.Array:
    """A column without its extension type, if it has one."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _weigher(column: pa.Array) -> Callable[[int, int], int]:
    """A function that returns the bytes of a slice of a column, with values instead of a
    dictionary's indices.

    It takes the first row and the number of rows.
    """
    column = storage_of(column)
    if isinstance(column, pa.DictionaryArray) and _has_lengths(column.type.value_type):
        lengths = pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)
        return lambda start, rows: 5 * rows + (pc.sum(lengths.slice(start, rows)).as_py() or 0)
    return lambda start, rows: _weight(column.slice(start, rows))


def _weight(column: pa.Array) -> int:
    """About how many bytes a column has, with values instead of a dictionary's indices."""
    column = storage_of(column)
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
