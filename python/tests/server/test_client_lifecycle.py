"""Clients over time: threads, forks, servers that restart, asyncio, and the end of the program."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import crosslane

from ..conftest import Library, eventually
from ..servers import Server, unix
from .conftest import TEXT, connections, has_begun

pytestmark = pytest.mark.any_duckdb


def test_threads_share_lanes(server: Server, client: crosslane.Client) -> None:
    with ThreadPoolExecutor(16) as threads:
        sums = list(threads.map(lambda n: client.call("plus", n, 1), range(2000)))
    assert sums == list(range(1, 2001))
    assert connections(server) <= 2


def test_calls_beyond_the_lanes_wait(server: Server, begun: Path) -> None:
    with crosslane.Client(server.address, lanes=1) as client, ThreadPoolExecutor(2) as threads:
        slow = threads.submit(client.call, "sleeps", str(begun), 600.0)
        assert has_begun(begun)
        waits = threads.submit(client.call, "plus", 1, 2)
        assert not waits.done()
        client.close()
        for call in (slow, waits):
            # The second call may not have begun.
            with pytest.raises(ValueError, match=r"the client (is|was) closed"):
                call.result(30)


def test_after_close(client: crosslane.Client) -> None:
    scan, stream = client.scan("numbers", 1 << 40), client.map(pa.table({"n": [1]}), "halves")
    next(scan)
    client.close()
    client.close()
    uses: list[Callable[[], Any]] = [
        lambda: client.call("plus", 1, 2),
        lambda: client.call_batch("plus", [1], [2]),
        lambda: client.scan("words", "a"),
        lambda: client.map(pa.table({"n": [1]}), "halves"),
        lambda: next(scan),
        lambda: next(stream),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"the client (is|was) closed"):
            use()
    assert "plus" in client.functions


def test_a_client_without_references_is_closed(server: Server) -> None:
    client = crosslane.Client(server.address)
    assert client.call("plus", 1, 2) == 3
    assert connections(server) > 0
    del client
    gc.collect()
    assert eventually(lambda: connections(server) == 0)


def test_a_fork_needs_a_client_of_its_own(server: Server, client: crosslane.Client) -> None:
    assert client.call("plus", 1, 2) == 3
    scan = client.scan("numbers", 10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for use in (lambda: client.call("plus", 1, 2), lambda: next(scan)):
                try:
                    use()
                except RuntimeError as error:
                    code = 0 if "forked after the client had connected" in str(error) else 2
            client.close()
            with crosslane.Client(server.address) as own:
                code = code or (own.call("plus", 1, 2) != 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.call("plus", 1, 2) == 3
    assert len(pa.table(scan)) == 10


def run(text: str, *arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["idle", "reading", "calling", "async"])
def test_a_program_ends_with_an_open_client(server: Server, begun: Path, how: str) -> None:
    text = """
        import asyncio, os, sys, threading, time
        import crosslane
        address, begun, how = sys.argv[1:]
        client = crosslane.Client(address)
        assert client.call("plus", 1, 2) == 3
        if how == "reading":
            scan = client.scan("numbers", 1 << 40)
            next(scan)
        if how == "calling":
            call = threading.Thread(target=client.call, args=("sleeps", begun, 600.0), daemon=True)
            call.start()
            while not os.listdir(begun):
                time.sleep(0.01)
        if how == "async":
            async def main():
                other = await crosslane.AsyncClient(address).__aenter__()
                call = asyncio.create_task(other.call("sleeps", begun, 600.0))
                while not os.listdir(begun):
                    await asyncio.sleep(0.01)
            asyncio.run(main())
        print("over")
    """
    program = run(text, server.address, str(begun), how)
    assert program.communicate(timeout=60) == ("over\n", "")
    assert program.returncode == 0


def test_ctrl_c_ends_a_call(server: Server, begun: Path) -> None:
    text = """
        import sys
        import crosslane
        client = crosslane.Client(sys.argv[1])
        try:
            client.call("sleeps", sys.argv[2], 600.0)
        except KeyboardInterrupt:
            print("interrupted", client.call("plus", 1, 2))
    """
    program = run(text, server.address, str(begun))
    assert has_begun(begun)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60) == ("interrupted 3\n", "")


def test_a_server_that_comes_back_is_found(
    library: Library, serve: Callable[..., Server], tmp_path: Path, begun: Path
) -> None:
    file, address = library(TEXT), unix(tmp_path)
    server = serve(file, listen=address, NAME="one")
    with crosslane.Client(address, lanes=1) as client, ThreadPoolExecutor(1) as threads:
        call = threads.submit(client.call, "sleeps", str(begun), 600.0)
        assert has_begun(begun)
        server.end(signal.SIGKILL)
        # The client sends a call again if it has only just begun, and then finds no server.
        with pytest.raises((RuntimeError, ConnectionError), match=r"crosslane\+unix"):
            call.result(60)
        with pytest.raises(ConnectionError, match=r"cannot connect to crosslane\+unix"):
            client.call("plus", 1, 2)
        (tmp_path / "crosslane.sock").unlink(missing_ok=True)
        serve(file, listen=address, NAME="one")
        assert client.call("plus", 1, 2) == 3


def test_a_server_with_other_functions_is_refused(
    library: Library, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(library(TEXT), listen=unix(tmp_path), NAME="one")
    with crosslane.Client(unix(tmp_path)) as client:
        assert client.call("plus", 1, 2) == 3
        server.end()
        serve(library("@udf\ndef plus(x: int) -> int: return x\n"), listen=unix(tmp_path))
        with pytest.raises(ConnectionError, match=r"have changed since .*make a new client"):
            client.call("plus", 1, 2)
    with crosslane.Client(unix(tmp_path)) as client:
        assert client.call("plus", 1) == 1


def test_servers_take_turns_and_stand_in_for_each_other(
    library: Library, serve: Callable[..., Server], begun: Path
) -> None:
    file = library(TEXT)
    servers = {name: serve(file, NAME=name) for name in ("one", "two")}
    with crosslane.Client(", ".join(server.address for server in servers.values()), lanes=2) as client:
        scans = [client.scan("where", 1 << 40) for _ in range(4)]
        assert {next(scan)["name"][0].as_py() for scan in scans} == {"one", "two"}
        for scan in scans:
            scan.close()
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(client.call, "survives", str(begun))
            assert has_begun(begun)
            (first,) = (path.name for path in begun.iterdir())
            servers.pop(first).end(signal.SIGKILL)
            assert call.result(60) == next(iter(servers))


@pytest.mark.parametrize("repeats", [False, True])
def test_a_call_that_had_begun_when_the_server_went_is_repeated_only_with_retries(
    library: Library, serve: Callable[..., Server], tmp_path: Path, repeats: bool
) -> None:
    text = library(TEXT)
    servers = {name: serve(text, NAME=name) for name in ("one", "two")}
    (calls := tmp_path / "calls").mkdir()

    def end_called() -> None:
        assert eventually(lambda: any(calls.iterdir()), 60)
        (called,) = calls.iterdir()
        servers[called.name].process.kill()

    ends = threading.Thread(target=end_called)
    ends.start()
    with crosslane.Client(", ".join(server.address for server in servers.values()), lanes=1) as client:
        if repeats:
            assert client.call("ends_server_again", str(calls)) == "repeated"
        else:
            with pytest.raises(RuntimeError, match=r"ends_server: .*closed the connection"):
                client.call("ends_server", str(calls))
        ends.join()
        assert len(list(calls.iterdir())) == 1 + repeats


def run_async(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))  # type: ignore[arg-type]


def test_tasks_call_side_by_side(server: Server) -> None:
    async def main() -> None:
        async with crosslane.AsyncClient(server.address, lanes=2) as client:
            assert client.functions["plus"].kind == "scalar"
            sums = await asyncio.gather(*(client.call("plus", n, y=1) for n in range(500)))
            assert sums == list(range(1, 501))
            assert (await client.call_batch("plus", [1, 2], [3, 4])).to_pylist() == [4, 6]
            assert await client.aggregate("total", [1, 2, 4], by=["a", "b", "a"]) == {"a": 5, "b": 2}
            with pytest.raises(RuntimeError, match="fails: ValueError: three"):
                await client.call("fails", 3)
            assert connections(server) <= 2

    run_async(main)


def test_a_cancelled_task_ends_its_call(server: Server, begun: Path) -> None:
    async def main() -> None:
        async with crosslane.AsyncClient(server.address, lanes=1) as client:
            slow = asyncio.create_task(client.call("sleeps", str(begun), 600.0))
            assert await asyncio.to_thread(has_begun, begun)
            waits = asyncio.create_task(client.call("sleeps", str(begun), 600.0))
            await asyncio.sleep(0)
            waits.cancel()
            slow.cancel()
            for task in (slow, waits):
                with pytest.raises(asyncio.CancelledError):
                    await task
            # The worker of the call has ended, and its lane is free.
            (pid,) = (int(path.name) for path in begun.iterdir())
            assert await client.call("plus", 1, 2) == 3
            assert await asyncio.to_thread(eventually, lambda: not psutil.pid_exists(pid), 30)

    run_async(main)


def test_async_streams(server: Server) -> None:
    async def main() -> None:
        async with crosslane.AsyncClient(server.address, lanes=1) as client:
            rows = [
                (word, await client.call("initials", word))
                async for batch in client.scan("words", "ab cd")
                for word in batch["word"].to_pylist()
            ]
            assert rows == [("ab", "a"), ("cd", "c")]
            halves = client.map(pa.table({"n": [2, 4]}), "halves")
            assert [batch["half"].to_pylist() async for batch in halves] == [[1, 2]]
            with pytest.raises(StopAsyncIteration):
                await anext(halves)
            async with client.scan("numbers", 1 << 40) as endless:
                assert (await anext(endless))["i"][0].as_py() == 5
            with pytest.raises(ValueError, match="the stream was closed"):
                await anext(endless)

    run_async(main)


def test_an_async_client_is_closed_with_calls_in_flight(server: Server, begun: Path) -> None:
    async def main() -> None:
        client = crosslane.AsyncClient(server.address, lanes=1)
        with pytest.raises(RuntimeError, match="not connected yet"):
            await client.call("plus", 1, 2)
        async with client:
            calls = [asyncio.create_task(client.call("sleeps", str(begun), 600.0)) for _ in range(3)]
            assert await asyncio.to_thread(has_begun, begun)
        for call in calls:
            with pytest.raises(ValueError, match=r"the client (is|was) closed"):
                await call
        with pytest.raises(ValueError, match="the client is closed"):
            await client.call("plus", 1, 2)
        await client.aclose()
        with pytest.raises(ConnectionError):
            async with crosslane.AsyncClient("crosslane://127.0.0.1:1"):
                pass

    run_async(main)


def test_no_thread_is_left(server: Server) -> None:
    before = threading.active_count()
    with crosslane.Client(server.address) as client:
        client.call("plus", 1, 2)

    async def main() -> None:
        async with crosslane.AsyncClient(server.address) as client:
            await client.call("plus", 1, 2)

    run_async(main)
    assert eventually(lambda: threading.active_count() <= before)

    def senders() -> list[str]:
        found = []
        for path in Path("/proc/self/task").iterdir():
            # Any thread may end during the loop.
            with suppress(OSError):
                found.append((path / "comm").read_text())
        return [name for name in found if name.startswith("crosslane-send")]

    assert eventually(lambda: not senders())
