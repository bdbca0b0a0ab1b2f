"""Streams of batches through functions: their input, and :class:`MappedStream`, their results."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.batches import batches, is_batch
from crosslane._arrow.encode import Chooser, Encoder
from crosslane._client.context import current_context, pass_on


def input_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a reader, or of an iterable of batches."""
    if is_batch(reader):
        return batches(reader)
    if not isinstance(reader, Iterable):
        raise TypeError(
            "map reads what has __arrow_c_stream__ (a relation of DuckDB, a data frame, a pyarrow Table, ...), or an iterable "
            f"of batches, not {type(reader).__name__}"
        )
    return (batch for item in reader for batch in batches(item))


class MappedStream:
    """The results of :func:`crosslane.map`: a stream of batches that can be read once."""

    def __init__(self, native: Any, source: Iterator[pa.RecordBatch]) -> None:
        self._native = native
        # The calls of the stream belong to the span in which it was made, whoever reads it.
        self._context = current_context()
        self._input = self._encoded(source)
        self._ahead: pa.RecordBatch | None = None
        #: The exception that has ended the stream.
        self._error: BaseException | None = None

    def _encoded(self, source: Iterator[pa.RecordBatch]) -> Generator[tuple[str, pa.StructArray], None, None]:
        takes = self._native.takes
        encoder = Encoder() if takes is None else Chooser(takes)
        for batch in source:
            if batch.num_rows:
                yield from encoder.encode(batch, self._native.most)

    def _pull(self) -> tuple[str, pa.StructArray] | None:
        batch = next(self._input, None)
        # The input may have made calls of its own.
        pass_on(self._context)
        return batch

    @property
    def schema(self) -> pa.Schema:
        """The columns of the results. If they are not declared, this waits for the first batch.

        Raises:
            ValueError: if the columns are not declared, and the function gave no batch.
        """
        if self._native.columns() is None and self._ahead is None:
            self._ahead = next(self, None)
        columns = self._native.columns()
        if columns is None:
            raise ValueError(
                "the function gave no batch, so that its columns are not known; give map a schema"
            )
        return pa.schema(list(_guest.table_type(columns)))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        if self._error is not None:
            # A StopIteration would look like the regular end of the results.
            raise self._error
        pass_on(self._context)
        try:
            array = self._native.next(self._pull)
        except BaseException as error:
            # The stream goes on if another thread reads it, or if this process is a fork.
            if self._native.is_over:
                self._error = error
                self._input.close()
            raise
        if array is None:
            self._input.close()
            raise StopIteration
        return pa.RecordBatch.from_struct_array(array)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, _Reading(self))
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Ends the stream and its workers. May be called more than once, and by any thread."""
        self._ahead = None
        self._native.close()
        # With the native half closed, the stream keeps no input alive. If another thread reads the input now,
        # that thread closes it.
        with contextlib.suppress(ValueError):
            self._input.close()

    def __enter__(self) -> MappedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Reading:
    """The reader of a stream behind its C interface. When the reader is released, the stream ends."""

    def __init__(self, stream: MappedStream) -> None:
        self._stream = stream
        #: Whether a batch was read. Some libraries release an interface after they have read its
        #: schema.
        self._begun = False

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._begun = True
        return next(self._stream)

    def __del__(self) -> None:
        if self._begun:
            self._stream.close()
