"""``async`` functions: many rows of a batch at once, on one event loop that the lane keeps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from crosslane import _guest
from crosslane._runtime.errors import LaneEnded
from crosslane._runtime.retries import retry_after

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared


class Progress(Protocol):
    """Tells the engine how far a batch is."""

    def __call__(self, done: int) -> None:
        """So many rows are done."""

    def rest(self, seconds: float) -> None:
        """A row waits for so long before it is called again."""


class _Rests:
    """Tells the engine of pauses while all rows at work pause. If one of them does not, it may be
    stuck, and its timeout counts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._ends: list[float] = []
        #: How many rows are at work.
        self.working = 0

    async def rest(self, seconds: float) -> None:
        """Waits before a row is called again."""
        end = time.monotonic() + seconds
        self._ends.append(end)
        self._tell()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._ends.remove(end)

    def end(self) -> None:
        """No further row is called in place of one that has ended."""
        self.working -= 1
        self._tell()

    def _tell(self) -> None:
        if self._ends and len(self._ends) == self.working:
            self._progress.rest(max(0.0, min(self._ends) - time.monotonic()))


class _Lane(threading.local):
    """What the functions of a lane share. A lane is a thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this lane."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop


_lane = _Lane()


class Runner:
    """Runs an ``async`` function over the rows of a batch, ``concurrency`` of them at once.

    That many tasks take rows one after the other, so that a row costs no task of its own. The event
    loop lives as long as the lane, and all functions of the lane share it: connections that a
    function keeps stay open from batch to batch, and serve the others.
    """

    def __init__(self, declared: Declared) -> None:
        self._function = declared.callee()
        self._concurrency = declared.concurrency
        self._timeout = declared.timeout
        self._retries = declared.retries
        self._null_on_error = declared.on_error == "null"
        #: Whether the lane has ended before its batch was done.
        self._is_abandoned = False
        #: The tasks that run the rows of a batch.
        self._workers: list[asyncio.Task[None]] = []
        self._loop = _lane.event_loop()

    def __call__(
        self, rows: list[tuple[Any, ...] | None], progress: Progress, spent: int = 0
    ) -> tuple[list[Any], int, dict[int, int], tuple[int, BaseException] | None]:
        """Calls the function for the rows; for a row of None there is no call. ``spent`` tries of
        each were made before.

        Returns the results, the number of rows that failed and became None, and the number of
        further tries by row. The last item is the row that ends the batch with its exception; None
        if no row does.
        """
        batch = self._loop.create_task(self._run(rows, progress, spent))
        while True:
            try:
                return self._loop.run_until_complete(batch)
            except LaneEnded:
                self._abandon()
                raise
            except (SystemExit, KeyboardInterrupt):
                # A task that the function has made raised it out of the loop. The code that waits
                # for the task gets it, too.
                if batch.done():
                    raise

    def _abandon(self) -> None:
        """Closes all coroutines, because Python complains of tasks that never end."""
        self._is_abandoned = True
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Closing runs code of the function, which may raise anything. The lane ends all the same.
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]
        for worker in self._workers:
            if worker.done() and not worker.cancelled():
                # Reading the exception of the batch keeps Python from printing it.
                worker.exception()
        self._loop.close()

    async def _run(
        self, rows: list[tuple[Any, ...] | None], progress: Progress, spent: int
    ) -> tuple[list[Any], int, dict[int, int], tuple[int, BaseException] | None]:
        results: list[Any] = [None] * len(rows)
        pending = iter([index for index, row in enumerate(rows) if row is not None])
        done = errors = 0
        rests = _Rests(progress)
        again: dict[int, int] = {}
        failed: asyncio.Future[tuple[int, BaseException]] = self._loop.create_future()
        call = self._function if self._timeout is None else self._call_in_time

        async def work() -> None:
            nonlocal done, errors
            for index in pending:
                arguments = rows[index]
                tries = spent
                while True:
                    try:
                        results[index] = await call(*arguments)  # type: ignore[misc]
                    except LaneEnded:
                        raise
                    except BaseException as error:
                        if self._is_abandoned:
                            raise
                        if failed.done():
                            # The batch has failed, and the error may come from the cancellation of its rows.
                            return
                        pause = None
                        if tries < self._retries:
                            pause = _guest.pause(tries, retry_after(error))
                        if pause is not None:
                            await rests.rest(pause)
                            tries += 1
                            again[index] = tries - spent
                            continue
                        if not self._null_on_error:
                            failed.set_result((index, error))
                            return
                        errors += 1
                    break
                done += 1
                progress(done)
            rests.end()

        workers = [self._loop.create_task(work()) for _ in range(min(self._concurrency, len(rows)))]
        self._workers = workers
        rests.working = len(workers)
        working = asyncio.gather(*workers)
        try:
            await asyncio.wait([working, failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self._is_abandoned:
                if not failed.done():
                    failed.cancel()
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        if failed.cancelled():
            await working
        return results, errors, again, None if failed.cancelled() else failed.result()

    async def _call_in_time(self, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._function(*arguments)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"timed out after {self._timeout:g} s") from None
            raise
