"""Functions of iterators, which get all batches of a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from crosslane import _guest
from crosslane._declare.callables import defined_at
from crosslane._engines.spark.arrow_types import arrow_type, cast, read
from crosslane._engines.spark.support import MAP_ARROW_ITER, MAPS
from crosslane._engines.spark.worker import of_worker
from crosslane._runtime.sql import quoted


class Iterated:
    """A function of an iterator, which is called once for a task."""

    kind = "stream"
    table = None
    callable = None
    memory_limit = None
    columns = ["pandas", "pyarrow"]

    def __init__(
        self,
        name: str,
        signature: str,
        function: Callable[..., Any],
        eval_type: int,
        types: list[Any],
        returns: Any,
        conf: dict[str, str],
    ) -> None:
        import pandas  # noqa: F401  A lane should find it imported.

        from crosslane._arrow.encode import Chooser

        _, parameters, sql, _ = _guest.parse_signature(signature)
        self._is_map = eval_type in MAPS
        if self._is_map:
            ((_, columns),) = parameters
        else:
            columns = f"STRUCT({', '.join(f'{quoted(parameter)} {of}' for parameter, of in parameters)})"
            sql = f"STRUCT(result {sql})"
        columns, sql = _guest.parse_type(columns), _guest.parse_type(sql)
        tables = (text.removeprefix("STRUCT") for text in (columns, sql))
        self._signature = "{}(rows TABLE{}) -> TABLE{}".format(quoted(name), *tables)
        #: The types of the columns of its input, as they travel.
        self.takes = f"({columns})"
        self._result = Chooser(sql)
        self._names = [field.name for field in _guest.table_type(sql)]
        self._types = [arrow_type(kind, conf) for kind in types]
        #: The fields of the result, if Spark's code does not convert its columns.
        self._declared = list(returns) if eval_type == MAP_ARROW_ITER else []
        self._evaluate = of_worker(function, eval_type, types, returns, conf)
        self._file, self._line = defined_at(function)
        self._description = inspect.getdoc(function) or ""

    def message(self) -> dict[str, Any]:
        """What the engine is told of the function, for JSON."""
        return {
            "signature": self._signature,
            "kind": self.kind,
            "admits_null": [True],
            "calling": "vectorized",
            "iterates": True,
            "deterministic": False,
            "file": self._file,
            "line": self._line,
            "description": self._description,
        }

    def set_up(self) -> None:
        """Does nothing: there is no instance. Called by the native guest."""

    def iterate(self, arrays: Iterator[Any], most: int) -> Iterator[tuple[str, Any]]:
        """The results for all batches (StructArrays). Called by the native guest."""
        import pyarrow as pa

        for batch in self._evaluate(map(self._given, arrays)):
            column = batch.column(0)
            columns = column.flatten() if self._is_map else [column]
            if len(columns) < len(self._names):
                raise ValueError(f"gave {len(columns)} columns, where {len(self._names)} are declared")
            if self._declared:
                columns = [read(column, field) for column, field in zip(columns, self._declared)]
            chosen = pa.RecordBatch.from_arrays(columns[: len(self._names)], self._names)
            yield from self._result.encode(chosen, most)

    def _given(self, array: Any) -> Any:
        """A batch as Spark's JVM sends it: the arguments, or one struct."""
        import pyarrow as pa

        columns = array.flatten()
        if not self._is_map:
            columns = [cast(column, kind) for column, kind in zip(columns, self._types)]
            return pa.RecordBatch.from_arrays(columns, [f"_{number}" for number in range(len(columns))])
        fields = list(self._types[0])
        columns = [cast(column, field.type) for column, field in zip(columns, fields)]
        return pa.RecordBatch.from_arrays([pa.StructArray.from_arrays(columns, fields=fields)], ["_0"])
