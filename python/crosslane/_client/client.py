"""A server's functions for programs without an engine: :class:`Client`."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from crosslane import _guest
from crosslane._client.context import current_context, pass_on
from crosslane._client.limits import check_depth, check_lanes
from crosslane._client.served import (
    ServedFunction,
    columns_of,
    count_rows,
    group_keys,
    type_of_value,
    types_of,
)
from crosslane._client.stream import MappedStream, input_batches

#: The environment variable with the token. Engines use it, too.
_TOKEN = "CROSSLANE_TOKEN"
#: The methods for each kind of function.
_USES = {"scalar": "call or call_batch", "table": "scan", "aggregate": "aggregate", "stream": "map"}


class _Offer:
    """The functions that a server has at a time. Their indices are those of one native client."""

    def __init__(self, native: Any) -> None:
        self.native = native
        said = enumerate(native.functions())
        functions = (ServedFunction._of(index, signature, spec) for index, (signature, spec) in said)
        self.functions = MappingProxyType({function.name: function for function in functions})
        self.by_lower = {name.lower(): function for name, function in self.functions.items()}


class Client:
    """A server's functions, for any number of threads.

    Up to ``lanes`` calls run at a time; further calls wait in their order. Time limits, retries and
    errors of a function are those of a local one. The next call restores a lost connection.

    Args:
        address: such as ``crosslane://host:7411``, ``crosslane+tls://host`` or
            ``crosslane+unix:///path``. Several addresses with commas between them are servers with
            the same functions.
        token: the server's token; by default that of the variable ``CROSSLANE_TOKEN``.
        lanes: how many calls run at a time; by default one per processor that this process may use.
            Each has a connection of its own.

    Raises:
        ConnectionError: if no server can be reached, or a server refuses. Later calls may raise it,
            too.
        ValueError: if the address is not valid.
    """

    def __init__(self, address: str, *, token: str | None = None, lanes: int | None = None) -> None:
        token = (os.environ.get(_TOKEN) if token is None else token) or None
        self._lanes = check_lanes(lanes)
        self._address = address
        self._renewing = threading.Lock()
        self._offer = _Offer(_guest.Client(address, token, self._lanes))

    @property
    def functions(self) -> Mapping[str, ServedFunction]:
        """The functions by their names. They are those that the server had when the client connected,
        or, with ``crosslane serve --watch``, those that it has now.
        """
        return self._current().functions

    def _is_outdated(self) -> bool:
        """Whether the server may have other functions than those that were known last."""
        return bool(self._offer.native.is_outdated())

    def _current(self) -> _Offer:
        """The functions that the server has now, if it loads its files again."""
        offer = self._offer
        if not self._is_outdated():
            return offer
        with self._renewing:
            # Another thread may have been faster.
            if self._offer is offer and (renewed := offer.native.renewed()):
                self._offer = _Offer(renewed)
            return self._offer

    def _find(self, name: str, kind: str) -> tuple[Any, ServedFunction]:
        """A function, and the native client that knows it by its index. This thread is about to call it."""
        pass_on(current_context())
        offer = self._current()
        found = offer.by_lower.get(name.lower())
        if found is None:
            raise LookupError(f"{self._address} has no function {name}; it has {', '.join(offer.functions)}")
        if found.kind != kind:
            raise TypeError(f"{name} is of the kind {found.kind}: use {_USES[found.kind]}")
        return offer.native, found

    def call(self, function: str, /, *arguments: Any, **named: Any) -> Any:
        """The result of a scalar function for one row of arguments.

        Raises:
            RuntimeError: with the exception of the function, or if its worker ended.
            TimeoutError: if it took longer than its ``timeout``.
            ConnectionError: if the server cannot be reached any more, or has other functions now.
            TypeError, ValueError, OverflowError: if the function does not take the arguments.
        """
        return self._call(None, function, arguments, named)

    def _call(self, cancellation: Any, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        native, function = self._find(name, "scalar")
        bound = function._bind(arguments, named)
        _, types = types_of(bound, type_of_value)
        return native.call(function._index, [value for *_, value in bound], types, cancellation)

    def call_batch(self, function: str, /, *columns: Any, **named: Any) -> pa.Array:
        """The results of a scalar function for columns of arguments, over all lanes if that pays.

        A column is a list, a pyarrow array, a Series of pandas or polars, a numpy array, or any
        object with Arrow's C interface. The result has that interface, too.

        Raises:
            What :meth:`call` raises. Rows are counted from 1.
        """
        return self._call_batch(None, function, columns, named)

    def _call_batch(
        self, cancellation: Any, name: str, columns: tuple[Any, ...], named: dict[str, Any]
    ) -> pa.Array:
        native, function = self._find(name, "scalar")
        bound = function._bind(columns, named)
        if not bound:
            raise TypeError(f"{function.signature} has no columns; use call")
        arrays, types = columns_of(bound)
        return native.call_batch(function._index, arrays, count_rows(arrays), types, cancellation)

    def aggregate(self, function: str, /, *columns: Any, by: Any = None, **named: Any) -> Any:
        """The result of an aggregate for all rows of columns. With ``by``, a column of keys: a dict
        of the result of each key.

        Columns are as in :meth:`call_batch`. Keys are in the order of their first rows. All rows of
        a call go to one worker.

        Raises:
            What :meth:`call` raises. Rows are counted from 1.
        """
        return self._aggregate(None, function, columns, by, named)

    def _aggregate(
        self, cancellation: Any, name: str, columns: tuple[Any, ...], by: Any, named: dict[str, Any]
    ) -> Any:
        native, function = self._find(name, "aggregate")
        arrays, _ = columns_of(function._bind(columns, named))
        keys, groups = ([], []) if by is None else group_keys(by)
        if by is None and not arrays:
            raise TypeError(f"{function.signature} has no columns; name its rows with by=")
        rows = count_rows(arrays if by is None else [*arrays, groups])
        told = rows if by is None else (groups, len(keys))
        results = native.aggregate(function._index, arrays, told, cancellation)
        return results[0] if by is None else dict(zip(keys, results))

    def scan(self, function: str, /, *arguments: Any, **named: Any) -> MappedStream:
        """The rows of a table function, as a stream of batches that can be read once. It has the
        Arrow C stream interface.

        The stream has a worker for itself until it is read to its end or closed.
        """
        native, found = self._find(function, "table")
        values = [value for *_, value in found._bind(arguments, named)]
        return MappedStream(native.scan(found._index, values), iter(()))

    def map(
        self, reader: Any, function: str, *, ordered: bool = True, depth: int = 2, lanes: int | None = None
    ) -> MappedStream:
        """As :func:`crosslane.map`, with a stream function and workers of the server."""
        native, found = self._find(function, "stream")
        lanes = check_lanes(self._lanes if lanes is None else lanes)
        depth = check_depth(depth)
        source = input_batches(reader)
        return MappedStream(native.map(found._index, lanes, depth, bool(ordered)), source)

    def close(self) -> None:
        """Ends the connections. Waiting calls raise ValueError. May be called more than once."""
        self._offer.native.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"
