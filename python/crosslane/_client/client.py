"""A server's functions for programs without an engine: :class:`Client`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import pyarrow as pa

from crosslane import _guest
from crosslane._client.served import (
    ServedFunction,
    columns_of,
    count_rows,
    group_keys,
    type_of_value,
    types_of,
)
from crosslane._client.stream import MappedStream, input_batches

#: The variable with the token, as for engines.
_TOKEN = "CROSSLANE_TOKEN"
_MOST_LANES = 1024
_MOST_DEPTH = 64
#: How functions of each kind are used.
_USES = {"scalar": "call or call_batch", "table": "scan", "aggregate": "aggregate", "stream": "map"}


def _checked(option: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{option} is a whole number from 1 to {most}, not {value!r}")
    return value


def count_lanes(given: int | None) -> int:
    """How many calls go side by side."""
    count = min(len(os.sched_getaffinity(0)), _MOST_LANES) if given is None else given
    return _checked("lanes", count, _MOST_LANES)


class Client:
    """A server's functions, for any number of threads.

    Calls go side by side; those beyond ``lanes`` wait in line, in their order. A function's time limit, retries and errors are
    those of a local one. A lost connection is made anew by the next call.

    Args:
        address: such as ``crosslane://host:7411``, ``crosslane+tls://host`` or ``crosslane+unix:///path``; several, with commas
            between them, are servers with the same functions.
        token: what the server asks for; by default that of the variable ``CROSSLANE_TOKEN``.
        lanes: how many calls are at work at a time; by default one per processor that this process may use. Each has a
            connection of its own.

    Raises:
        ConnectionError: if no server can be reached, or it refuses; later calls raise it, too.
        ValueError: if the address is none.
    """

    def __init__(self, address: str, *, token: str | None = None, lanes: int | None = None) -> None:
        token = (os.environ.get(_TOKEN) if token is None else token) or None
        self._lanes = count_lanes(lanes)
        self._address = address
        self._native = _guest.Client(address, token, self._lanes)
        said = enumerate(self._native.functions())
        functions = (ServedFunction._of(index, signature, spec) for index, (signature, spec) in said)
        self._functions = MappingProxyType({function.name: function for function in functions})
        self._by_lower = {name.lower(): function for name, function in self._functions.items()}

    @property
    def functions(self) -> Mapping[str, ServedFunction]:
        """The functions by their names, as the server had them when the client connected."""
        return self._functions

    def _find(self, name: str, kind: str) -> ServedFunction:
        found = self._by_lower.get(name.lower())
        if found is None:
            raise LookupError(f"{self._address} has no function {name}; it has {', '.join(self._functions)}")
        if found.kind != kind:
            raise TypeError(f"{name} is of the kind {found.kind}: use {_USES[found.kind]}")
        return found

    def call(self, function: str, /, *arguments: Any, **named: Any) -> Any:
        """The result of a scalar function for one row of arguments.

        Raises:
            RuntimeError: with the exception that the function raised, or what became of its worker.
            TimeoutError: if it took longer than its ``timeout``.
            ConnectionError: if the server cannot be reached any more, or has other functions now.
            TypeError, ValueError, OverflowError: if the arguments are not what it takes.
        """
        return self._call(None, function, arguments, named)

    def _call(self, cancellation: Any, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        function = self._find(name, "scalar")
        bound = function._bind(arguments, named)
        _, types = types_of(bound, type_of_value)
        return self._native.call(function._index, [value for *_, value in bound], types, cancellation)

    def call_batch(self, function: str, /, *columns: Any, **named: Any) -> pa.Array:
        """The results of a scalar function for columns of arguments, over all lanes if that pays.

        A column is a list, or any library's: a pyarrow array, a Series of pandas or polars, a numpy array, or anything else with
        Arrow's C interface. The result has that interface, too.

        Raises:
            What :meth:`call` raises. Rows are counted from 1.
        """
        return self._call_batch(None, function, columns, named)

    def _call_batch(
        self, cancellation: Any, name: str, columns: tuple[Any, ...], named: dict[str, Any]
    ) -> pa.Array:
        function = self._find(name, "scalar")
        bound = function._bind(columns, named)
        if not bound:
            raise TypeError(f"{function.signature} has no columns; use call")
        arrays, types = columns_of(bound)
        return self._native.call_batch(function._index, arrays, count_rows(arrays), types, cancellation)

    def aggregate(self, function: str, /, *columns: Any, by: Any = None, **named: Any) -> Any:
        """The result of an aggregate for all rows of columns; or with ``by``, a column of keys, a dict of each key's result.

        Columns are those of :meth:`call_batch`. Keys are in the order in which they come first. All rows of a call go to one
        worker.

        Raises:
            What :meth:`call` raises. Rows are counted from 1.
        """
        return self._aggregate(None, function, columns, by, named)

    def _aggregate(
        self, cancellation: Any, name: str, columns: tuple[Any, ...], by: Any, named: dict[str, Any]
    ) -> Any:
        function = self._find(name, "aggregate")
        arrays, _ = columns_of(function._bind(columns, named))
        keys, groups = ([], []) if by is None else group_keys(by)
        if by is None and not arrays:
            raise TypeError(f"{function.signature} has no columns; name its rows with by=")
        rows = count_rows(arrays if by is None else [*arrays, groups])
        told = rows if by is None else (groups, len(keys))
        results = self._native.aggregate(function._index, arrays, told, cancellation)
        return results[0] if by is None else dict(zip(keys, results))

    def scan(self, function: str, /, *arguments: Any, **named: Any) -> MappedStream:
        """The rows of a table function, as a stream of batches to be read once. It has the Arrow C stream interface itself.

        It has a worker for itself until it is read, or closed.
        """
        found = self._find(function, "table")
        values = [value for *_, value in found._bind(arguments, named)]
        return MappedStream(self._native.scan(found._index, values), iter(()))

    def map(
        self, reader: Any, function: str, *, ordered: bool = True, depth: int = 2, lanes: int | None = None
    ) -> MappedStream:
        """A stream through a stream function, as :func:`crosslane.map` with the server's workers."""
        found = self._find(function, "stream")
        lanes = count_lanes(self._lanes if lanes is None else lanes)
        depth = _checked("depth", depth, _MOST_DEPTH)
        source = input_batches(reader)
        return MappedStream(self._native.map(found._index, lanes, depth, bool(ordered)), source)

    def close(self) -> None:
        """Ends the connections. Calls that wait end with a ValueError. It may be called twice."""
        self._native.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"
