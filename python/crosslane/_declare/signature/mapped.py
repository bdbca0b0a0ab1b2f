"""A function of :func:`crosslane.map` without a declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from crosslane._arrow.batches import FRAMES, batches, is_batch
from crosslane._arrow.encode import Encoder
from crosslane._arrow.sql_types import struct_type
from crosslane._declare.classes import Stateful
from crosslane._declare.declaration import EngineOptions
from crosslane._runtime.sql import quoted


@dataclass(kw_only=True)
class Stream(EngineOptions):
    """A function of batches as the guest's loop and the engine need it."""

    name: str
    callable: Callable[..., Any]
    #: The class of the batches that it takes: a key of `FRAMES`.
    frame: str
    #: The columns of its results, if they are declared.
    schema: pa.Schema | None
    kind = "stream"
    table = None

    @property
    def columns(self) -> list[str]:
        """The libraries that its lanes import before the first batch."""
        return ["pyarrow", self.frame.split(".")[0]]

    def message(self) -> dict[str, Any]:
        """What the engine is told of the function, for JSON."""
        declared = "" if self.schema is None else struct_type(self.schema).removeprefix("STRUCT")
        return {
            **self.engine_options(),
            "signature": f"{quoted(self.name)}(rows TABLE) -> TABLE{declared}",
            "kind": self.kind,
            "admits_null": [True],
            "calling": "vectorized",
            "set_up": isinstance(self.callable, Stateful),
        }

    def set_up(self) -> None:
        """Makes the instance of a stateful function. Called by the native guest before each batch."""
        if isinstance(self.callable, Stateful):
            self.callable.callee()

    def answers(
        self, array: pa.StructArray, most: int
    ) -> list[tuple[str, pa.StructArray]] | Iterator[tuple[str, pa.StructArray]]:
        """The batches that the function gives for a batch: a list of all, or an iterator if the
        function yields them.

        Called by the native guest.
        """
        function = self.callable.callee() if isinstance(self.callable, Stateful) else self.callable
        result = function(FRAMES[self.frame](pa.RecordBatch.from_struct_array(array)))
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
