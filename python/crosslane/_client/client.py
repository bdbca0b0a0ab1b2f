"""A server's functions for programs without an engine: :class:`Client` and :class:`AsyncClient`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.convert import fitting
from crosslane._arrow.encode import _fitted, sql_type
from crosslane._client.map import MappedStream, _source

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: The variable with the token, as for engines.
_TOKEN = "CROSSLANE_TOKEN"
_MOST_LANES = 1024
_MOST_DEPTH = 64
#: How functions of each kind are used.
_USES = {"scalar": "call or call_batch", "table": "scan", "aggregate": "aggregate", "stream": "map"}


@dataclass(frozen=True)
class ServedFunction:
    """What a server says about one of its functions."""

    #: As SQL calls it.
    name: str
    #: Such as ``initials(name VARCHAR) -> VARCHAR``.
    signature: str
    #: ``scalar``, ``table``, ``aggregate`` or ``stream``.
    kind: str
    #: Its docstring, or the comment above it.
    description: str
    #: Where it is defined, on the server's machine.
    file: str
    #: The line there, from 1.
    line: int
    _index: int = field(repr=False)
    #: Names and types; of the last one those of an argument if it stands for any number.
    _parameters: tuple[tuple[str, str], ...] = field(repr=False)
    _variadic: bool = field(repr=False)
    #: For each parameter, whether it may be left out.
    _optional: tuple[bool, ...] = field(repr=False)

    @classmethod
    def _of(cls, index: int, signature: str, spec: str) -> ServedFunction:
        said = json.loads(spec)
        name, parameters, _, variadic = _guest.parse_signature(signature)
        optional = [*said["named"], *[False] * len(parameters)][: len(parameters)]
        return cls(
            name=name,
            signature=signature,
            kind=said["kind"],
            description=said["description"],
            file=said["file"],
            line=said["line"],
            _index=index,
            _parameters=tuple(parameters),
            _variadic=variadic,
            _optional=tuple(optional),
        )

    def _bind(self, values: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[str, str, Any]]:
        """The arguments, each with its name and its type."""
        fixed = self._parameters[:-1] if self._variadic else self._parameters
        names = [name for name, _ in fixed]
        wrong = next((name for name in named if name not in names[len(values) :]), None)
        if wrong is not None:
            what = "is given twice" if wrong in names else "is no parameter"
            raise TypeError(f"{wrong} {what}: {self.signature}")
        if len(values) > len(fixed) and not self._variadic:
            raise TypeError(f"{len(values)} arguments for {self.signature}")
        bound = [(name, kind, value) for (name, kind), value in zip(fixed, values)]
        for (name, kind), optional in list(zip(fixed, self._optional))[len(values) :]:
            if name not in named and not optional:
                raise TypeError(f"the argument {name} is missing: {self.signature}")
            bound.append((name, kind, named.get(name)))
        if self._variadic:
            bound += [(*self._parameters[-1], value) for value in values[len(fixed) :]]
        return bound


def _types(bound: list[tuple[str, str, Any]], known: Callable[[Any], str]) -> tuple[list[str], str | None]:
    """The types of arguments, and all as text if it depends on the arguments which they are."""
    types = [known(value) if kind == "ANY" else kind for _, kind, value in bound]
    return types, f"({', '.join(types)})" if any(kind == "ANY" for _, kind, _ in bound) else None


def _array_type(sql: str) -> pa.DataType:
    """The type of an array that goes to a server."""
    return _guest.table_type(f"STRUCT(x {sql})", sent=True).field(0).type


def _type_of_value(value: Any) -> str:
    return sql_type(pa.array([value]).type)


def _array(column: Any) -> pa.Array | None:
    """What has Arrow's interfaces, as an array; None for anything else."""
    if isinstance(column, pa.Array):
        return column
    if not isinstance(column, pa.ChunkedArray):
        if hasattr(column, "__arrow_c_array__"):
            return pa.array(column)
        if not hasattr(column, "__arrow_c_stream__"):
            return None
        column = pa.chunked_array(column)
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # pyarrow keeps what exceeds 2 GiB in chunks
        raise ValueError("a column exceeds 2 GiB; call with parts of it, or map over it")
    return joined


