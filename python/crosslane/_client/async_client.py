"""A server's functions for tasks of an event loop: :class:`AsyncClient`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from crosslane import _guest
from crosslane._client.client import Client
from crosslane._client.limits import check_lanes
from crosslane._client.served import ServedFunction
from crosslane._client.stream import MappedStream

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncClient:
    """A :class:`Client` for tasks of one event loop: ``async with AsyncClient(...) as client``.

    If a call is cancelled, it ends on the server, too.
    """

    def __init__(self, address: str, *, token: str | None = None, lanes: int | None = None) -> None:
        self._connect = partial(Client, address, token=token, lanes=lanes)
        self._client: Client | None = None
        # Each running call waits in a thread. Further calls wait in the queue of the executor.
        self._threads = ThreadPoolExecutor(check_lanes(lanes), "crosslane-client")
        self._renewal: Future[object] | None = None

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise RuntimeError("the client is not connected yet: async with AsyncClient(...) as client")
        return self._client

    @property
    def functions(self) -> Mapping[str, ServedFunction]:
        """As :attr:`Client.functions`. If the server may have other functions now, another thread asks for
        them meanwhile.
        """
        client = self._open
        if client._is_outdated() and (self._renewal is None or self._renewal.done()):
            with contextlib.suppress(RuntimeError):  # by the executor after its shutdown
                self._renewal = self._threads.submit(client._current)
        return client._offer.functions

    async def _run(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            # The call belongs to the task's span.
            called = partial(copy_context().run, partial(function, *arguments, **named))
            waits = asyncio.get_running_loop().run_in_executor(self._threads, called)
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
        """As :meth:`Client.scan`, for ``async for``. An error may come with the first batch."""
        return self._stream(partial(self._open.scan, function, *arguments, **named))

    def map(
        self, reader: Any, function: str, *, ordered: bool = True, depth: int = 2, lanes: int | None = None
    ) -> AsyncStream:
        """As :meth:`Client.map`, for ``async for``. Another thread reads the reader. An error may come with the
        first batch.
        """
        return self._stream(
            partial(self._open.map, reader, function, ordered=ordered, depth=depth, lanes=lanes)
        )

    def _stream(self, opens: Callable[[], MappedStream]) -> AsyncStream:
        # To ask the server for its functions would hold up the event loop.
        return AsyncStream(opens) if self._open._is_outdated() else AsyncStream(opens, opens())

    async def aclose(self) -> None:
        """Ends the connections. Waiting calls raise ValueError. May be called more than once."""
        if self._client is not None:
            self._client.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._run(self._connect)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncStream:
    """A stream of batches for ``async for``, which one task can read once."""

    def __init__(self, opens: Callable[[], MappedStream], stream: MappedStream | None = None) -> None:
        # The stream belongs to the span of the task that has made it.
        self._opens = partial(copy_context().run, opens)
        #: None before it is open.
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
            batch = await loop.run_in_executor(self._thread, self._next)
        except asyncio.CancelledError:
            # The stream cannot go on: the batch that the thread reads now is lost.
            self._end()
            raise
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _next(self) -> pa.RecordBatch | None:
        if self._stream is None:
            self._stream = self._opens()
            if self._closed:
                self._stream.close()
        return next(self._stream, None)

    def _end(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()
        self._thread.shutdown(wait=False)

    async def aclose(self) -> None:
        """Ends the stream and its workers. May be called more than once."""
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
