"""A declared function with its types, as the native guest and the engine need it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crosslane import _guest
from crosslane._declare.classes import Aggregate, Stateful

if TYPE_CHECKING:
    from crosslane._declare.signature.annotations import Shape
    from crosslane._declare.signature.tables import StreamTable, Table


@dataclasses.dataclass
class Declared:
    """A function as the guest's loop and the engine need it."""

    name: str
    signature: str
    callable: Callable[..., Any]
    kind: str
    #: Whether the last parameter stands for any number of arguments. Its shape is that of their list.
    variadic: bool
    shapes: list[Shape]
    result_shape: Shape
    admits_null: list[bool]
    columns: list[str]
    deterministic: bool
    concurrency: int
    timeout: float | None
    memory_limit: int | None
    on_error: str
    retries: int
    inline: bool
    file: str
    line: int
    description: str
    #: Of a table function, or a stream function.
    table: Table | StreamTable | None = None
    #: For each parameter of a table function, whether SQL names it and may leave it out.
    named: list[bool] = dataclasses.field(default_factory=list)
    cardinality: int | None = None
    #: Whether it is a generator, which is called once with an iterator of batches.
    iterates: bool = False
    #: Whether what it makes of a row may depend on the others, so that the engine does not cut a batch.
    whole_batches: bool = False
    #: Whether it stays beside functions of its name that take other types.
    overload: bool = False

    def callee(self) -> Callable[..., Any]:
        """What is called with the arguments, on the lane that asks."""
        return self.callable.callee() if isinstance(self.callable, Stateful) else self.callable

    def for_types(self, types: str) -> Declared:
        """What it is for arguments of these types, such as "(BIGINT, VARCHAR[])", if it takes arguments of any.

        Raises:
            ValueError: if it takes no such arguments.
        """
        signature, count = _guest.for_types(self.signature, types)
        shapes = self.shapes
        if self.variadic:
            last = shapes[-1]
            shapes = [*shapes[:-1], last and last[1]]

        def each(items: list[Any]) -> list[Any]:
            fixed = len(items) - self.variadic
            return items[:fixed] + items[fixed:] * (count - fixed)

        return dataclasses.replace(
            self,
            signature=signature,
            variadic=False,
            shapes=each(shapes),
            admits_null=each(self.admits_null),
            columns=each(self.columns),
        )

    def message(self) -> dict[str, Any]:
        """What the engine is told, as JSON."""
        return {
            "signature": self.signature,
            "admits_null": self.admits_null,
            "deterministic": self.deterministic,
            "calling": self.kind,
            "ends_late_calls": self.kind == "async",
            "concurrency": self.concurrency,
            "timeout": self.timeout,
            "memory_limit": self.memory_limit,
            "on_error": self.on_error,
            "retries": self.retries,
            "kind": "aggregate" if isinstance(self.callable, Aggregate) else "scalar",
            "set_up": isinstance(self.callable, Stateful),
            "whole_batches": self.whole_batches,
            "overload": self.overload,
            "file": self.file,
            "line": self.line,
            "description": self.description,
            **(self.table_message() if self.table else {}),
        }

    def table_message(self) -> dict[str, Any]:
        """What the engine is told of a table function, or a stream function, beside what it is told of any."""
        if self.table.kind == "stream":
            return {"kind": "stream"}
        return {
            "kind": "table",
            "named": self.named,
            "partitions": self.table.partition is not None,
            "cardinality": self.cardinality,
        }
