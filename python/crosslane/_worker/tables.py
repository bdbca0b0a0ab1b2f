"""Batches that vectorized table functions yield, as columns of the declared types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosslane._declare.signature.tables import Table


class Batches:
    """What a vectorized table function yields, as columns of the declared types."""

    def __init__(self, table: Table, wanted: list[int], kinds: list[Any]) -> None:
        self._names = table.columns
        self._wanted = wanted
        self._kinds = kinds

    def parts(self, yielded: Any) -> Iterator[tuple[int, list[Any]]]:
        """The number of rows and the wanted columns of each batch in what a function has yielded.

        Columns are pyarrow arrays of the declared types, or lists of Python's objects.

        Raises:
            TypeError, ValueError, OverflowError: if it is no batch of the table's columns.
        """
        import pyarrow as pa

        from crosslane._arrow.convert import fitting

        for rows, columns in self._batches(yielded, pa):
            fit = [fitting(column, kind) for column, kind in zip(columns, self._kinds)]
            lengths = {len(column) for column in fit}
            if lengths - {rows}:
                raise ValueError(
                    f"yielded columns of {' and '.join(map(str, sorted(lengths | {rows})))} rows"
                )
            yield rows, fit

    def _batches(self, yielded: Any, pa: Any) -> Iterator[tuple[int, list[Any]]]:
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
            # Nothing has checked it yet: it may come from any library.
            batch.validate()
            yield batch.num_rows, self._chosen(batch.schema.names, batch.columns)

    def _chosen(self, names: list[str] | None, columns: list[Any]) -> list[Any]:
        """The wanted columns, by their names or else by their order."""
        wanted = [self._names[index] for index in self._wanted]
        if names is not None and all(names.count(name) == 1 for name in wanted):
            return [columns[names.index(name)] for name in wanted]
        if len(columns) == len(self._names):
            return [columns[index] for index in self._wanted]
        if names is None and len(columns) == len(wanted):
            return columns
        said = (
            f"{len(columns)} columns"
            if names is None
            else f"the columns {', '.join(map(str, names)) or '(none)'}"
        )
        raise ValueError(f"yielded {said}, where those of the table are {', '.join(self._names)}")
