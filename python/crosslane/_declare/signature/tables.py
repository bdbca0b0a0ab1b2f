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
    """A parameter of a table function that SQL can pass."""

    #: Its name in the function.
    name: str
    #: Whether SQL passes it by name, and may leave it out.
    named: bool


@dataclass
class Table:
    """What a lane needs to call a table function."""

    kind: ClassVar[str] = "table"

    function: Callable[..., Any]
    parameters: list[Parameter]
    columns: list[str]
    types: list[str]
    shapes: list[Shape]
    vectorized: bool
    #: Whether it takes the names of the columns that the query wants.
    projects: bool
    partition: Callable[..., Any] | None

    def scan(self, values: list[Any], partition: bytes | None, wanted: list[int] | None) -> Iterator[Any]:
        """The rows that the function makes.

        It is told the columns with the indices ``wanted``, or all columns, if it asks for them.
        """
        leading = () if partition is None else (pickle.loads(partition),)
        positional, named = self._arguments(values)
        if self.projects:
            indices = range(len(self.columns)) if wanted is None else wanted
            named["wanted"] = tuple(self.columns[index] for index in indices)
        made = self.function(*leading, *positional, **named)
        if self.vectorized and (hasattr(made, "__arrow_c_array__") or hasattr(made, "__arrow_c_stream__")):
            return iter([made])
        return iterated(made)

    def partitions(self, values: list[Any]) -> list[bytes]:
        """The partitions for these arguments, each pickled."""
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
        # A parameter that SQL left out comes as NULL; then the default of the function counts.
        named = {item.name: value for item, value in pairs if item.named and value is not None}
        return positional, named


def iterated(made: Any) -> Iterator[Any]:
    """An iterator over the rows or batches that a function has returned or yields.

    Raises:
        TypeError: if it returned something that has no rows.
    """
    if isinstance(made, (str, bytes, dict)) or not hasattr(made, "__iter__"):
        raise TypeError(
            f"returned {type(made).__name__} where rows are due: yield them, or return an iterable"
        )
    return iter(made)


@dataclass
class StreamTable:
    """What a lane needs to call a stream function."""

    kind: ClassVar[str] = "stream"

    function: Callable[..., Any]
    #: The name of its parameter, and the names of the columns of its input.
    parameter: str
    given: list[str]
    #: The names of the columns of the result.
    columns: list[str]
    types: list[str]
    shapes: list[Shape]
    vectorized: bool
    #: The class of the batches that a vectorized function takes: a key of
    #: `crosslane._arrow.batches.FRAMES`.
    frame: str

    def set_up(self) -> None:
        """Makes the instance of a stateful function. Called before each batch."""
        if isinstance(self.function, Stateful):
            self.function.callee()

    def rows(self, columns: list[list[Any]]) -> Iterator[Any]:
        """The rows that the function makes of a batch, which comes as the values of each column."""
        return self._made(list(map(self._row, zip(*columns))))

    def batches(self, array: pa.StructArray) -> Iterator[Any]:
        """The batches that the function makes of a batch."""
        import pyarrow as pa

        from crosslane._arrow.batches import FRAMES

        return self._made(FRAMES[self.frame](pa.RecordBatch.from_struct_array(array)))

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
        # A column whose name Python cannot have is named by its index, such as _0.
        row: Any = collections.namedtuple(self.parameter, self.given, rename=True)  # type: ignore[misc]
        return row._make  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_row"}
