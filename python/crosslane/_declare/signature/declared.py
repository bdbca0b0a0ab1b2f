"""A declared function with its types, as the native guest and the engine need it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crosslane import _guest
from crosslane._declare.callables import underlying
from crosslane._declare.classes import Aggregate, Stateful
from crosslane._declare.declaration import Declaration, EngineOptions

if TYPE_CHECKING:
    from crosslane._declare.signature.annotations import Shape
    from crosslane._declare.signature.tables import StreamTable, Table


@dataclasses.dataclass(kw_only=True)
class Declared(EngineOptions):
    """A function as the guest's loop and the engine need it."""

    name: str
    signature: str
    callable: Callable[..., Any]
    #: ``"row"``, ``"async"`` or ``"vectorized"``.
    kind: str
    #: Whether the last parameter stands for any number of arguments. Its shape is that of a list of
    #: them.
    variadic: bool = False
    shapes: list[Shape]
    result_shape: Shape = None
    admits_null: list[bool]
    #: For each parameter, the library whose arrays the function takes.
    columns: list[str]
    concurrency: int = 1
    inline: bool = False
    #: If `callable` is an engine's function around the user's: the user's function, which may be
    #: evaluated by columns where its results are exactly of the declared type.
    inner: Callable[..., Any] | None = None
    description: str
    #: Only table functions and stream functions have one.
    table: Table | StreamTable | None = None
    #: For each parameter of a table function, whether SQL names it and may leave it out.
    named: list[bool] = dataclasses.field(default_factory=list)
    cardinality: int | None = None
    #: Whether it is a generator, which is called once with an iterator of batches.
    iterates: bool = False
    #: Whether the result of a row may depend on other rows of its batch, so that the engine does
    #: not cut batches.
    whole_batches: bool = False

    @classmethod
    def of(cls, declaration: Declaration, **types: Any) -> Declared:
        """A declaration with its types, which are the other fields of this class."""
        options = declaration.engine_options()
        options["callable"] = declaration.function
        options["kind"] = "vectorized" if declaration.vectorized else "row"
        options["description"] = inspect.getdoc(underlying(declaration.function)) or ""
        return cls(**options | types)

    def callee(self) -> Callable[..., Any]:
        """What this lane calls with the arguments."""
        return self.callable.callee() if isinstance(self.callable, Stateful) else self.callable

    def has_own_lanes(self) -> bool:
        """Whether only lanes of its own call the function."""
        return any(option is not None for option in (self.workers, self.gpus, self.own_sandbox))

    def for_types(self, types: str) -> Declared:
        """This function for arguments of these types, such as "(BIGINT, VARCHAR[])", if it takes
        arguments of any type.

        Raises:
            ValueError: if it does not take such arguments.
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
        """What the engine is told of the function, for JSON."""
        return {
            **self.engine_options(),
            "signature": self.signature,
            "admits_null": self.admits_null,
            "calling": self.kind,
            "ends_late_calls": self.kind == "async",
            "concurrency": self.concurrency,
            "kind": "aggregate" if isinstance(self.callable, Aggregate) else "scalar",
            "set_up": isinstance(self.callable, Stateful),
            "whole_batches": self.whole_batches,
            "description": self.description,
            **self._table_message(),
        }

    def _table_message(self) -> dict[str, Any]:
        """What the engine is told only of table functions and stream functions."""
        if self.table is None:
            return {}
        if self.table.kind == "stream":
            return {"kind": "stream"}
        return {
            "kind": "table",
            "named": self.named,
            "partitions": self.table.partition is not None,
            "cardinality": self.cardinality,
        }
