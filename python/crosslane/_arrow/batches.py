"""What counts as a batch of rows: Arrow's, a data frame, or a dict of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa


def is_batch(thing: object) -> bool:
    """Whether a thing is one or more batches itself, and no iterable of batches."""
    return (
        isinstance(thing, (pa.RecordBatch, pa.Table, dict))
        or hasattr(thing, "__arrow_c_stream__")
        or hasattr(thing, "__arrow_c_array__")
        or _is_pandas(thing)
    )


def batches(thing: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a thing that is one or more batches.

    Raises:
        TypeError: if it is no batch.
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


def _to_polars(batch: pa.RecordBatch) -> Any:
    import polars

    return polars.from_arrow(batch)


#: The classes of batches that a function may take, by the annotation of its parameter.
FRAMES: dict[str, Callable[[pa.RecordBatch], Any]] = {
    "pyarrow": lambda batch: batch,
    "pyarrow.Table": lambda batch: pa.Table.from_batches([batch]),
    "pandas": lambda batch: batch.to_pandas(),
    "polars": _to_polars,
}
