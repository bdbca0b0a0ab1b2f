"""Table functions and stream functions, as workers call them."""

from __future__ import annotations

import collections
import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from crosslane._declare.classes import Stateful

if TYPE_CHECKING:
    import pyarrow as pa

    from crosslane._declare.signature.annotations import Shape


@dataclass
class Parameter:
    """What SQL can pass."""

    #: In the function.
    name: str
    #: Whether SQL names it, and may leave it out.
    named: bool


@dataclass
class Table:
    """What a lane needs to know of a table function."""

    kind: ClassVar[str] = "table"

    function: Callable[..., Any]
    parameters: list[Parameter]
    columns: list[str]
    types: list[str]
    shapes: list[Shape]
    vectorized: bool
    #: Whether it wants to know which columns the query wants.
    projects: bool
    partition: Callable[..., Any] | None

    def scan(self, values: list[Any], partition: bytes | None, wanted: list[int] | None) -> Iterator[Any]:
        """The rows, as the function makes them; of its columns those at the places ``wanted`` are, or all."""
        leading = () if partition is None else (pickle.loads(partition),)
        positional, named = self._arguments(values)
        if self.projects:
            places = range(len(self.columns)) if wanted is None else wanted
            named["wanted"] = tuple(self.columns[place] for place in places)
        made = self.function(*leading, *positional, **named)
        if self.vectorized and (hasattr(made, "__arrow_c_array__") or hasattr(made, "__arrow_c_stream__")):
            return iter([made])
        return iterated(made)

    def partitions(self, values: list[Any]) -> list[bytes]:
        """The partitions for these arguments, as bytes each."""
        assert self.partition is not None
        positional, named = self._arguments(values)
        names = [parameter.name for parameter in self.parameters if not parameter.named]
        given = dict(zip(names, positional)) | named
        takes = inspect.signature(self.partition).parameters.values()
        if not any(item.kind is item.VAR_KEYWORD for item in takes):
            given = {item.name: given[item.name] for item in takes if item.name in given}
        made = self.partition(**given)
        if isinstance(made, (str, bytes, dict)) or not hasattr(made, "__iter__"):
            raise TypeError(f"partitions returned {type(made).__name__} where a list is due")
        return [pickle.dumps(partition, pickle.HIGHEST_PROTOCOL) for partition in made]

    def _arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        pairs = list(zip(self.parameters, values))
        positional = [value for parameter, value in pairs if not parameter.named]
        # What SQL left out came as NULL, and the function's own default counts.
        named = {item.name: value for item, value in pairs if item.named and value is not None}
        return positional, named


def iterated(made: Any) -> Iterator[Any]:
    """The rows (or batches) that a function has returned, if it did not yield them.

    Raises:
        TypeError: if it returned something else.
    """
    if isinstance(made, (str, bytes, dict)) or not hasattr(made, "__iter__"):
        raise TypeError(
            f"returned {type(made).__name__} where rows are due: yield them, or return an iterable"
        )
    return iter(made)


@dataclass
class StreamTable:
    """What a lane needs to know of a stream function."""

    kind: ClassVar[str] = "stream"

    function: Callable[..., Any]
    #: Of the parameter, and of the columns of its table.
    parameter: str
    given: list[str]
    #: Those of the result.
    columns: list[str]
    types: list[str]
    shapes: list[Shape]
    vectorized: bool
    #: What a vectorized one gets: a key of `crosslane._arrow.batches.WISHES`.
    wish: str

    def set_up(self) -> None:
        """Prepares what the function needs before its first batch. Called before each."""
        if isinstance(self.function, Stateful):
            self.function.callee()

    def rows(self, columns: list[list[Any]]) -> Iterator[Any]:
        """The rows that the function makes of a batch, which is the values of its columns."""
        return self._made(list(map(self._row, zip(*columns))))

    def batches(self, array: pa.StructArray) -> Iterator[Any]:
        """The batches that the function makes of a batch."""
        import pyarrow as pa

        from crosslane._arrow.batches import WISHES

        return self._made(WISHES[self.wish](pa.RecordBatch.from_struct_array(array)))

    def _made(self, batch: Any) -> Iterator[Any]:
        function = self.function.callee() if isinstance(self.function, Stateful) else self.function
        made = function(batch)
        if made is None:
            return iter(())
        if self.vectorized:
            from crosslane._arrow.batches import is_batch

            if is_batch(made):
                return iter([made])
        return iterated(made)

    @cached_property
    def _row(self) -> Callable[[tuple[Any, ...]], Any]:
        # A name that Python cannot have becomes that of its place: _0.
        row: Any = collections.namedtuple(self.parameter, self.given, rename=True)  # type: ignore[misc]
        return row._make  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_row"}
