"""The benchmark's table functions: generators of rows and of batches, and a generator that is not read to its
end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy
import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udtf

#: Rows of a batch.
BATCH = 100_000


@udtf("some_rows(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)")
def some_rows(n: int) -> Iterator[tuple[int, str]]:
    """A number and its text."""
    for i in range(n):
        yield i, f"row {i}"


@udtf("some_batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized=True)
def some_batches(n: int) -> Iterator[pa.RecordBatch]:
    """The same rows, made by pyarrow."""
    for start in range(0, n, BATCH):
        i = pa.array(numpy.arange(start, start + BATCH))
        s = pc.binary_join_element_wise("row", i.cast(pa.string()), " ")
        yield pa.record_batch({"i": i, "s": s})


@udtf("billion() -> TABLE(i BIGINT)")
def billion() -> Iterator[int]:
    """A billion rows."""
    yield from range(1_000_000_000)


def read_rows(n: int) -> pa.RecordBatchReader:
    """The rows as DuckDB's Python client takes them from a generator: in batches of pyarrow's."""
    schema = pa.schema({"i": pa.int64(), "s": pa.string()})
    rows = some_rows(n)

    def batches() -> Iterator[pa.RecordBatch]:
        while part := list(itertools.islice(rows, 10_000)):
            yield pa.record_batch([pa.array(column) for column in zip(*part)], schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def read_batches(n: int) -> pa.RecordBatchReader:
    """The batches as DuckDB's Python client takes them."""
    return pa.RecordBatchReader.from_batches(pa.schema({"i": pa.int64(), "s": pa.string()}), some_batches(n))