def _column(name: str, column: Any, sql: str) -> pa.Array | list[Any]:
    """A column of any library as an array of a type, or as a list of values."""
    kind = _array_type(sql)
    array = _array(column)
    if array is not None:
        return _fitted(array, pa.field(name, kind))
    if isinstance(column, Sequence) and not isinstance(column, (str, bytes, bytearray)):
        return list(column)
    try:
        return fitting(column, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kind_of_error = ValueError if isinstance(error, pa.ArrowException) else type(error)
        raise kind_of_error(f"column {name}: {str(error).removeprefix('returned ')}") from None


def _columns(bound: list[tuple[str, str, Any]]) -> tuple[list[Any], str | None]:
    """Columns as the native client takes them, and all their types as text if it depends on the columns which they are."""
    known = [
        (parameter, kind, pa.array(value) if kind == "ANY" and _array(value) is None else value)
        for parameter, kind, value in bound
    ]
    kinds, types = _types(known, lambda column: sql_type(_array(column).type))  # type: ignore[union-attr]
    return [_column(parameter, value, kind) for (parameter, _, value), kind in zip(known, kinds)], types


def _rows(columns: Sequence[Any]) -> int:
    rows = {len(column) for column in columns}
    if len(rows) > 1:
        raise ValueError(f"columns of {' and '.join(map(str, sorted(rows)))} rows")
    return rows.pop()


def _groups(keys: Any) -> tuple[list[Any], list[int]]:
    """The different keys, in the order in which they come first, and the place of each row's key among them."""
    if isinstance(keys, (str, bytes, bytearray)):
        raise TypeError(f"by is a column of keys, not {type(keys).__name__}")
    array = _array(keys)
    if array is not None:
        keys = array.to_pylist()
    elif hasattr(keys, "tolist"):
        keys = keys.tolist()
    places: dict[Any, int] = {}
    groups = [places.setdefault(key, len(places)) for key in keys]
    return list(places), groups


def _checked(option: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{option} is a whole number from 1 to {most}, not {value!r}")
    return value


def _lanes(given: int | None) -> int:
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
        self._lanes = _lanes(lanes)
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
        _, types = _types(bound, _type_of_value)
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
        arrays, types = _columns(bound)
        return self._native.call_batch(function._index, arrays, _rows(arrays), types, cancellation)

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
        arrays, _ = _columns(function._bind(columns, named))
        keys, groups = ([], []) if by is None else _groups(by)
        if by is None and not arrays:
            raise TypeError(f"{function.signature} has no columns; name its rows with by=")
        rows = _rows(arrays if by is None else [*arrays, groups])
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
        lanes = _lanes(self._lanes if lanes is None else lanes)
        depth = _checked("depth", depth, _MOST_DEPTH)
        source = _source(reader)
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


class AsyncClient:
    """A :class:`Client` for tasks of one event loop: ``async with AsyncClient(...) as client``.

    A call that is cancelled ends on the server, too.
    """

    def __init__(self, address: str, *, token: str | None = None, lanes: int | None = None) -> None:
        self._connect = partial(Client, address, token=token, lanes=lanes)
        self._client: Client | None = None
        # Each call at work waits in a thread; those beyond wait in the executor's line.
        self._threads = ThreadPoolExecutor(_lanes(lanes), "crosslane-client")

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise RuntimeError("the client is not connected yet: async with AsyncClient(...) as client")
        return self._client

    @property
    def functions(self) -> Mapping[str, ServedFunction]:
        """As :attr:`Client.functions`."""
        return self._open.functions

    async def _run(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            waits = asyncio.get_running_loop().run_in_executor(
                self._threads, partial(function, *arguments, **named)
            )
        except RuntimeError:  # by the executor after its shutdown
            raise ValueError("the client is closed") from None
        return await waits

    async def _cancellable(self, function: Callable[..., _T], *arguments: Any) -> _T:
        cancellation = _guest.Cancellation()
        try:
            return await self._run(function, cancellation, *arguments)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    async def call(self, function: str, /, *arguments: Any, **named: Any) -> Any:
        """As :meth:`Client.call`."""
        return await self._cancellable(self._open._call, function, arguments, named)

    async def call_batch(self, function: str, /, *columns: Any, **named: Any) -> pa.Array:
        """As :meth:`Client.call_batch`."""
        return await self._cancellable(self._open._call_batch, function, columns, named)

    async def aggregate(self, function: str, /, *columns: Any, by: Any = None, **named: Any) -> Any:
        """As :meth:`Client.aggregate`."""
        return await self._cancellable(self._open._aggregate, function, columns, by, named)

    def scan(self, function: str, /, *arguments: Any, **named: Any) -> AsyncStream:
        """As :meth:`Client.scan`, for ``async for``."""
        return AsyncStream(self._open.scan(function, *arguments, **named))

    def map(
        self, reader: Any, function: str, *, ordered: bool = True, depth: int = 2, lanes: int | None = None
    ) -> AsyncStream:
        """As :meth:`Client.map`, for ``async for``. The reader is read by another thread."""
        return AsyncStream(self._open.map(reader, function, ordered=ordered, depth=depth, lanes=lanes))

    async def aclose(self) -> None:
        """Ends the connections. Calls that wait end with a ValueError. It may be called twice."""
        if self._client is not None:
            self._client.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._run(self._connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncStream:
    """A stream of batches for ``async for``, to be read once by one task."""

    def __init__(self, stream: MappedStream) -> None:
        self._stream = stream
        self._thread = ThreadPoolExecutor(1, "crosslane-stream")
        self._closed = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._closed:
            raise ValueError("the stream was closed")
        loop = asyncio.get_running_loop()
        try:
            batch = await loop.run_in_executor(self._thread, partial(next, self._stream, None))
        except asyncio.CancelledError:
            # What the thread reads at this moment would be lost.
            self._end()
            raise
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _end(self) -> None:
        self._closed = True
        self._stream.close()
        self._thread.shutdown(wait=False)

    async def aclose(self) -> None:
        """Ends the stream and its workers. It may be called twice."""
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
