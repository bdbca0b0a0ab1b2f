"""``async`` functions: many rows of a batch at once, on one event loop that the lane keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosslane._signature import Declared

#: The first pause in seconds before a failed call is tried again; it doubles with each try.
_BACKOFF = 0.05


class Runner:
    """Runs an ``async`` function over the rows of a batch, ``concurrency`` of them at once.

    As many tasks as that take the next row each, so that a row costs no task of its own. The loop
    lives as long as the lane: connections that the function keeps stay open from batch to batch.
    """

    def __init__(self, declared: Declared) -> None:
        self._function = declared.callable
        self._concurrency = declared.concurrency
        self._timeout = declared.timeout
        self._retries = declared.retries
        self._null_on_error = declared.on_error == "null"
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def __call__(
        self, rows: list[tuple[Any, ...] | None], progress: Callable[[int], None]
    ) -> tuple[list[Any], int, int]:
        """The results, the number of rows that failed and became None, and that of tries after the first.

        A row of None is not called. An exception that ends the batch has the row's index as
        ``__crosslane_row__``.
        """
        return self._loop.run_until_complete(self._run(rows, progress))

    async def _run(
        self, rows: list[tuple[Any, ...] | None], progress: Callable[[int], None]
    ) -> tuple[list[Any], int, int]:
        results: list[Any] = [None] * len(rows)
        pending = iter([index for index, row in enumerate(rows) if row is not None])
        done = errors = retries = 0
        call = self._function if self._timeout is None else self._call_in_time

        async def work() -> None:
            nonlocal done, errors, retries
            for index in pending:
                arguments = rows[index]
                tries = 0
                while True:
                    try:
                        results[index] = await call(*arguments)  # type: ignore[misc]
                    except asyncio.CancelledError:
                        raise
                    except BaseException as error:
                        if tries < self._retries:
                            await asyncio.sleep(_BACKOFF * 2 ** min(tries, 6))
                            tries += 1
                            retries += 1
                            continue
                        if not (self._null_on_error and isinstance(error, Exception)):
                            error.__crosslane_row__ = index  # type: ignore[attr-defined]
                            raise
                        errors += 1
                    break
                done += 1
                progress(done)

        workers = [self._loop.create_task(work()) for _ in range(min(self._concurrency, len(rows)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return results, errors, retries

    async def _call_in_time(self, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._function(*arguments)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"timed out after {self._timeout:g} s") from None
            raise
